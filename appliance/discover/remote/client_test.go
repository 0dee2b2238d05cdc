package remote

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener without a network, so that a test has virtual time. A transport may dial after its last request has ended, for
// one that found another connection: a dial after Close is refused.
type pipes struct {
	conns  chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

func newPipes() *pipes {
	closed, end := context.WithCancel(context.Background())
	return &pipes{make(chan net.Conn), closed, end}
}

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// Whatever a server does, a request ends in time and with bounded memory, the reason has a text, and nothing goes to another server.
func Test1088_hostile_servers(t *testing.T) {
	drip := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, text)
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Second)
			}
		}
	}
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		text    string
		within  time.Duration // of virtual time
	}{
		{"one byte a second", drip(" "), "no complete answer in time", answerTime},
		{"one element a second", drip(`[{"a":1},`), "no complete answer in time", answerTime},
		{"no header", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "no complete answer in time", answerTime},
		{"50 MB", func(w http.ResponseWriter, _ *http.Request) {
			for range 50 {
				_, _ = w.Write([]byte(strings.Repeat("[", 1<<20)))
			}
		}, "more than 32 MiB", 0},
		{"50 MB, announced", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(50<<20))
			for range 50 {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}, "more than 32 MiB", 0},
		{"50 MB in 50 kB of gzip", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			for range 50 {
				_, _ = z.Write(make([]byte, 1<<20))
			}
			_ = z.Close()
		}, "more than 32 MiB", 0},
		{"deep JSON", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("[", 1<<20)) }, "not as expected", 0},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://elsewhere.example/v1", http.StatusTemporaryRedirect)
		}, `to "http://elsewhere.example/v1", which is not followed`, 0},
		{"a redirect without an end", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/", http.StatusFound) }, "not followed", 0},
		{"headers of 20 MB", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 20 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1<<20))
			}
		}, "", 0},
		{"text that cannot be shown", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			_, _ = w.Write([]byte("\x1b[2J\x00\xff"))
		}, `"\x1b[2J\x00\xff"`, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, dialed := serve(t, tt.handler)
				began := time.Now()
				var all []any
				_, err := c.JSON(context.Background(), "/v1", nil, 0, &all)
				if err == nil || !strings.Contains(err.Error(), tt.text) || !strings.HasPrefix(err.Error(), "http://provider.example: ") {
					t.Errorf("%.300v, want %s", err, tt.text)
				}
				if took := time.Since(began); took > tt.within {
					t.Errorf("it ends after %v, want %v", took, tt.within)
				}
				if dialed.Load() != 1 {
					t.Errorf("%d connections", dialed.Load())
				}
				if status, is := errors.AsType[*StatusError](err); is && len(status.Error()) > 1000 {
					t.Errorf("a reason of %d bytes", len(status.Error()))
				}
			})
		})
	}
}

// Retry-After holds back the requests of all questions, five minutes at most, in whatever form it comes.
func Test1088_servers_that_are_busy(t *testing.T) {
	for after, want := range map[string]time.Duration{
		"": pauseLeast, "7": 7 * time.Second, "0": 0, "-1": pauseLeast, "soon": pauseLeast, "4000000000": pauseLeast, "2000000000": pauseMost,
		time.Date(2000, 1, 1, 0, 0, 20, 0, time.UTC).Format(http.TimeFormat):  20 * time.Second,
		time.Date(1999, 1, 1, 0, 0, 20, 0, time.UTC).Format(http.TimeFormat):  0,
		time.Date(2100, 12, 1, 0, 0, 20, 0, time.UTC).Format(http.TimeFormat): pauseMost,
	} {
		t.Run(after, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // it begins at 2000-01-01T00:00:00Z
				busy := true
				c, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
					if busy {
						if after != "" {
							w.Header().Set("Retry-After", after)
						}
						w.WriteHeader(http.StatusTooManyRequests)
						return
					}
					_, _ = io.WriteString(w, "[]")
				})
				ask := func() error {
					var all []any
					_, err := c.JSON(context.Background(), "/", nil, 0, &all)
					return err
				}
				if err := ask(); err == nil || !strings.Contains(err.Error(), "429") {
					t.Fatalf("%v", err)
				}
				busy = false
				began := time.Now()
				if err := ask(); err != nil && want < answerTime {
					t.Errorf("%v", err)
				}
				for ask() != nil { // one question waits for a minute
				}
				if took := time.Since(began); took != want {
					t.Errorf("the next request is after %v, want %v", took, want)
				}
			})
		})
	}
}

// A connection that a transport dials when the server has ended is refused: the program does not panic.
func TestDialAfterTheEnd(t *testing.T) {
	p := newPipes()
	_ = p.Close()
	if c, err := p.dial(t.Context(), "", ""); c != nil || !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v, %v", c, err)
	}
}

// serve is a client of a server in the bubble of a test, and the number of its connections.
func serve(t *testing.T, handler http.HandlerFunc) (c *Client, dialed *atomic.Int64) {
	c, err := NewClient(Server{URL: "http://provider.example", Conns: 2})
	if err != nil {
		t.Fatal(err)
	}
	listener := newPipes()
	dialed = &atomic.Int64{}
	transport := c.http.Transport.(*http.Transport)
	transport.Proxy = nil
	transport.DialContext = func(ctx context.Context, network, at string) (net.Conn, error) {
		dialed.Add(1)
		return listener.dial(ctx, network, at)
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		time.Sleep(time.Minute) // its handlers end
	})
	return c, dialed
}

// Test1158_many_small_values: a text of 32 MiB that consists of nothing but short values is refused before it takes a gigabyte.
func Test1158_many_small_values(t *testing.T) {
	var all []struct{ Targets []string }
	if err := Unmarshal([]byte("[{}"+strings.Repeat(",{}", 2<<20)+",{}]"), &all); err == nil || !strings.Contains(err.Error(), "more than 2097152 values") || len(all) > 0 {
		t.Errorf("%d values, %v", len(all), err)
	}
	if err := Unmarshal([]byte("[{}"+strings.Repeat(",{}", 1000)+"]"), &all); err != nil || len(all) != 1001 {
		t.Errorf("%d values, %v", len(all), err)
	}
}
