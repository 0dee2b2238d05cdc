package parts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/dns"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/manifest"
)

const headless = `
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: []
endpoints: [{addresses: [%s]}]
`

// TestDNSFollows: after a step names are what the store says, whether or not the kernel has it.
func TestDNSFollows(t *testing.T) {
	memory := faulty.NewMemory()
	var objects *store.Store
	var part *DNS
	var resolver *net.Resolver
	start := func() {
		var err error
		memory = memory.Reopen()
		if objects, err = store.Open(memory, store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}); err != nil {
			t.Fatal(err)
		}
		server, err := dns.Listen(dns.Config{Addresses: []string{"127.0.0.1:0"}, Domain: "cluster.local"}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		part = NewDNS(server, func() *store.Store { return objects })
		ended := make(chan error)
		ctx, cancel := context.WithCancel(context.Background())
		run := part.Run // of this one: the variable changes with the next start
		go func() { ended <- run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, server.Addresses()[0].String())
		}}
	}
	files := map[string]*manifest.File{}
	sync := func(text string) {
		t.Helper()
		if delete(files, "db.yaml"); text != "" {
			files["db.yaml"] = manifest.Decode("db.yaml", []byte(text), manifest.DefaultLimits())
		}
		if _, err := objects.SyncFiles(manifest.FilesOf(files)); err != nil {
			t.Fatal(err)
		}
	}
	lookup := func(when, want string) {
		t.Helper()
		addrs, err := resolver.LookupHost(t.Context(), "db.default.svc.cluster.local.")
		got := strings.Join(addrs, " ")
		var failure *net.DNSError
		switch {
		case errors.As(err, &failure) && failure.IsNotFound:
			got = "not found"
		case errors.As(err, &failure) && failure.IsTemporary:
			got = "unknown"
		}
		if got != want {
			t.Errorf("%s: %s, %v; want %s", when, got, err, want)
		}
	}
	facts := &node.Facts{Addresses: []node.Address{{Prefix: netip.MustParsePrefix("192.0.2.1/24")}}}
	start()
	part.Stepped(reconcile.Step{Facts: facts})
	lookup("before the manifests were read", "unknown")
	sync(fmt.Sprintf(headless, "10.1.0.1"))
	part.Stepped(reconcile.Step{Facts: facts, Applied: true})
	lookup("stored", "10.1.0.1")
	sync(fmt.Sprintf(headless, "10.1.0.2"))
	lookup("before the step", "10.1.0.1")
	part.Stepped(reconcile.Step{Facts: facts}) // the kernel refused something
	lookup("after a step that failed", "10.1.0.2")
	start()
	part.Stepped(reconcile.Step{Facts: facts})
	lookup("after a restart, before the manifests were read", "10.1.0.2")
	sync("")
	part.seen = 0 // as when there were more changes than the store remembers
	part.Stepped(reconcile.Step{Facts: facts, Applied: true})
	lookup("removed", "not found")
}
