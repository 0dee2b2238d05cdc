package reconcile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// What the appliance says of a Service is what it has programmed, not what the objects offer.
func TestServiceState(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("other.yaml", web("other", "10.96.0.20", "10.1.0.9"))
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1", "10.96.0.30", "10.96.0.20"))
	r.step()
	s := r.grants.State("default", "web", netip.AddrPort{})
	if len(s.Ports) != 1 {
		t.Fatalf("%+v", s)
	}
	p := s.Ports[0]
	if got := strings.Join(p.Endpoints, " "); got != "10.1.0.1:8080" {
		t.Errorf("the endpoints are %s", got)
	}
	if p.Protocol != "TCP" || p.Family != "IPv4" || len(p.Frontends) != 1 || p.Frontends[0] != "10.96.0.10:80" {
		t.Errorf("the port is %+v", p)
	}
	if s := r.grants.State("default", "none", netip.AddrPort{}); len(s.Ports) != 0 {
		t.Errorf("of nobody: %+v", s)
	}
	r.write("web.yaml", "")
	r.step()
	if s := r.grants.State("default", "web", netip.AddrPort{}); len(s.Ports) != 0 {
		t.Errorf("of one that is gone: %+v", s)
	}
}

// Test1156_clients_that_may_not_connect: the state of a Service has no endpoint for a client that its source ranges exclude, and one at an address without
// them.
func Test1156_clients_that_may_not_connect(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", strings.NewReplacer(
		"metadata: {name: web}", "metadata: {name: web, annotations: {svcctl.io/source-ranges-apply: all}}",
		"spec: {", "spec: {type: LoadBalancer, externalIPs: [198.51.100.4], loadBalancerSourceRanges: [203.0.113.0/24], ",
	).Replace(web("web", "10.96.0.10", "10.1.0.1")))
	r.step()
	for client, want := range map[string]string{
		"203.0.113.9": "[{10.96.0.10:80 10.1.0.1:8080 false false} {198.51.100.4:80 10.1.0.1:8080 false false}]",
		"192.0.2.9":   "[{10.96.0.10:80 10.1.0.1:8080 false false} {198.51.100.4:80  false true}]",
	} {
		s := r.grants.State("default", "web", netip.AddrPortFrom(netip.MustParseAddr(client), 0))
		var chosen []wire.Chosen
		for _, c := range s.Ports[0].Chosen {
			if !strings.HasPrefix(c.Frontend, ":") {
				chosen = append(chosen, c)
			}
		}
		if got := fmt.Sprint(chosen); got != want {
			t.Errorf("%s: %s, want %s", client, got, want)
		}
	}
}

// While rules wait to be put right, the status says that they are away.
func TestRulesAway(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	away := func() bool { return r.board.Status().RulesAway }
	if away() {
		t.Error("away before anything happened")
	}
	i := uint32(1)
	for ; r.meddle(i); i++ {
		if away() {
			t.Fatal("away after it was put right")
		}
	}
	if !away() {
		t.Error("not away while the heal is due later")
	}
	r.clock = r.clock.Add(pauseLast)
	r.step()
	if away() {
		t.Error("away after the heal")
	}
}

// A Service that a file declares and that could not be stored is told apart from one that nobody
// declares.
func TestNotStored(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	ref := func(name string) object.Ref {
		return object.Ref{Kind: object.KindService, Namespace: "default", Name: name}
	}
	r.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Refuse })
	r.write("b.yaml", web("late", "10.96.0.11", "10.1.0.1"))
	r.step()
	s := r.board.NotStored(ref("late"))
	if s == nil || s.File != "b.yaml" || s.Line == 0 || !strings.Contains(s.Why, faulty.ErrInjected.Error()) {
		t.Fatalf("%+v", s)
	}
	if s := r.board.NotStored(ref("none")); s != nil {
		t.Errorf("of nobody: %+v", s)
	}
	r.engine.Inject(nil)
	r.step()
	if s := r.board.NotStored(ref("late")); s != nil {
		t.Errorf("once stored: %+v", s)
	}
}

