package httpproxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A body that drips ends with 408 and the connection; one that comes in time may have an answer that takes longer.
func TestBodiesThatDrip(t *testing.T) {
	const grace = 300 * time.Millisecond
	slow := make(chan struct{})
	l := start(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/late" {
			n, _ := io.Copy(io.Discard, r.Body)
			<-slow
			fmt.Fprint(w, n)
			return
		}
		told(w, r)
	})
	l.bodyTime = grace
	for _, head := range []string{"Content-Length: 1000", "Transfer-Encoding: chunked"} {
		c, err := net.Dial("tcp", l.at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n", head)
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
					if _, err := io.WriteString(c, map[bool]string{true: "y", false: "1\r\ny\r\n"}[strings.HasPrefix(head, "Content")]); err != nil {
						return
					}
				}
			}
		}()
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		in := bufio.NewReader(c)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("%s: %v", head, err)
		}
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(body), "too slowly") {
			t.Errorf("%s: %s %s", head, res.Status, body)
		}
		if _, err := in.ReadByte(); err == nil {
			t.Errorf("%s: the connection goes on", head)
		}
		close(stop)
	}
	time.AfterFunc(2*grace, func() { close(slow) }) // real time: the endpoint is slow
	for range 2 {
		res, err := http.Post("http://"+l.at+"/late", "text/plain", bytes.NewReader(make([]byte, 100<<10)))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusOK || string(body) != "102400" {
			t.Errorf("%s %s", res.Status, body)
		}
	}
}

// An invalid body is the fault of the client, not of the endpoint.
func Test1167_invalid_chunks(t *testing.T) {
	l := start(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/drop" {
			panic(http.ErrAbortHandler)
		}
		told(w, r)
	})
	for range 20 {
		if res, body := l.says("POST /drop HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + strings.Repeat("x", 200_000)); res.StatusCode != http.StatusBadGateway {
			t.Errorf("an endpoint that fails: %s %s", res.Status, body)
		}
	}
	for _, chunks := range []string{"0x4\r\nabcd\r\n0\r\n\r\n", "fffffffffffffffff\r\nabcd\r\n", "4\r\nabcdefgh\r\n0\r\n\r\n"} {
		res, body := l.says("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
		if res.StatusCode != http.StatusBadRequest || !res.Close || !strings.Contains(body, "the body of the request is invalid") {
			t.Errorf("%q: %s %s", chunks, res.Status, body)
		}
	}
}

// Whatever a client says of itself in a name that servers may take for one of ours does not reach an endpoint.
func TestHeadersThatNameTheClient(t *testing.T) {
	l := start(t, time.Minute, told)
	_, body := l.says("GET / HTTP/1.1\r\nHost: a\r\nX_Forwarded_For: 6.6.6.6\r\nx-forwarded_for: 6.6.6.6\r\nX_FORWARDED-Proto: 6.6.6.6\r\nX-Forwarded-Ssl: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n" +
		"X_Other: kept\r\nX-Real-IP: kept too\r\nConnection: close\r\n\r\n")
	if strings.Contains(body, "6.6.6.6") {
		t.Errorf("the endpoint got\n%s", body)
	}
	for _, want := range []string{"X-Forwarded-For: 192.0.2.7", "X_other: kept", "X-Real-Ip: kept too"} {
		if !strings.Contains(body, want) {
			t.Errorf("the endpoint did not get %s:\n%s", want, body)
		}
	}
}

// What net/http would change on the way is passed on as it was written: paths, requests for all of a server, and answers without a type.
func Test1164_requests_and_answers_as_they_were_written(t *testing.T) {
	l := start(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = nil
		fmt.Fprintf(w, "<html>%s %s", r.Method, r.RequestURI)
	}, func(c *Client) { c.Hosts = []string{"a"} })
	for sent, want := range map[string]string{
		"GET /a|b%2f..%2Fc%7c%25?x":       "GET /a%7Cb%2f..%2Fc%7c%25?x",
		"GET //{a}/%2e%2E/\xe4%e4/#b!(c)": "GET //%7Ba%7D/%2e%2E/%E4%e4/%23b%21%28c%29",
		"GET /a!(b)%2F[c]":                "GET /a!(b)%2F[c]",
	} {
		for range 20 { // an answer has a type if its body is there before its header is sent
			res, body := l.says(sent + " HTTP/1.1\r\nHost: a\r\n\r\n")
			if body != "<html>"+want || res.Header["Content-Type"] != nil {
				t.Errorf("%s: %s, of the type %q", sent, body, res.Header["Content-Type"])
				break
			}
		}
	}
	if res, _ := l.says("OPTIONS * HTTP/1.1\r\nHost: b\r\n\r\n"); res.StatusCode != http.StatusNotFound {
		t.Errorf("another host: %s", res.Status)
	}
}

