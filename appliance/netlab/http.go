package netlab

import (
	"context"
	"crypto/tls"
	"fmt"
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
	return h.get("http://"+to.String()+path, to, 2*silence, &http.Transport{})
}

// GetTLS gets the path / of the server name of config over HTTPS, by HTTP/2 or HTTP/1.1, on a connection of its own, and returns the body,
// whatever the status.
func (h *Host) GetTLS(to netip.AddrPort, config *tls.Config) (body string, err error) {
	url := "https://" + config.ServerName // the port of HTTPS is left out, as curl does: servers see what was written
	if to.Port() != 443 {
		url += fmt.Sprintf(":%d", to.Port())
	}
	answer, err := h.get(url+"/", to, 100*time.Second, &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true})
	return answer.Body, err
}

func (h *Host) get(url string, to netip.AddrPort, timeout time.Duration, transport *http.Transport) (Answer, error) {
	transport.DisableKeepAlives = true
	transport.DialContext = func(context.Context, string, string) (c net.Conn, err error) {
		// The address is a number: the socket is made on the Host's thread.
		err = h.Do(func() error {
			c, err = net.DialTimeout("tcp", to.String(), timeout)
			return err
		})
		return c, err
	}
	client := http.Client{Timeout: timeout, Transport: transport}
	response, err := client.Get(url)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return Answer{response.StatusCode, response.Header, string(body)}, err
}
