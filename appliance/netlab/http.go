package netlab

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// Answer is the answer of an HTTP server.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// Get asks an HTTP server once, on a connection of its own.
func (h *Host) Get(to netip.AddrPort, path string) (Answer, error) {
	client := http.Client{
		Timeout: 2 * silence,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(_ context.Context, network, addr string) (c net.Conn, err error) {
				// The address is a number: the socket is made on the Host's thread.
				err = h.Do(func() error {
					c, err = net.DialTimeout(network, addr, time.Second)
					return err
				})
				return c, err
			},
		},
	}
	response, err := client.Get("http://" + to.String() + path)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return Answer{response.StatusCode, response.Header, string(body)}, err
}
