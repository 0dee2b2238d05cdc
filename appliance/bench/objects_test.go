package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

const (
	manyObjects  = 10_000
	manyLists    = 8
	manyWatchers = 100
	manyEvents   = 500
)

// BenchmarkObjects measures applying, listing and watching many objects over the API.
func BenchmarkObjects(b *testing.B) {
	x := newBox(b, netlab.New(b), 0)
	x.Start()
	x.applyMany(b, manyObjects)
	x.listMany(b)
	x.watchMany(b)
}

// applyMany gives `svcctl apply` so many Services, each with an EndpointSlice, and waits
// until all are in the kernel.
func (x *box) applyMany(b *testing.B, services int) {
	b.Helper()
	section := "Objects: svcctl apply of " + number(services) + " Services and EndpointSlices"
	dir := b.TempDir()
	for first := 0; first < services; first += 1000 {
		var docs strings.Builder
		for i := first; i < first+1000; i++ {
			name := fmt.Sprintf("many%05d", i)
			docs.WriteString("---\n" + service(name, "clusterIP: "+serviceAddr(i).String(), "TCP"))
			docs.WriteString(slice(name, "TCP", []netip.Addr{endpointAddr(i, 0)}))
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%05d.yaml", first)), []byte(docs.String()), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	x.forgetPeak(b)
	before, _ := x.memory(b)
	apply := func(what string) {
		began, cpu := time.Now(), x.cpu(b)
		if _, stderr, err := x.host.Run(*program, "apply", "--socket", x.Socket, "-f", dir, "-o", "name", "--wait=120s"); err != nil {
			b.Fatalf("svcctl apply: %v: %.500s", err, stderr)
		}
		_, peak := x.memory(b)
		results.add(section, what, ms(time.Since(began)), fmt.Sprintf("CPU of the appliance %s; memory %d MiB before, at most %d MiB", ms(x.cpu(b)-cpu), before, peak))
	}
	apply("new, until all is in the kernel")
	apply("again, unchanged")
}

// listMany lists all Services: once, in turns with others, and as a client that asks for
// tables.
func (x *box) listMany(b *testing.B) {
	const section = "Objects: list of 10,000 Services"
	for _, form := range []struct{ name, accept string }{
		{"JSON", "application/json"},
		{"Table", "application/json;as=Table;v=v1;g=meta.k8s.io"},
	} {
		x.forgetPeak(b)
		before, _ := x.memory(b)
		began := time.Now()
		size := x.list(b, form.accept)
		took := time.Since(began)
		_, peak := x.memory(b)
		results.add(section, form.name, ms(took), fmt.Sprintf("%.1f MB; memory %d MiB before, at most %d MiB", float64(size)/1e6, before, peak))
	}
	x.forgetPeak(b)
	before, _ := x.memory(b)
	began := time.Now()
	var lists sync.WaitGroup
	for range manyLists {
		lists.Go(func() { x.list(b, "application/json") })
	}
	lists.Wait()
	_, peak := x.memory(b)
	results.add(section, number(manyLists)+" at once", ms(time.Since(began)), fmt.Sprintf("memory %d MiB before, at most %d MiB", before, peak))
}

// list reads a list of all Services to its end and gives its size in bytes.
func (x *box) list(b *testing.B, accept string) int64 {
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://svcctl/api/v1/services", nil)
	if err != nil {
		b.Error(err)
		return 0
	}
	request.Header.Set("Accept", accept)
	resp, err := x.client().Do(request)
	if err != nil {
		b.Error(err)
		return 0
	}
	defer resp.Body.Close()
	size, err := io.Copy(io.Discard, resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		b.Errorf("list: %s, %v", resp.Status, err)
	}
	return size
}

// forgetPeak makes the memory now the most there was (proc(5), clear_refs).
func (x *box) forgetPeak(b *testing.B) {
	b.Helper()
	if err := os.WriteFile("/proc/"+x.pid(b)+"/clear_refs", []byte("5"), 0); err != nil {
		b.Fatal(err)
	}
}

// watchMany has 100 watchers see 500 changes.
func (x *box) watchMany(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	x.ask(b, http.MethodPost, "/api/v1/namespaces/default/configmaps", asJSON, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"watched"}}`)
	var ready, seen sync.WaitGroup
	for range manyWatchers {
		ready.Add(1)
		seen.Go(func() {
			if err := x.follow(ctx, ready.Done); err != nil {
				b.Error(err)
			}
		})
	}
	ready.Wait()
	began, cpu := time.Now(), x.cpu(b)
	for i := range manyEvents {
		x.ask(b, http.MethodPatch, "/api/v1/namespaces/default/configmaps/watched", asMerge, `{"data":{"n":"`+strconv.Itoa(i+1)+`"}}`)
	}
	written := time.Since(began)
	seen.Wait()
	took := time.Since(began)
	results.add("Objects: 100 watchers", number(manyEvents)+" changes, one after the other, until all have seen all", ms(took),
		fmt.Sprintf("%s after the last was written; CPU of the appliance %.1f µs an event and watcher",
			ms(took-written), (x.cpu(b)-cpu).Seconds()*1e6/manyEvents/manyWatchers))
}

// follow watches until it has seen the last change. It says when it stands.
func (x *box) follow(ctx context.Context, ready func()) error {
	client := http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", x.Socket) },
	}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://svcctl/api/v1/namespaces/default/configmaps?watch=true", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(request)
	ready()
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	last := []byte(`"n":"` + strconv.Itoa(manyEvents) + `"`)
	events := bufio.NewScanner(resp.Body)
	for events.Scan() {
		if bytes.Contains(events.Bytes(), last) {
			return nil
		}
	}
	return fmt.Errorf("the watch ended before the last change: %w", io.ErrUnexpectedEOF)
}
