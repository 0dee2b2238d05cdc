package providertest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Proxy is an HTTP server in front of another one.
type Proxy struct {
	URL string

	mu       sync.Mutex
	fault    http.HandlerFunc // nil: none
	requests int
	open     map[*http.Request]context.CancelCauseFunc
	delay    time.Duration
	cut      bool
}

// NewProxy dials network and address for each request.
func NewProxy(t testing.TB, network, address string) *Proxy {
	p := &Proxy{open: map[*http.Request]context.CancelCauseFunc{}}
	behind := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "server" },
		FlushInterval: -1,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, address)
			},
			DisableKeepAlives: true, // the server may be another one by then
		},
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ModifyResponse: p.damage,
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancelCause(r.Context())
		p.mu.Lock()
		p.requests++
		p.open[r] = cancel
		fault, delay := p.fault, p.delay
		p.mu.Unlock()
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.open, r)
			cancel(nil)
		}()
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			panic(http.ErrAbortHandler)
		}
		if fault != nil {
			fault(w, r)
			return
		}
		behind.ServeHTTP(w, r.WithContext(ctx))
		if context.Cause(ctx) != nil {
			panic(http.ErrAbortHandler) // the answer ends before its end
		}
	}))
	p.URL = front.URL
	t.Cleanup(func() {
		p.Break(nil)
		front.Close()
	})
	return p
}

// damage cuts answers to a half.
func (p *Proxy) damage(resp *http.Response) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut && resp.Header.Get("Content-Length") != "" {
		n, err := strconv.Atoi(resp.Header.Get("Content-Length"))
		if err == nil {
			resp.Body = struct {
				io.Reader
				io.Closer
			}{io.LimitReader(resp.Body, int64(n/2)), resp.Body}
		}
	} else if p.cut {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, 1), resp.Body}
	}
	return nil
}

// Break ends all open requests, and answers the next ones by fault; nil: by the server.
func (p *Proxy) Break(fault http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.delay, p.cut = fault, 0, false
	for _, cancel := range p.open {
		cancel(http.ErrAbortHandler)
	}
}

// Delay has each request wait from now on.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Cut ends all open requests, and has the server's answers end in the middle.
func (p *Proxy) Cut() {
	p.Break(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
}

// Requests is how many there were.
func (p *Proxy) Requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests
}

// Status answers with a status, and names and values of headers by turns.
func Status(code int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// Faults has a server fail in all ways, one after the other, and requires a failure with its text for each, and no answer. It then waits
// for an answer, which the caller compares.
func Faults(t *testing.T, p *Proxy, f *Following, headers ...string) {
	t.Helper()
	begin := len(f.Answers())
	for _, fault := range []struct {
		name, text string
		handler    http.HandlerFunc
	}{
		{"429", "HTTP 429", Status(429, "slow down", "Retry-After", "1")},
		{"500", `HTTP 500 Internal Server Error: "rpc error: No cluster leader"`, Status(500, "rpc error: No cluster leader")},
		{"503", "HTTP 503", Status(503, "")},
		{"403", "HTTP 403", Status(403, "Permission denied")},
		{"404 of something else", "HTTP 404", Status(404, "404 page not found")},
		{"a redirect", "is not followed", Status(302, "", "Location", "http://127.0.0.1:1/")},
		{"a page of HTML", "", Status(200, "<html>log in</html>")},
		{"null", "null", Status(200, "null", headers...)},
		{"an object", "", Status(200, `{"error":"no"}`, headers...)},
		{"an array of something else", "", Status(200, `[{}]`, headers...)},
		{"two answers", "", Status(200, `[][]`, headers...)},
		{"nothing", "", Status(200, "", headers...)},
		{"too much", "", func(w http.ResponseWriter, _ *http.Request) {
			for range 33 {
				_, _ = w.Write(make([]byte, 1<<20))
			}
		}},
		{"closed without an answer", "", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		{"an empty array that is cut", "", func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i+1 < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "[]")
		}},
	} {
		before := len(f.Answers())
		p.Break(fault.handler)
		f.Fails(fault.text)
		// An answer may have been on its way.
		if since := f.Answers()[before:]; len(since) > 1 || len(since) == 1 && before > 0 && Text(since[0]) != Text(f.Answers()[before-1]) {
			t.Errorf("%s: an answer was taken: %v", fault.name, since)
		}
	}
	p.Cut()
	f.Fails("")
	for _, a := range f.Answers()[begin:] {
		if len(a.Endpoints) == 0 {
			t.Errorf("a fault was taken as an empty answer: %v", fmt.Sprint(f.Answers()))
		}
	}
	f.Fresh(func() { p.Break(nil) })
}
