package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The moods of an etcdProxy.
const (
	passing  = "passing"
	silent   = "silent"   // nothing is passed on
	refusing = "refusing" // connections are closed at once
	slow     = "slow"     // answers take longer than a box waits for them
)

// etcdProxy is between a box and etcd, and counts the calls that the box begins: HEADERS frames (RFC 9113), and connections while
// it refuses them.
type etcdProxy struct {
	f     *fleet
	mood  atomic.Value
	calls atomic.Int64

	mu    sync.Mutex
	conns []net.Conn
}

const etcdProxyAt = "127.0.0.1:2379"

// proxied puts a proxy between a box and etcd, for `--etcd http://` + etcdProxyAt.
func (f *fleet) proxied(n int) *etcdProxy {
	f.t.Helper()
	p := &etcdProxy{f: f}
	p.mood.Store(passing)
	var listener net.Listener
	if err := f.hosts[n].Do(func() (err error) {
		listener, err = net.Listen("tcp", etcdProxyAt)
		return err
	}); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		listener.Close()
		p.be(refusing)
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if p.mood.Load() == refusing {
				p.calls.Add(1)
				conn.Close()
				continue
			}
			var up net.Conn
			if err := f.hosts[n].Do(func() (err error) {
				up, err = net.DialTimeout("tcp", strings.TrimPrefix(fleetEtcd, "http://"), time.Minute)
				return err
			}); err != nil {
				conn.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, conn, up)
			p.mu.Unlock()
			calls, counted := io.Pipe()
			go p.count(calls)
			go p.pass(conn, up, counted)
			go p.pass(up, conn, nil)
		}
	}()
	return p
}

// count counts the calls in the frames of a client.
func (p *etcdProxy) count(from *io.PipeReader) {
	defer from.Close()
	const preface, header, headers = 24, 9, 1
	if _, err := io.CopyN(io.Discard, from, preface); err != nil {
		return
	}
	for h := make([]byte, header); ; {
		if _, err := io.ReadFull(from, h); err != nil {
			return
		}
		if h[3] == headers {
			p.calls.Add(1)
		}
		if _, err := io.CopyN(io.Discard, from, int64(h[0])<<16|int64(h[1])<<8|int64(h[2])); err != nil {
			return
		}
	}
}

// pass passes on what comes; counted, unless it is nil, gets it at once.
func (p *etcdProxy) pass(from, to net.Conn, counted *io.PipeWriter) {
	waiting := make(chan []byte, 1<<16) // the box is read also while nothing is passed on
	go func() {
		defer to.Close()
		for b := range waiting {
			for p.mood.Load() == silent {
				time.Sleep(10 * time.Millisecond)
			}
			if p.mood.Load() == slow {
				time.Sleep(4 * time.Second) // real time: etcd is slow
			}
			if _, err := to.Write(b); err != nil {
				return
			}
		}
	}()
	defer close(waiting)
	for b := make([]byte, 64<<10); ; {
		n, err := from.Read(b)
		if counted != nil {
			_, _ = counted.Write(b[:n])
		}
		if err != nil {
			if counted != nil {
				counted.Close()
			}
			return
		}
		waiting <- slices.Clone(b[:n])
	}
}

func (p *etcdProxy) be(mood string) {
	p.mood.Store(mood)
	p.mu.Lock()
	defer p.mu.Unlock()
	if mood == refusing {
		for _, c := range p.conns {
			c.Close()
		}
		p.conns = nil
	}
}

// Test803_reads_of_a_box_that_is_cut_off: beside an etcd that is silent, refuses or is slow, reads over the API are answered from
// memory with a warning, and none of them asks etcd. Times are logged.
func Test803_reads_of_a_box_that_is_cut_off(t *testing.T) {
	f := layFleet(t, 1)
	f.boxes[0] = f.single(f.hosts[0], "box1", "--fleet", "pop1", "--etcd", "http://"+etcdProxyAt)
	f.boxes[0].Manifests.Path = ""
	p := f.proxied(0)
	f.svcctlFleet("init")
	f.boxes[0].Start()
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	name := families[0].name("web")
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", f.boxes[0].Socket)
	}}}
	// What get, explain and describe ask for.
	paths := []string{"/api/v1/services", "/api/v1/namespaces/default/services/" + name, "/apis/discovery.k8s.io/v1/endpointslices", "/svcctl/v1/service?namespace=default&name=" + name}
	const rounds = 150
	read := func(mood string, warned bool) {
		var took []time.Duration
		late := false // etcd is healthy, and the machine is too busy
		before := p.calls.Load()
		for range rounds {
			for i, path := range paths {
				began := time.Now()
				resp, err := client.Get("http://svcctl" + path)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				took = append(took, time.Since(began))
				if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), name) && i < 3 {
					t.Fatalf("%s: %s answers %s: %s (%v)", mood, path, resp.Status, text, err)
				}
				switch warns := strings.Contains(resp.Header.Get("Warning"), "cut off"); {
				case warns && !warned:
					late = true
				case !warns && warned && i < 3:
					t.Errorf("%s: %s has the warning %q", mood, path, resp.Header.Get("Warning"))
				}
			}
		}
		calls := p.calls.Load() - before
		slices.Sort(took)
		t.Logf("%s: %d reads: p50 %v, p99 %v, most %v; %d calls of etcd", mood, len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1], calls)
		// The beat asks as well, and the follower.
		if warned && calls > int64(len(took)/4) || !warned && !late && calls < rounds {
			t.Errorf("%s: %d reads made %d calls of etcd", mood, len(took), calls)
		}
		for _, verb := range [][]string{{"get", "svc"}, {"explain", "svc/" + name}, {"describe", "svc/" + name}} {
			began := time.Now()
			out, errOut, _ := f.boxes[0].Svcctl(verb[0], verb[1:]...)
			t.Logf("%s: svcctl %s takes %v", mood, verb[0], time.Since(began))
			if !strings.Contains(out, name) || warned && !strings.Contains(out+errOut, "cut off") {
				t.Errorf("%s: svcctl %v: %s%s", mood, verb, out, errOut)
			}
		}
	}
	f.state(0, "Following")
	read(passing, false)
	for _, mood := range []string{silent, refusing, slow} {
		p.be(mood)
		began := time.Now()
		out, code := f.apply(0, f.web("cut-"+mood)...)
		t.Logf("%s: the first write is answered after %v: %s", mood, time.Since(began), out)
		if code == 0 {
			t.Errorf("%s: a write is accepted: %s", mood, out)
		}
		f.state(0, "CutOff")
		read(mood, true)
		p.be(passing)
		f.state(0, "Following")
	}
	eventually(t, time.Minute, func() error {
		if out, code := f.apply(0, f.web("later")...); code != 0 {
			return fmt.Errorf("a write after it: %s", out)
		}
		return nil
	})
	f.serves("later")
}
