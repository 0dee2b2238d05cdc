package httpproxy

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Test1214_streams_of_gRPC_whose_first_message_comes_late: a stream of gRPC has no time limit for the beginning of its answer, which comes with the
// first message of the endpoint: a client that waits for an event gets it. Other requests beside it have the limit.
func Test1214_streams_of_gRPC_whose_first_message_comes_late(t *testing.T) {
	const limit = 200 * time.Millisecond
	go2 := &http.Protocols{}
	go2.SetUnencryptedHTTP2(true)
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(5 * limit) // real time: longer than an answer may take
		_, _ = io.WriteString(w, "event")
	}))
	backend.Config.Protocols = go2
	backend.Start()
	defer backend.Close()
	l := start(t, time.Minute, nil, func(c *Client) {
		c.HTTP2, c.ResponseTimeout = true, limit
		c.Dial = func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", backend.Listener.Addr().String())
		}
	})
	transport := &http.Transport{Protocols: go2}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for kind, want := range map[string]string{"application/grpc": "200 event", "application/grpc+proto": "200 event", "text/plain": "504 svcctl: the endpoint did not answer in time\n"} {
		res, err := client.Post("http://"+l.at, kind, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if got := res.Status[:4] + string(body); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", kind, got, err, want)
		}
	}
}
