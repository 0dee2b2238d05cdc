package rest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// many puts so many Services into a world.
func (w *world) many(count int) {
	w.Helper()
	const batch = 1000
	for from := 0; from < count; from += batch {
		var writes []store.Write
		for i := from; i < min(from+batch, count); i++ {
			o := read(w, service(fmt.Sprintf("web-%05d", i), `"type":"ClusterIP"`))
			writes = append(writes, store.Write{Ref: object.RefOf(o), Object: o, Create: true})
		}
		results, err := w.store.Write(writes...)
		if err != nil || results[0].Err != nil {
			w.Fatal(err, results[0].Err)
		}
	}
}

// counter is a client that counts what it is sent.
type counter struct {
	header http.Header
	bytes  atomic.Int64
	lines  atomic.Int64
	// peak is the most memory that was in use at some of its writes.
	peak   uint64
	look   bool
	writes int
}

func (c *counter) Header() http.Header { return c.header }
func (c *counter) WriteHeader(int)     {}
func (c *counter) FlushError() error   { return nil }
func (c *counter) Write(p []byte) (int, error) {
	c.bytes.Add(int64(len(p)))
	for _, b := range p {
		if b == '\n' {
			c.lines.Add(1)
		}
	}
	const every = 10
	if c.writes++; c.look && c.writes%every == 0 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		c.peak = max(c.peak, m.HeapAlloc)
	}
	return len(p), nil
}

func newCounter() *counter { return &counter{header: http.Header{}} }

// A long list is written as it is made: what it takes of memory beside the
// objects themselves does not grow with it.
func TestListsAreNotCopied(t *testing.T) {
	w := newWorld(t)
	w.many(4_000)
	path := "/api/v1/services"
	w.ask("GET", path+"?limit=1") // what is made once
	for _, accept := range []string{"application/json", "application/json;as=Table;v=v1;g=meta.k8s.io"} {
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Accept", accept)
		runtime.GC()
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		c := newCounter()
		c.look = true
		w.handler.ServeHTTP(c, r)
		if more := int64(c.peak) - int64(before.HeapAlloc); more > c.bytes.Load()/4 {
			t.Errorf("%s: %d bytes more for an answer of %d", accept, more, c.bytes.Load())
		} else {
			t.Logf("%s: %d bytes more for an answer of %d", accept, more, c.bytes.Load())
		}
	}
}

func BenchmarkList(b *testing.B) {
	w := newWorld(b)
	w.many(10_000)
	w.store.Pack() // as at the end of a start
	for name, accept := range map[string]string{
		"JSON":     "application/json",
		"Table":    "application/json;as=Table;v=v1;g=meta.k8s.io",
		"Metadata": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c := newCounter()
				r := httptest.NewRequest("GET", "/api/v1/services", nil)
				r.Header.Set("Accept", accept)
				w.handler.ServeHTTP(c, r)
				b.SetBytes(c.bytes.Load())
			}
		})
	}
	b.Run("Chunk", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.handler.ServeHTTP(newCounter(), httptest.NewRequest("GET", "/api/v1/services?limit=500&continue="+after("default", "web-05000", latest), nil))
		}
	})
}

// BenchmarkWatch is the time from a change until all of those who watch are told.
func BenchmarkWatch(b *testing.B) {
	for _, watchers := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(watchers), func(b *testing.B) {
			w := newWorld(b)
			w.server.watches = make(chan struct{}, watchers)
			w.many(100)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			clients := make([]*counter, watchers)
			done := make(chan struct{})
			for i := range clients {
				clients[i] = newCounter()
				go func() {
					r := httptest.NewRequest("GET", fmt.Sprintf("/api/v1/services?watch=1&resourceVersion=%d", w.store.Revision()), nil).WithContext(ctx)
					w.handler.ServeHTTP(clients[i], r)
					done <- struct{}{}
				}()
			}
			for len(w.server.watches) < watchers {
				time.Sleep(time.Millisecond)
			}
			b.ReportAllocs()
			n := int64(0)
			for b.Loop() {
				n++
				o := read(b, service("web-00007", fmt.Sprintf(`"sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":%d}}`, n%86400+1)))
				if results, err := w.store.Write(store.Write{Ref: object.RefOf(o), Object: o}); err != nil || results[0].Err != nil {
					b.Fatal(err, results)
				}
				for _, c := range clients {
					for c.lines.Load() < n {
						runtime.Gosched()
					}
				}
			}
			cancel()
			for range clients {
				<-done
			}
		})
	}
}

// BenchmarkApply is the server-side apply of a batch of objects, as it makes them and when
// nothing has changed.
func BenchmarkApply(b *testing.B) {
	const count = 1000
	var body strings.Builder
	for i := range count {
		fmt.Fprintf(&body, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s%[1]d"},"spec":{"ports":[{"name":"http","port":80,"protocol":"TCP","targetPort":8080}]}}
{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"s%[1]d-1","labels":{"kubernetes.io/service-name":"s%[1]d"}},"addressType":"IPv4","ports":[{"name":"http","port":8080,"protocol":"TCP"}],"endpoints":[{"addresses":["10.0.0.1"]}]}
`, i)
	}
	apply := func(w *world) {
		r := httptest.NewRequest("POST", batchPath, strings.NewReader(body.String()))
		r.Header.Set("Content-Type", typeLines)
		c := newCounter()
		if w.handler.ServeHTTP(c, r); c.lines.Load() != 2*count {
			b.Fatal(c.lines.Load(), "answers")
		}
	}
	b.Run("New", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			w := newWorld(b)
			b.StartTimer()
			apply(w)
		}
	})
	b.Run("Unchanged", func(b *testing.B) {
		w := newWorld(b)
		apply(w)
		b.ReportAllocs()
		for b.Loop() {
			apply(w)
		}
	})
}

// BenchmarkOne is a request for one object.
func BenchmarkOne(b *testing.B) {
	w := newWorld(b)
	w.many(100)
	const path = "/api/v1/namespaces/default/services/web-00007"
	for name, ask := range map[string]func(n int) *http.Request{
		"Get": func(int) *http.Request { return httptest.NewRequest("GET", path, nil) },
		"Patch": func(n int) *http.Request {
			r := httptest.NewRequest("PATCH", path, strings.NewReader(fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, n)))
			r.Header.Set("Content-Type", "application/merge-patch+json")
			return r
		},
		"PatchUnchanged": func(int) *http.Request {
			r := httptest.NewRequest("PATCH", path, strings.NewReader(`{"metadata":{"labels":{"app":"web-00007"}}}`))
			r.Header.Set("Content-Type", "application/merge-patch+json")
			return r
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				c := newCounter()
				if w.handler.ServeHTTP(c, ask(n)); c.bytes.Load() < 100 {
					b.Fatal("no answer")
				}
			}
		})
	}
}