// The addresses without an answer are looked for among the Services that have one in a network of the box, as these come and
// go, not among all of them.
func Test1083_only_services_near_are_looked_at(t *testing.T) {
	g := NewGrants(nil, nil)
	port := func(id, addr string) nft.ServicePort {
		return nft.ServicePort{ID: id, Family: nft.IPv4, Protocol: nft.TCP, Frontends: []nft.Frontend{{Addr: netip.MustParseAddr(addr), Port: 80}}}
	}
	host := func(prefixes ...netip.Prefix) *Host {
		return &Host{Box: nft.Box{Interfaces: []nft.Interface{{Index: 1 << 30, Name: "lan", Prefixes: prefixes}}}}
	}
	want := func(near int, addresses ...string) {
		t.Helper()
		var got []string
		list, _ := g.Unanswered(10)
		for _, u := range list {
			got = append(got, u.Address+" "+u.Services[0])
		}
		if len(g.near) != near || !slices.Equal(got, addresses) {
			t.Errorf("%d Services are near, and unanswered are %q; want %d and %q", len(g.near), got, near, addresses)
		}
	}
	lan := netip.MustParsePrefix("192.0.2.0/24")
	var far []Service
	for i := range 1000 {
		key := fmt.Sprintf("default/far%d", i)
		far = append(far, Service{Key: key, Ports: []nft.ServicePort{port(key+"/p", fmt.Sprintf("10.96.%d.%d", i/250, i%250))}})
	}
	g.Planned(host(lan), append(far, Service{Key: "default/web", Ports: []nft.ServicePort{port("default/web/p", "192.0.2.7")}}))
	want(1, "192.0.2.7 default/web")
	g.Planned(nil, []Service{{Key: "default/web", Ports: []nft.ServicePort{port("default/web/p", "192.0.2.8")}}})
	want(1, "192.0.2.8 default/web")
	g.Planned(nil, []Service{{Key: "default/web", Ports: []nft.ServicePort{port("default/web/p", "10.96.9.9")}}})
	want(0)
	g.Planned(host(netip.MustParsePrefix("10.96.9.0/24")), nil)
	want(1, "10.96.9.9 default/web")
	g.Planned(nil, []Service{{Key: "default/web"}})
	want(0)
}

// Who asks for changes in time gets those, else all Services.
func TestGrantsForgetChanges(t *testing.T) {
	g := NewGrants(nil, nil)
	service := func(n int) Service {
		key := fmt.Sprintf("default/s%d", n)
		return Service{Key: key, Ports: []nft.ServicePort{{ID: key, Family: nft.IPv4, Frontends: []nft.Frontend{{Port: uint16(n)}}}}}
	}
	known := map[string][]nft.ServicePort{}
	var state int
	whole := 0
	for n := range 20_000 {
		if n%3 == 2 {
			g.Planned(nil, []Service{{Key: service(n / 2).Key}})
		} else {
			g.Planned(nil, []Service{service(n)})
		}
		if n%100 != 0 && n != 19_999 || n > 5_000 && n < 6_500 {
			continue
		}
		changed, all, now := g.Since(state)
		if state = now; all {
			whole++
			known = changed
			continue
		}
		for key, ports := range changed {
			if known[key] = ports; len(ports) == 0 {
				delete(known, key)
			}
		}
		if of, _ := g.Served(); len(of) != len(known) || len(changed) > 101 {
			t.Fatalf("after %d changes: %d Services of %d, by %d changes", n, len(known), len(of), len(changed))
		}
	}
	if of, _ := g.Served(); whole < 2 || whole > 50 || !maps.EqualFunc(of, known, func(a, b []nft.ServicePort) bool { return a[0].ID == b[0].ID }) {
		t.Errorf("%d Services of %d, all of them %d times", len(known), len(of), whole)
	}
}

func TestGrantsChanges(t *testing.T) {
	g := NewGrants(nil, nil)
	port := func(port uint16, endpoint string, change func(p *nft.ServicePort)) []nft.ServicePort {
		p := nft.ServicePort{
			ID: "default/web", Protocol: nft.TCP, Frontends: []nft.Frontend{{Addr: netip.MustParseAddr("10.96.0.10"), Port: port}},
			Pools: [nft.NumPools][]netip.AddrPort{nft.PoolCluster: {netip.MustParseAddrPort(endpoint)}},
		}
		change(&p)
		return []nft.ServicePort{p}
	}
	nothing := func(*nft.ServicePort) {}
	relayed := func(p *nft.ServicePort) { p.Relay[nft.PoolCluster] = netip.MustParseAddrPort("127.0.0.1:1000") }
	for _, step := range []struct {
		what  string
		ports []nft.ServicePort
		rises bool
	}{
		{"a Service", port(80, "10.1.2.11:80", nothing), true},
		{"another endpoint", port(80, "10.1.2.12:80", nothing), false},
		{"another frontend", port(81, "10.1.2.12:80", nothing), true},
		{"a relay", port(81, "10.1.2.12:80", relayed), true},
		{"another endpoint behind a relay", port(81, "10.1.2.13:80", relayed), true},
		{"a source that leaves", port(81, "10.1.2.13:80", func(p *nft.ServicePort) { p.Egress.Sources = []netip.Addr{netip.MustParseAddr("10.1.2.13")} }), true},
		{"no Service", nil, true},
	} {
		_, _, before := g.Since(0)
		g.Planned(nil, []Service{{Key: "default/web", Ports: step.ports}})
		changed, all, now := g.Since(before)
		if _, has := changed["default/web"]; all || has != step.rises || (now != before) != step.rises || len(changed["default/web"]) != len(step.ports) && has {
			t.Errorf("%s: the changes are %v (all: %t), and the count rises: %t", step.what, changed, all, now != before)
		}
		if got := g.Of("default/web"); len(got) != len(step.ports) || len(got) > 0 && got[0].Pools[nft.PoolCluster][0] != step.ports[0].Pools[nft.PoolCluster][0] {
			t.Errorf("%s: the Service has %+v", step.what, got)
		}
	}
}
