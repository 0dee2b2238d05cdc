package appliance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/dns"
	"svcctl.io/svcctl/nft"
)

// withNames gives the rig a DNS server, and a resolver that asks it.
func (r *rig) withNames() *net.Resolver {
	r.t.Helper()
	cfg := DefaultConfig()
	cfg.DNSListen = []string{"127.0.0.1:0"}
	server, err := dns.Listen(cfg.dnsConfig(), slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan error)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- server.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	})
	r.loop.names = &names{server: server, store: r.store}
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server.Addresses()[0].String())
	}}
}

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

// TestNamesFollow: after a step names are what the store says, whatever the kernel says.
func TestNamesFollow(t *testing.T) {
	r := newRig(t)
	resolver := r.withNames()
	r.host()
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
	r.step()
	lookup("before the manifests were read", "unknown")

	r.write("db.yaml", fmt.Sprintf(headless, "10.1.0.1"))
	r.step()
	lookup("at first", "10.1.0.1")

	r.write("db.yaml", fmt.Sprintf(headless, "10.1.0.2"))
	r.step()
	lookup("changed", "10.1.0.2")

	r.kernel.Inject(func(*nft.Batch) error { return errors.New("out of memory") })
	r.write("db.yaml", fmt.Sprintf(headless, "10.1.0.3"))
	r.write("web.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}\n")
	r.step()
	lookup("with a kernel that refuses", "10.1.0.3")

	r.kernel.Inject(nil)
	r.start()
	resolver = r.withNames()
	r.host()
	r.step()
	lookup("after a restart, before the manifests were read", "10.1.0.3")

	r.write("db.yaml", "")
	r.loop.names.told = 0 // as when there were more changes than the store remembers
	r.step()
	lookup("removed", "not found")
}

func TestValidateDNS(t *testing.T) {
	upstreams := func(list ...string) []netip.AddrPort {
		out, err := ParseAddrPorts(list)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   []string // the start of each problem
	}{
		{"everywhere", func(c *Config) { c.DNSListen = []string{":53", "[::1]:0", "192.0.2.1:5353"} }, nil},
		{"no port", func(c *Config) { c.DNSListen = []string{"192.0.2.1", ":x"} },
			[]string{`--dns-listen "192.0.2.1": not a host and port`, `--dns-listen ":x": not a host and port`}},
		{"a dot at the end", func(c *Config) { c.ClusterDomain = "cluster.local." }, []string{`--cluster-domain "cluster.local.": not a domain`}},
		{"no domain", func(c *Config) { c.ClusterDomain = "" }, []string{`--cluster-domain "": not a domain`}},
		{"the longest domain", func(c *Config) { c.ClusterDomain = strings.Repeat("a", 28) + "." + strings.Repeat("b", 28) }, nil},
		{"a longer one", func(c *Config) { c.ClusterDomain = strings.Repeat("a", 28) + "." + strings.Repeat("b", 29) }, []string{`--cluster-domain "aaa`}},
		{"upstream", func(c *Config) {
			c.DNSListen, c.DNSUpstreams = []string{":53"}, upstreams("192.0.2.53:53", "127.0.0.1:5353")
		}, nil},
		{"itself", func(c *Config) {
			c.DNSListen, c.DNSUpstreams = []string{"192.0.2.1:53"}, upstreams("192.0.2.1:53")
		}, []string{`--dns-upstream "192.0.2.1:53": is --dns-listen 192.0.2.1:53 itself`}},
		{"itself, by another name", func(c *Config) { c.DNSListen, c.DNSUpstreams = []string{"[::]:53"}, upstreams("127.0.0.53:53") },
			[]string{`--dns-upstream "127.0.0.53:53": is --dns-listen [::]:53 itself`}},
		{"namespaces", func(c *Config) {
			c.DNSClientNamespaces, _ = ParseClientNamespaces([]string{"10.1.0.0/16=a", "10.1.1.0/24=b"})
		}, nil},
		{"no namespace", func(c *Config) {
			c.DNSClientNamespaces, _ = ParseClientNamespaces([]string{"10.1.0.0/16=A", "10.2.0.0/16="})
		},
			[]string{`--dns-client-namespaces "10.1.0.0/16=A": "A" is not a namespace`, `--dns-client-namespaces "10.2.0.0/16=": "" is not`}},
		{"two namespaces", func(c *Config) {
			c.DNSClientNamespaces, _ = ParseClientNamespaces([]string{"10.1.0.0/16=a", "10.1.2.0/16=b"})
		},
			[]string{`--dns-client-namespaces "10.1.0.0/16=b": the prefix has a namespace already`}},
	} {
		c := goodConfig()
		tt.change(&c)
		var got []string
		for _, p := range problems(t, &c) {
			got = append(got, p.Error())
		}
		if !slices.EqualFunc(got, tt.want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestParseDNS(t *testing.T) {
	if _, err := ParseAddrPorts([]string{"192.0.2.53", "192.0.2.53:0", "a:53", "[::1]:53"}); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("%v", err)
	}
	got, err := ParseClientNamespaces([]string{"10.1.2.3/16 = a", "10.1.0.0/16", "10.1.0.1=b"})
	if err == nil || strings.Count(err.Error(), "\n") != 1 || len(got) != 1 || got[0].Namespace != "a" || got[0].Prefix.String() != "10.1.0.0/16" {
		t.Errorf("%v, %v", got, err)
	}
}
