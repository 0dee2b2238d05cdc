package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

// box is an appliance that is measured, with what it takes to watch it from outside.
type box struct {
	*netlab.Appliance
	host    *router
	kernel  *kernel.Conn
	changes <-chan kernel.Change
	http    *http.Client
	flow    int // the number of the last one that packet has sent
}

// newBox prepares an appliance with Services that stand by; it is not started yet.
func newBox(b *testing.B, lab *netlab.Lab, services int) *box {
	b.Helper()
	return newBoxOf(b, lab, func(d netlab.Dir) { writeServices(d, services) })
}

// newBoxOf prepares an appliance with manifests; it is not started yet.
func newBoxOf(b *testing.B, lab *netlab.Lab, write func(netlab.Dir), flags ...string) *box {
	b.Helper()
	h := newRouter(b, lab, "gw")
	x := &box{Appliance: h.Appliance(*program, slices.Concat(boxFlags, flags)...), host: h}
	x.Patience = patience
	write(x.Manifests)
	var err error
	if x.kernel, err = kernel.Open(kernel.Options{NetNS: h.Namespace()}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { x.kernel.Close() })
	return x
}

// watch starts to listen to what is committed.
func (x *box) watch(b *testing.B) {
	b.Helper()
	var err error
	if x.changes, err = x.kernel.Watch(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// patience is how long a start may take, and a change, before it counts as failed. It is
// long: the machine may be busy, and that shows in the figures.
const patience = 2 * time.Minute

// latency is how long it takes from a change of the manifests to the kernel.
func (x *box) latency(b *testing.B, change func()) time.Duration {
	b.Helper()
	for quiet := false; !quiet; {
		select {
		case <-x.changes:
		case <-time.After(pause):
			quiet = true
		}
	}
	began := time.Now()
	change()
	timeout := time.After(patience)
	for {
		select {
		case c := <-x.changes:
			if c.Ours {
				return time.Since(began)
			}
		case <-timeout:
			b.Fatalf("nothing was committed\n%s", x.Log())
		}
	}
}

// pause lies between two changes, so that each is alone.
const pause = 70 * time.Millisecond

// pid is the process, found by its socket: the name is its own.
func (x *box) pid(b *testing.B) string {
	b.Helper()
	lock, err := os.ReadFile(filepath.Join(x.Data, "lock"))
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(string(lock))
}

// cpu is the CPU time that the process has taken.
func (x *box) cpu(b *testing.B) time.Duration { return cpuOf(b, x.pid(b)) }

// cpuOf is the CPU time that a process has taken.
func cpuOf(b *testing.B, pid string) (total time.Duration) {
	b.Helper()
	threads, err := filepath.Glob("/proc/" + pid + "/task/*/schedstat")
	if err != nil || len(threads) == 0 {
		b.Fatalf("no threads of %s: %v", pid, err)
	}
	for _, thread := range threads {
		content, err := os.ReadFile(thread)
		if err != nil {
			continue // it has ended
		}
		ns, _, _ := strings.Cut(string(content), " ")
		n, err := strconv.ParseInt(ns, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		total += time.Duration(n)
	}
	return total
}

// field reads a line of /proc/PID/status, and of its threads if there are several.
func (x *box) field(b *testing.B, pattern, name string) (sum int) {
	b.Helper()
	files, err := filepath.Glob("/proc/" + x.pid(b) + "/" + pattern)
	if err != nil {
		b.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(content)) {
			if key, value, _ := strings.Cut(line, ":"); key == name {
				n, err := strconv.Atoi(strings.Fields(value)[0])
				if err != nil {
					b.Fatal(err)
				}
				sum += n
			}
		}
	}
	return sum
}

// memory is the resident memory, in MiB: now, and the most there was.
func (x *box) memory(b *testing.B) (now, peak int) {
	return x.field(b, "status", "VmRSS") / 1024, x.field(b, "status", "VmHWM") / 1024
}

// get asks the API.
func (x *box) get(b *testing.B, path string) []byte {
	b.Helper()
	return x.ask(b, http.MethodGet, path, "", "")
}

// ask makes a request of the API, and wants it to succeed.
func (x *box) ask(b *testing.B, method, path, kind, body string) []byte {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), method, "http://svcctl"+path, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	request.Header.Set("Content-Type", kind)
	resp, err := x.client().Do(request)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= http.StatusBadRequest {
		b.Fatalf("%s %s: %s, %v: %.300s", method, path, resp.Status, err, answer)
	}
	return answer
}

// client keeps its connection, as a controller does.
func (x *box) client() *http.Client {
	if x.http == nil {
		x.http = &http.Client{Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", x.Socket) },
		}}
	}
	return x.http
}

// settle waits until everything that was written is in the kernel.
func (x *box) settle(b *testing.B) { x.get(b, "/svcctl/v1/wait?for=synced&timeout=120s") }

// allocated is how many bytes and objects the process has allocated so far.
func (x *box) allocated(b *testing.B) (size, objects int64) {
	b.Helper()
	for line := range bytes.Lines(x.get(b, "/debug/pprof/heap?debug=1")) {
		for name, value := range map[string]*int64{"TotalAlloc": &size, "Mallocs": &objects} {
			if n, ok := strings.CutPrefix(string(line), "# "+name+" = "); ok {
				if _, err := fmt.Sscan(n, value); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	return size, objects
}

// bare returns the kernel's state of the box as a transaction that creates it from nothing: all
// elements, and the chains that they go to, but no rules.
func (x *box) bare(b *testing.B) *nft.Batch {
	b.Helper()
	have, _, err := x.kernel.Read()
	if err != nil {
		b.Fatal(err)
	}
	var batch nft.Batch
	for _, f := range nft.Families {
		if have[f] == nil {
			continue
		}
		batch.Ops = append(batch.Ops, nft.AddTable{Family: f})
		for name := range have[f].Chains {
			batch.Ops = append(batch.Ops, nft.AddChain{Family: f, Chain: nft.Chain{Name: name}})
		}
		for _, set := range have[f].Sets {
			batch.Ops = append(batch.Ops, nft.AddSet{Family: f, Set: set.Set})
			if set.Dynamic || len(set.Elements) == 0 {
				continue
			}
			elements := make([]nft.Element, 0, len(set.Elements))
			for key, data := range set.Elements {
				elements = append(elements, nft.Element{Key: key, Data: data})
			}
			batch.Ops = append(batch.Ops, nft.AddElements{Family: f, Set: set.Set, Elements: elements})
		}
	}
	return &batch
}