// An endpoint of HTTP/2 without TLS gets streams both ways and trailers, as gRPC needs them.
func TestEndpointOfHTTP2(t *testing.T) {
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		w.Header().Set("Content-Type", "application/grpc")
		in := bufio.NewReader(r.Body)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				break
			}
			fmt.Fprintf(w, "%s te=%s for=%s %s", r.Proto, r.Header.Get("Te"), r.Header.Get("X-Forwarded-For"), line)
			_ = http.NewResponseController(w).Flush()
		}
		w.Header().Set("Grpc-Status", "0")
	}))
	backend.Config.Protocols = &http.Protocols{}
	backend.Config.Protocols.SetUnencryptedHTTP2(true)
	backend.Start()
	t.Cleanup(backend.Close)
	l := start(t, time.Minute, told, func(c *Client) {
		c.HTTP2 = true
		c.Dial = func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", backend.Listener.Addr().String())
		}
	})
	l.bodyTime = 50 * time.Millisecond // a stream of gRPC may be silent for longer
	transport := &http.Transport{Protocols: &http.Protocols{}, TLSClientConfig: &tls.Config{}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	in, out := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.at+"/echo.Echo/Talk", in)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	go func() { _, _ = io.WriteString(out, "one\n") }()
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(res.Body)
	expect := func(want string) {
		t.Helper()
		if line, err := answers.ReadString('\n'); line != "HTTP/2.0 te=trailers for=192.0.2.7 "+want+"\n" {
			t.Errorf("%q (%v), want %q", line, err, want)
		}
	}
	expect("one")
	time.Sleep(4 * l.bodyTime) // real time: longer than a part of the body may take
	_, _ = io.WriteString(out, "two\n")
	expect("two")
	_ = out.Close()
	if rest, err := io.ReadAll(answers); len(rest) > 0 || err != nil {
		t.Errorf("%q, %v after the end", rest, err)
	}
	if got := res.Trailer.Get("Grpc-Status"); got != "0" {
		t.Errorf("trailer %q", got)
	}
}

// Test1157_client_that_takes_nothing: the connection of a client that does not read its answer ends, over HTTP/1.1 and for a stream without a window of
// HTTP/2, and so does that of the endpoint. An answer whose parts come late, and a client that reads in time, go on.
func Test1157_client_that_takes_nothing(t *testing.T) {
	const time1 = 300 * time.Millisecond
	ended := make(chan struct{}, 4)
	l := start(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			for i := range 3 {
				fmt.Fprint(w, i)
				_ = http.NewResponseController(w).Flush()
				time.Sleep(2 * time1) // real time: the endpoint is slow
			}
			return
		}
		part := make([]byte, 64<<10)
		for range 4 << 10 {
			if _, err := w.Write(part); err != nil {
				break
			}
		}
		ended <- struct{}{}
	})
	l.takeTime = time1
	c, err := net.Dial("tcp", l.at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	two, err := net.Dial("tcp", l.at)
	if err != nil {
		t.Fatal(err)
	}
	defer two.Close()
	// RFC 9113: SETTINGS_INITIAL_WINDOW_SIZE is 0, and stream 1 is GET http://a/ in headers of the static table of HPACK.
	fmt.Fprint(two, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00", "\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x86\x84\x41\x01a")
	for range 2 {
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("a client that reads nothing keeps an endpoint")
		}
	}
	_ = two.SetReadDeadline(time.Now().Add(time.Minute))
	for head, reset := make([]byte, 9), byte(3); head[3] != reset; {
		if _, err := io.ReadFull(two, head); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, two, int64(head[0])<<16|int64(head[1])<<8|int64(head[2])); err != nil {
			t.Fatal(err)
		}
	}
	if res, body := l.says("GET /slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); body != "012" {
		t.Errorf("%s %q", res.Status, body)
	}
}
