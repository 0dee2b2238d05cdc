package dns

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"svcctl.io/svcctl/appliance/resolve"
)

// TestNotComplete: before everything is known no name of ours is denied, and those that
// are known are answered.
func TestNotComplete(t *testing.T) {
	cfg := config()
	cfg.Namespaces = []ClientNamespace{{netip.MustParsePrefix("127.0.0.0/8"), "default"}}
	s := listenOn(t, cfg)
	check := func(when string, wants map[string]string) {
		t.Helper()
		for name, want := range wants {
			kind := dns.TypeA
			if strings.HasSuffix(name, "arpa.") {
				kind = dns.TypePTR
			}
			if got := text(ask(t, s, "udp", question(name, kind))); got != want {
				t.Errorf("%s: %s:\n got %s\nwant %s", when, name, got, want)
			}
		}
	}
	const web, none = "web.default.svc.cluster.local.", "none.default.svc.cluster.local."
	unknown := map[string]string{none: "SERVFAIL", "1.0.96.10.in-addr.arpa.": "SERVFAIL", "none.": "SERVFAIL", "six.default.svc.cluster.local.": "SERVFAIL",
		"gone.default.svc.cluster.local.": "SERVFAIL", "example.com.": refused}
	check("at first", map[string]string{web: "SERVFAIL", "web.": "SERVFAIL"})
	check("at first", unknown)
	s.Update(parse(t, everything))
	check("after the first update", map[string]string{web: "NOERROR aa; " + web + " A 10.96.0.10", "web.": "NOERROR aa; web. A 10.96.0.10",
		"10.0.96.10.in-addr.arpa.": "NOERROR aa; 10.0.96.10.in-addr.arpa. PTR " + web})
	check("after the first update", unknown)
	s.Complete()
	check("in the end", map[string]string{web: "NOERROR aa; " + web + " A 10.96.0.10", none: noName, "none.": refused,
		"1.0.96.10.in-addr.arpa.": "NXDOMAIN aa; authority: 96.10.in-addr.arpa. SOA", "six.default.svc.cluster.local.": noData})
}

// TestUpdate follows one name through its changes.
func TestUpdate(t *testing.T) {
	s := serve(t, config(), "")
	db := func(endpoints ...string) string {
		return service("db", "clusterIP: None, ports: [{name: pg, port: 5432}]") + slice("db", "IPv4", "{name: pg, port: 5432}", endpoints...)
	}
	const name = "db.default.svc.cluster.local."
	for _, step := range []struct {
		yaml, forward, reverse string
	}{
		{service("other", "clusterIP: 10.96.0.9"), noName, refused},
		{db("{addresses: [10.1.2.21]}"), "NOERROR aa; ~ A 10.1.2.21", "NOERROR aa; 21.2.1.10.in-addr.arpa. PTR 10-1-2-21.~"},
		{db("{addresses: [10.1.2.21], hostname: a}", "{addresses: [10.1.2.22]}"), "NOERROR aa; ~ A 10.1.2.21; ~ A 10.1.2.22", "NOERROR aa; 21.2.1.10.in-addr.arpa. PTR a.~"},
		{db("{addresses: [10.1.2.21], conditions: {ready: false}}", "{addresses: [10.1.2.22]}"), "NOERROR aa; ~ A 10.1.2.22", refused},
		{db("{addresses: [10.1.2.21], conditions: {ready: false}}"), noName, refused},
		{service("db", "clusterIP: 10.96.0.20"), "NOERROR aa; ~ A 10.96.0.20", refused},
		{service("db", "type: ExternalName, externalName: example.com"), "NOERROR aa; ~ CNAME example.com.", refused},
		{db("{addresses: [10.1.2.21]}"), "NOERROR aa; ~ A 10.1.2.21", "NOERROR aa; 21.2.1.10.in-addr.arpa. PTR 10-1-2-21.~"},
		{"", noName, refused}, // gone
	} {
		changed := parse(t, step.yaml)
		if step.yaml == "" {
			changed["default/db"] = resolve.Input{}
		}
		s.Update(changed)
		for question, want := range map[*dns.Msg]string{
			question(name, dns.TypeA):                        step.forward,
			question("21.2.1.10.in-addr.arpa.", dns.TypePTR): step.reverse,
		} {
			if got := text(ask(t, s, "udp", question)); got != strings.ReplaceAll(want, "~", name) {
				t.Errorf("after %s:\n got %s\nwant %s", step.yaml, got, want)
			}
		}
	}
	s.Update(map[string]resolve.Input{"default/other": {}, "default/never": {}})
	if got := text(ask(t, s, "udp", question("default.svc.cluster.local.", dns.TypeA))); got != noName {
		t.Errorf("a namespace without Services: %s", got)
	}
	if keys := s.Services(); len(keys) != 0 {
		t.Errorf("known: %v", keys)
	}
}

