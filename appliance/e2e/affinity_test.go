package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// clients is how many client addresses a sticky Service is tried with.
const clients = 40

// sticky writes and serves a Service with session affinity, under its cluster IP, a
// node port and a load balancer IP.
func sticky(t *testing.T, seconds int, hosts func(b *box) []*netlab.Host) *box {
	t.Helper()
	b := newBox(t, nil)
	b.write("web.yaml", b.stickyDocuments(seconds, hosts(b)...))
	b.svcctl.Start()
	return b
}

func (b *box) stickyDocuments(seconds int, hosts ...*netlab.Host) func(f family) []string {
	affinity := "sessionAffinity: None"
	if seconds > 0 {
		affinity = fmt.Sprintf("sessionAffinity: ClientIP\nsessionAffinityConfig: {clientIP: {timeoutSeconds: %d}}", seconds)
	}
	return func(f family) []string {
		return []string{
			f.service("web", "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4), affinity, "ports:",
				"- {name: p80, port: 80, nodePort: "+f.port(30080)+"}",
				"- {name: udp, port: 53, protocol: UDP, nodePort: "+f.port(30053)+"}"),
			f.slice("web", "p80: 80, udp: 53/UDP", hosts...),
		}
	}
}

// choices are the endpoints that clients of EXT are sent to, by client.
type choices [clients]string

// choose asks once from every client address.
func (b *box) choose(t *testing.T, f family, network string, to netip.AddrPort) choices {
	t.Helper()
	var chosen choices
	tally := netlab.AskEach(clients, func(i int) (netlab.Reply, error) {
		reply, err := b.EXT.Ask(network, to, netlab.From(f.client(i)), patiently)
		chosen[i] = reply.Server
		return reply, err
	})
	if len(tally.Failures) != 0 {
		t.Fatalf("%d clients, %s to %s: %s", clients, network, to, tally)
	}
	return chosen
}

// differ counts the clients that were sent elsewhere.
func (c choices) differ(other choices) int {
	n := 0
	for i := range c {
		if c[i] != other[i] {
			n++
		}
	}
	return n
}

func (c choices) distinct() int {
	seen := map[string]bool{}
	for _, name := range c {
		seen[name] = true
	}
	return len(seen)
}

func (b *box) same(t *testing.T, what string, before, after choices) {
	t.Helper()
	if n := before.differ(after); n != 0 {
		t.Errorf("%s: %d of %d clients were sent to another endpoint", what, n, clients)
	}
}

func Test076_affinity(t *testing.T) {
	b := sticky(t, 10800, l1r1)
	b.each(t, func(t *testing.T, b *box, f family) {
		for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
			to := f.at(f.vip(41), port)
			if tally := b.EXT.AskMany(1, network, to, patiently); len(tally.Servers) != 1 {
				t.Errorf("%s: %s", network, tally)
			}
			if tally := b.EXT.AskMany(50, network, to, patiently); len(tally.Failures) != 0 || len(tally.Servers) != 1 {
				t.Errorf("%s, one client: %s, want one endpoint", network, tally)
			}
			tally := netlab.AskEach(100, func(i int) (netlab.Reply, error) {
				return b.EXT.Ask(network, to, netlab.From(f.client(i)), patiently)
			})
			if len(tally.Failures) != 0 || len(tally.Servers) != 2 {
				t.Errorf("%s, 100 clients: %s, want two endpoints", network, tally)
			}
		}
	})
}

// A client is not bound to an endpoint that has never answered: it gets another pick with its
// next tries, comes back to the endpoint that answered, and needs no process for that.
func Test076_affinity_needs_an_answer(t *testing.T) {
	const nobodys = 8099 // a port without a server
	b := newBox(t, nil)
	b.R1.LoadNft("table inet silent {\n chain input {\n type filter hook input priority filter\n meta l4proto { tcp, udp, sctp } th dport { 80, 53 } drop\n }\n }\n")
	b.GW1.Serve("tcp", 80)
	b.GW1.Serve("udp", 53)
	dead := map[string]func(f family) string{ // a slice of the Service
		"silent":   func(f family) string { return "p80: 80, udp: 53/UDP, sctp: 53/SCTP" },
		"refusing": func(f family) string { return fmt.Sprintf("p80: %d, udp: %[1]d/UDP, sctp: %[1]d/SCTP", nobodys) },
	}
	hosts := map[string]*netlab.Host{"silent": b.R1, "refusing": b.R2}
	type try struct {
		kind string
		live *netlab.Host
		n    int // of the cluster IP
	}
	tries := []try{{"silent", b.L1, 51}, {"refusing", b.L1, 52}, {"silent", b.GW1, 53}, {"refusing", b.GW1, 54}}
	b.write("web.yaml", func(f family) (docs []string) {
		for _, try := range tries {
			name := fmt.Sprint("web", try.n)
			docs = append(docs,
				f.service(name, "clusterIP: "+f.vip(try.n), "sessionAffinity: ClientIP", "ports:",
					"- {name: p80, port: 80}", "- {name: udp, port: 53, protocol: UDP}", "- {name: sctp, port: 53, protocol: SCTP}"),
				f.namedSlice(name+"-live", name, "p80: 80, udp: 53/UDP, sctp: 53/SCTP", try.live),
				f.namedSlice(name+"-dead", name, dead[try.kind](f), hosts[try.kind]))
		}
		return docs
	})
	b.svcctl.Start()
	b.svcctl.Stop()
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, try := range tries {
			for network, port := range map[string]uint16{"tcp": 80, "udp": 53, "sctp": 53} {
				if network == "sctp" && try.live.Name == b.GW1.Name {
					continue // the box has no server of it
				}
				t.Run(fmt.Sprintf("%s %s besides %s", try.kind, network, try.live.Name), func(t *testing.T) {
					b := b.in(t)
					b.answersEachClient(t, f, network, f.at(f.vip(try.n), port), try.live.Name)
				})
			}
		}
	})
}

