package bench

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// farm is servers that answer health checks, each as it is told.
type farm struct {
	mu     sync.Mutex
	failed map[string]bool
	turned map[string]time.Time // when one answered otherwise for the first time
	began  chan time.Time       // has the time when the one that is awaited did
}

// ServeHTTP answers for the address that was asked.
func (f *farm) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	addr, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
	f.mu.Lock()
	failed := f.failed[addr]
	first := failed && f.turned[addr].IsZero()
	if first {
		f.turned[addr] = time.Now()
		f.began <- f.turned[addr]
	}
	f.mu.Unlock()
	if failed {
		http.Error(w, "out of order", http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "ok")
}

// fail makes one of the servers answer that it does not work, and gives the time when it did.
func (f *farm) fail(b *testing.B, addr netip.Addr) time.Time {
	b.Helper()
	f.mu.Lock()
	f.failed[addr.String()] = true
	f.mu.Unlock()
	select {
	case at := <-f.began:
		return at
	case <-time.After(patience):
		b.Fatalf("%v was not asked", addr)
		return time.Time{}
	}
}

// flips measures the time from the answer of a server that does not work to the map without it. The
// threshold is one failure, so that this answer decides. Services have so many endpoints each, of which
// some fall.
func (x *box) flips(b *testing.B, lab *netlab.Lab, of, falling int) []time.Duration {
	b.Helper()
	server := lab.Host("farm")
	lab.Segment("farm").Attach(x.host.Host, "farm0", "10.9.0.1/24").Attach(server, "eth0", "10.9.0.2/24")
	server.Own("10.9.1.0/24")
	x.host.Route("10.9.1.0/24", "10.9.0.2")
	f := &farm{failed: map[string]bool{}, turned: map[string]time.Time{}, began: make(chan time.Time, 1)}
	var l net.Listener
	if err := server.Do(func() (err error) { l, err = net.Listen("tcp4", "0.0.0.0:8080"); return err }); err != nil {
		b.Fatal(err)
	}
	serving := &http.Server{Handler: f}
	go func() { _ = serving.Serve(l) }()
	b.Cleanup(func() { _ = serving.Close() })

	// Each falls once: who falls often is held back.
	var falls []netip.Addr
	var docs []string
	all := 0
	for range 2 * *rounds / falling {
		servers := make([]netip.Addr, of)
		for i := range servers {
			all++
			servers[i] = netip.AddrFrom4([4]byte{10, 9, 1, byte(all)})
		}
		falls = append(falls, servers[:falling]...)
		name := fmt.Sprintf("farm%02d", len(docs))
		docs = append(docs, strings.Replace(service(name, "", "TCP"), "metadata:", `metadata:
  annotations:
    svcctl.io/health-check: http:8080/
    svcctl.io/health-check-interval: 200ms
    svcctl.io/health-check-unhealthy-threshold: "1"
    svcctl.io/health-check-healthy-threshold: "1"`, 1)+slice(name, "TCP", servers))
	}
	x.Manifests.Write("farm.yaml", strings.Join(docs, "---\n"))
	x.settle(b)
	for deadline := time.Now().Add(patience); strings.Count(string(x.get(b, "/svcctl/v1/health")), `"passes"`) < all; time.Sleep(pause) {
		if time.Now().After(deadline) {
			b.Fatalf("the servers are not all up: %.500s", x.get(b, "/svcctl/v1/health"))
		}
	}
	var took []time.Duration
	for _, addr := range falls {
		var began time.Time
		total := time.Now()
		whole := x.latency(b, func() { total = time.Now(); began = f.fail(b, addr) })
		took = append(took, whole-began.Sub(total))
	}
	return took
}

// BenchmarkFlip is the time from the answer that decides to the kernel, at boxes of several sizes.
func BenchmarkFlip(b *testing.B) {
	for _, farm := range []struct{ of, falling int }{
		{4, 1},
		// Beyond eight endpoints a number that no other Service has needs a chain of its own, and the kernel
		// walks the map for its rule.
		{2 * *rounds, 2**rounds - 1},
	} {
		var smallest []time.Duration
		for _, services := range sizes[:3] {
			b.Run(fmt.Sprintf("%dof%d", services, farm.of), func(b *testing.B) {
				lab := netlab.New(b)
				x := newBox(b, lab, services)
				x.Start()
				x.watch(b)
				took := x.flips(b, lab, farm.of, farm.falling)
				if smallest == nil {
					smallest = took
				}
				latencies("Health checks", fmt.Sprintf("from the answer that decides to the kernel, one of %d endpoints", farm.of), services, took, smallest)
			})
		}
	}
}