// TestUpdatesAddUp: whatever the way there, the index is the one that a first update
// with the final state gives.
func TestUpdatesAddUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	cfg := config()
	now := time.Unix(1, 0)
	for round := range 20 {
		x, state := newIndex(&cfg), map[string]resolve.Input{}
		for range 60 {
			name := fmt.Sprintf("s%d", rng.IntN(8))
			changed := parse(t, randomService(rng, name))
			if rng.IntN(4) == 0 {
				changed = map[string]resolve.Input{"default/" + name: {}}
			}
			maps.Copy(state, changed)
			x.update(changed, now)
		}
		fresh := newIndex(&cfg)
		fresh.update(state, now)
		for what, pair := range map[string][2]any{
			"services":   {content(&x.services), content(&fresh.services)},
			"namespaces": {content(&x.namespaces), content(&fresh.namespaces)},
			"pointers":   {content(&x.pointers), content(&fresh.pointers)},
			"population": {x.population, fresh.population},
			"owners":     {x.owners, fresh.owners},
		} {
			if !reflect.DeepEqual(pair[0], pair[1]) {
				t.Fatalf("round %d: %s are %v, want %v", round, what, pair[0], pair[1])
			}
		}
	}
}

func content(m *sync.Map) map[any]any {
	all := map[any]any{}
	m.Range(func(key, value any) bool {
		all[key] = value
		return true
	})
	return all
}

// randomService shares its addresses with others.
func randomService(rng *rand.Rand, name string) string {
	if rng.IntN(3) == 0 {
		return service(name, fmt.Sprintf("clusterIP: 10.96.0.%d, ports: [{name: http, port: 80}]", rng.IntN(5)+1))
	}
	var endpoints []string
	for i := range rng.IntN(4) {
		e := fmt.Sprintf("addresses: [10.1.2.%d], conditions: {ready: %t}", i, rng.IntN(2) == 0)
		if rng.IntN(2) == 0 {
			e += fmt.Sprintf(", hostname: h%d", rng.IntN(3))
		}
		endpoints = append(endpoints, "{"+e+"}")
	}
	return service(name, "clusterIP: None, ports: [{name: http, port: 80}]") + slice(name, "IPv4", "{name: http, port: 80}", endpoints...)
}

// TestAnswersAreOfOneMoment asks while a Service goes back and forth between two states.
func TestAnswersAreOfOneMoment(t *testing.T) {
	s := listenOn(t, config())
	state := func(host string, addrs ...string) map[string]resolve.Input {
		var endpoints []string
		for _, a := range addrs {
			endpoints = append(endpoints, fmt.Sprintf("{addresses: [%s], hostname: %s}", a, host))
		}
		return parse(t, service("db", "clusterIP: None, ports: [{name: pg, port: 5432}]")+slice("db", "IPv4", "{name: pg, port: 5432}", endpoints...))
	}
	states := []map[string]resolve.Input{state("a", "10.1.0.1", "10.1.0.2"), state("b", "10.2.0.1", "10.2.0.2", "10.2.0.3")}
	s.Update(states[0])
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for range 2 {
		asking.Go(func() {
			q := inquiry{dns.Question{Name: "_pg._tcp.db.default.svc.cluster.local.", Qtype: dns.TypeSRV, Qclass: dns.ClassINET}, "", 100}
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := s.index.answer(q)
				var all []string
				for _, rr := range slices.Concat(r.answer, r.additional) {
					fields := strings.Fields(rr.String())
					all = append(all, fields[len(fields)-1])
				}
				slices.Sort(all)
				if got := strings.Join(all, " "); got != "10.1.0.1 10.1.0.2 a.db.default.svc.cluster.local." &&
					got != "10.2.0.1 10.2.0.2 10.2.0.3 b.db.default.svc.cluster.local." {
					t.Errorf("neither of the two states: %s", got)
					return
				}
			}
		})
	}
	for i := range 3000 {
		s.Update(states[i%2])
	}
	close(stop)
	asking.Wait()
}