// answersEachClient asserts that each of some new clients is answered by a host in the end, and
// from then on always.
func (b *box) answersEachClient(t *testing.T, f family, network string, to netip.AddrPort, server string) {
	t.Helper()
	ip := to.Addr().As16()
	port := uint16(ip[15]) << 8
	failed := netlab.AskEach(16, func(i int) (reply netlab.Reply, err error) {
		// 30 picks of one of two endpoints, no two of them within the second in which a
		// client goes on to one that is silent; as many as fit in a minute if the machine is too busy
		// to answer within a second.
		for tries, began := 0, time.Now(); tries < 30 || time.Since(began) < time.Minute; tries++ {
			// The kernel gives none of these ports to a later connection: connection tracking keeps one that a silent endpoint did not
			// answer for two minutes, with its endpoint, and a connection from the same port would go there, too.
			from := netlab.FromPort(port + uint16(tries%256))
			// real time: one of many tries, which may have a silent endpoint
			if reply, err = b.EXT.Ask(network, to, netlab.From(f.client(i)), from, netlab.Within(1100*time.Millisecond)); err == nil {
				break
			}
		}
		for range 5 {
			if err == nil {
				reply, err = b.EXT.Ask(network, to, netlab.From(f.client(i)), patiently)
			}
		}
		return reply, err
	})
	if len(failed.Failures) > 0 || len(failed.Servers) != 1 || failed.Servers[server] == 0 {
		t.Errorf("%s", failed)
	}
}

func Test077_affinity_of_all_addresses(t *testing.T) {
	b := sticky(t, 10800, l1r1)
	b.each(t, func(t *testing.T, b *box, f family) {
		chosen := b.choose(t, f, "tcp", f.at(f.vip(41), 80))
		b.same(t, "node port", chosen, b.choose(t, f, "tcp", f.at(f.boxAddr(), f.number(30080))))
		b.same(t, "load balancer IP", chosen, b.choose(t, f, "tcp", f.at(f.lb(4), 80)))
		// The other Service port has a memory of its own.
		if b.choose(t, f, "udp", f.at(f.vip(41), 53)).differ(chosen) == 0 {
			t.Errorf("all of %d clients have the same endpoint on both ports", clients)
		}
	})
}

func Test078_affinity_timeout(t *testing.T) {
	const timeout = 5 * time.Second
	b := sticky(t, int(timeout/time.Second), l1r1)
	b.each(t, func(t *testing.T, b *box, f family) {
		to := f.at(f.vip(41), 80)
		before := time.Now()
		chosen := b.choose(t, f, "tcp", to)
		for range 2 {
			time.Sleep(3 * time.Second) // real time: the kernel counts it
			now := time.Now()
			again := b.choose(t, f, "tcp", to)
			if time.Since(before) < timeout { // else this machine was too busy to ask in time
				b.same(t, "after 3 s", chosen, again)
			}
			before, chosen = now, again
		}
		time.Sleep(6 * time.Second) // real time: the kernel counts it
		if fresh := b.choose(t, f, "tcp", to); fresh.differ(chosen) == 0 || fresh.distinct() != 2 {
			t.Errorf("after 6 s without a connection: %d of %d clients were sent elsewhere, to %d endpoints", fresh.differ(chosen), clients, fresh.distinct())
		}
	})
}

