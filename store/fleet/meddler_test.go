package fleet_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/fleet/stream"
)

// meddler is between a leaf and its core box, and changes the stream.
func meddler(t *testing.T, core string, change func([]*stream.Commit) []*stream.Commit) *httptest.Server {
	t.Helper()
	target, err := url.Parse(core)
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(target)
	pass.FlushInterval = -1
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != fleet.CommitsPath {
			pass.ServeHTTP(w, r)
			return
		}
		req, _ := http.NewRequestWithContext(r.Context(), http.MethodGet, core+r.URL.RequestURI(), nil)
		req.Header.Set("Accept-Encoding", "gzip")
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
		if resp.StatusCode != http.StatusOK {
			io.Copy(w, resp.Body)
			return
		}
		w.(http.Flusher).Flush()
		packer, frames := gzip.NewWriter(w), stream.NewDecoder(resp.Body)
		for {
			f, err := frames.Next()
			if err != nil {
				return
			}
			for _, f := range change([]*stream.Commit{f}) {
				packer.Write(stream.Append(nil, f))
			}
			packer.Flush()
			w.(http.Flusher).Flush()
		}
	}))
	t.Cleanup(func() { cutOff(s) })
	return s
}

// A stream that lacks a commit, has two in another order, or another value, is found out: the leaf reads all objects and has what is.
func Test603_a_damaged_stream_is_found_out(t *testing.T) {
	for name, change := range map[string]func() func([]*stream.Commit) []*stream.Commit{
		"a commit is dropped": func() func([]*stream.Commit) []*stream.Commit {
			n := 0
			return func(f []*stream.Commit) []*stream.Commit {
				if n++; n == 3 {
					return nil
				}
				return f
			}
		},
		"two are in another order": func() func([]*stream.Commit) []*stream.Commit {
			n := 0
			var held []*stream.Commit
			return func(f []*stream.Commit) []*stream.Commit {
				if n++; n == 3 {
					held = f
					return nil
				}
				f = append(f, held...)
				held = nil
				return f
			}
		},
		"a value is another one": func() func([]*stream.Commit) []*stream.Commit {
			n := 0
			return func(f []*stream.Commit) []*stream.Commit {
				if n++; n == 3 && len(f[0].Ops) > 0 {
					f[0].Ops[0].Value = append([]byte(nil), f[0].Ops[0].Value...)
					f[0].Ops[0].Value[len(f[0].Ops[0].Value)/2] ^= 1
				}
				return f
			}
		},
		"two are dropped that come to nothing together": func() func([]*stream.Commit) []*stream.Commit {
			return func(f []*stream.Commit) []*stream.Commit {
				if len(f[0].Ops) > 0 && strings.HasSuffix(f[0].Ops[0].Key, "/brief") {
					return nil
				}
				return f
			}
		},
		"a removal is left out": func() func([]*stream.Commit) []*stream.Commit {
			return func(f []*stream.Commit) []*stream.Commit {
				if len(f[0].Ops) > 0 && f[0].Ops[0].Remove {
					f[0].Ops = f[0].Ops[1:]
				}
				return f
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, a, _ := twoBoxes(t, "web")
			between := meddler(t, a.serve(t).URL, change())
			cfg := c.leafConfig("leaf", between.URL)
			reloads := countReloads(&cfg)
			l := c.open(cfg, storeConfig)
			eventually(t, "it follows", func() bool { return l.engine.State().Kind == fleet.Following })
			time.Sleep(100 * time.Millisecond) // the stream begins before the first commit, most likely
			for n := range 8 {
				if err := a.create(fmt.Sprintf("s%d", n)); err != nil {
					t.Fatal(err)
				}
				gone := "web"
				if n == 5 {
					if gone = "brief"; a.create(gone) != nil {
						t.Fatal("it is not created")
					}
				}
				if n == 4 || n == 5 {
					if r, err := a.Write(store.Write{Ref: serviceRef(gone), Delete: true}); err != nil || r[0].Err != nil {
						t.Fatal(err, r)
					}
				}
			}
			same(t, a, l)
			if l.clusterIP("web") != "" {
				t.Error("what was removed is still there")
			}
			eventually(t, "the leaf has read all objects", func() bool { return reloads.Load() > 0 })
		})
	}
}