func Test079_open_connection_keeps_no_affinity(t *testing.T) {
	b := sticky(t, 2, l1r1)
	b.each(t, func(t *testing.T, b *box, f family) {
		to := f.at(f.vip(41), 80)
		var conns [clients]*netlab.Conn
		var chosen choices
		for i := range conns {
			c, err := b.EXT.Dial(to, netlab.From(f.client(i)), patiently)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			conns[i], chosen[i] = c, c.Reply.Server
		}
		for range 6 { // traffic all the time, for longer than the timeout
			time.Sleep(500 * time.Millisecond) // real time: the kernel counts it
			for _, c := range conns {
				if err := c.Echo("still here", patiently); err != nil {
					t.Fatal(err)
				}
			}
		}
		if b.choose(t, f, "tcp", to).differ(chosen) == 0 {
			t.Errorf("all of %d clients kept their endpoint by a connection alone", clients)
		}
	})
}

func Test081_affinity_survives_other_endpoints(t *testing.T) {
	b := sticky(t, 10800, l1r1)
	var chosen [2]choices
	choose := func(f family) choices { return b.choose(t, f, "tcp", f.at(f.vip(41), 80)) }
	for i, f := range families {
		chosen[i] = choose(f)
	}
	for _, hosts := range [][]*netlab.Host{{b.R2, b.L1, b.R1, b.L2}, {b.L2, b.R1, b.L1}, {b.R1, b.L1}} {
		b.rewrite("web.yaml", b.stickyDocuments(10800, hosts...))
		for i, f := range families {
			b.same(t, fmt.Sprintf("%s with %d endpoints", f, len(hosts)), chosen[i], choose(f))
		}
	}
	b.rewrite("web.yaml", b.stickyDocuments(10800, b.L1, b.R2))
	for i, f := range families {
		for client, now := range choose(f) {
			if now == "R1" || chosen[i][client] == "L1" && now != "L1" {
				t.Errorf("%s: client %d was at %s and is at %s, when R1 is replaced by R2", f, client, chosen[i][client], now)
			}
		}
	}
}

func Test082_affinity_rules_do_not_grow(t *testing.T) {
	b := newBox(t, nil)
	count := func(endpoints int) (rules, maps int) {
		b.rewrite("web.yaml", func(f family) []string {
			var list []string
			for i := range endpoints {
				list = append(list, fmt.Sprintf("{addresses: [%q]}", fmt.Sprintf(f.pick("10.181.%d.%d", "fd00:10:181::%d:%d"), 10+i/250, 1+i%250)))
			}
			return []string{
				f.service("web", "clusterIP: "+f.vip(41), "sessionAffinity: ClientIP", "ports: [{name: p80, port: 80}]"),
				f.rawSlice("web", "web", "p80: 80", list...),
			}
		})
		for line := range strings.Lines(b.GW1.Nft("-a", "list", "ruleset")) {
			line = strings.TrimSpace(line)
			switch {
			case strings.HasPrefix(line, "map "):
				maps++
			case strings.Contains(line, "# handle") && !strings.HasSuffix(strings.SplitN(line, " #", 2)[0], "{"):
				rules++
			}
		}
		return rules, maps
	}
	b.svcctl.Start()
	const few = 10 // as 1000, more than there are pick chains in any case
	fewRules, fewMaps := count(few)
	if rules, maps := count(1000); rules != fewRules || maps != fewMaps || rules == 0 || maps == 0 {
		t.Errorf("%d endpoints take %d rules and %d maps, 1000 take %d and %d", few, fewRules, fewMaps, rules, maps)
	}
}

func Test083_affinity_survives_restart(t *testing.T) {
	b := sticky(t, 600, l1r1)
	var chosen [2]choices
	for i, f := range families {
		chosen[i] = b.choose(t, f, "tcp", f.at(f.vip(41), 80))
	}
	type reading struct {
		left         map[string]int
		began, ended time.Time
	}
	remaining := func(f family) reading {
		began, left := time.Now(), map[string]int{}
		for name, elements := range b.table(t, f) {
			for _, e := range elements {
				if e.Expires > 0 {
					left[name+" "+strings.Join(e.Key, " ")] = e.Expires
				}
			}
		}
		if len(left) < clients {
			t.Fatalf("%s: %d clients are remembered, want at least %d", f, len(left), clients)
		}
		return reading{left, began, time.Now()}
	}
	before := [2]reading{remaining(ipv4), remaining(ipv6)}
	time.Sleep(3 * time.Second) // real time: it is enough to tell an entry that was made anew
	b.svcctl.Kill()
	b.svcctl.Start()
	b.svcctl.Stop()
	b.svcctl.Start()
	b.rewrite("other.yaml", func(f family) []string {
		return []string{f.service("other", "ports: [{name: p80, port: 80}]"), f.slice("other", "p80: 80", b.R2)}
	})
	for i, f := range families {
		after := remaining(f)
		least, most := after.began.Sub(before[i].ended).Seconds()-1, after.ended.Sub(before[i].began).Seconds()+1 // times are in whole seconds
		for entry, left := range before[i].left {
			if passed := float64(left - after.left[entry]); passed < least || passed > most {
				t.Errorf("%s %s: %d s were left before, %d s are left after %.0f to %.0f s", f, entry, left, after.left[entry], least+1, most-1)
			}
		}
		b.same(t, f.String()+" after restarts", chosen[i], b.choose(t, f, "tcp", f.at(f.vip(41), 80)))
	}
}

func Test084_affinity_changes(t *testing.T) {
	b := sticky(t, 10800, l1r1)
	var chosen [2]choices
	for i, f := range families {
		chosen[i] = b.choose(t, f, "tcp", f.at(f.vip(41), 80))
	}
	b.rewrite("web.yaml", b.stickyDocuments(60, b.L1, b.R1))
	for i, f := range families {
		for name, elements := range b.table(t, f) {
			for _, e := range elements {
				if e.Expires > 60 {
					t.Fatalf("%s: %s remembers %v for %d s more, want at most 60", f, name, e.Key, e.Expires)
				}
			}
		}
		b.same(t, f.String()+" with a shorter timeout", chosen[i], b.choose(t, f, "tcp", f.at(f.vip(41), 80)))
		b.noProblem(t, f.object("Service", "web"))
	}
	b.rewrite("web.yaml", b.stickyDocuments(0, b.L1, b.R1))
	for _, f := range families {
		b.reaches(t, b.EXT, "tcp", f.at(f.vip(41), 80), masq, f.on(80, b.L1, b.R1)...)
	}
}

// affinityLimit is how many clients are remembered for a Service port.
const affinityLimit = 65535

func Test085_affinity_when_the_map_is_full(t *testing.T) {
	b := sticky(t, 10800, l1r1)
	b.each(t, func(t *testing.T, b *box, f family) {
		to := f.at(f.vip(41), 53)
		if tally := b.EXT.AskMany(20, "udp", to, patiently); len(tally.Failures) != 0 || len(tally.Servers) != 1 {
			t.Errorf("one client: %s, want one endpoint", tally)
		}
		b.fill(t, f, to)
		if tally := b.EXT.AskMany(20, "udp", to, patiently); len(tally.Failures) != 0 || len(tally.Servers) != 1 {
			t.Errorf("a client remembered before: %s, want one endpoint", tally)
		}
		// New clients, that can not be remembered any more.
		tally := netlab.AskEach(200, func(i int) (netlab.Reply, error) {
			return b.EXT.Ask("udp", to, netlab.From(f.client(1+i%100)))
		})
		if len(tally.Failures) != 0 || len(tally.Servers) != 2 {
			t.Errorf("new clients with a full map: %s, want answers by both endpoints", tally)
		}
	})
}

// fill makes the Service port remember as many clients as it does, by adding all but
// the ones it knows to its map.
func (b *box) fill(t *testing.T, f family, to netip.AddrPort) {
	t.Helper()
	name, value := "", ""
	for set, elements := range b.table(t, f) {
		for _, e := range elements {
			if strings.HasPrefix(set, "affinity") && e.Key[0] == f.of(b.EXT).String() {
				name, value = set, e.Value
			}
		}
	}
	var endpoint struct{ Concat []any }
	if err := json.Unmarshal([]byte(value), &endpoint); err != nil || len(endpoint.Concat) != 2 {
		t.Fatalf("no affinity map remembers %s as a client of %s: %q: %v", f.of(b.EXT), to, value, err)
	}
	var elements strings.Builder
	fmt.Fprintf(&elements, "add element %s svcctl %s {\n", f.pick("ip", "ip6"), name)
	for i := 1; i < affinityLimit; i++ {
		fmt.Fprintf(&elements, f.pick("100.64.%d.%d", "2001:db8:64::%x:%x")+" timeout 3h : %v . %v,\n", i>>8, i&0xff, endpoint.Concat[0], endpoint.Concat[1])
	}
	elements.WriteString("}\n")
	b.GW1.LoadNft(elements.String())
}

func Test086_listings_with_affinity(t *testing.T) {
	b := sticky(t, 10800, l1r1)
	for _, f := range families {
		b.choose(t, f, "tcp", f.at(f.vip(41), 80))
		b.choose(t, f, "udp", f.at(f.boxAddr(), f.number(30053)))
	}
	if out := b.GW1.Nft("list", "ruleset"); !strings.Contains(out, "expires") {
		t.Errorf("no affinity entry in\n%s", out)
	}
	if out := b.GW1.Nft("-j", "list", "ruleset"); !json.Valid([]byte(out)) || !strings.Contains(out, `"expires"`) {
		t.Errorf("no valid JSON with affinity entries: %s", out)
	}
}
