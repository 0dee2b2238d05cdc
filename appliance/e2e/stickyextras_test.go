package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// stickyExtras is a Service with affinity, three ports of which two are served at other numbers, and all kinds
// of frontends.
func (b *box) stickyExtras(seconds int, annotations ...string) func(f family) []string {
	return func(f family) []string {
		return []string{
			withAnnotations(f.service("web", "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4),
				fmt.Sprintf("sessionAffinity: ClientIP\nsessionAffinityConfig: {clientIP: {timeoutSeconds: %d}}", seconds), "ports:",
				fmt.Sprintf("- {name: http, port: 80, nodePort: %d}", f.everywherePort("tcp")),
				"- {name: https, port: 443, targetPort: 8443}",
				fmt.Sprintf("- {name: dns, port: 53, protocol: UDP, nodePort: %d}", f.everywherePort("udp"))), annotations...),
			f.slice("web", "http: 80, https: 8443, dns: 53/UDP", b.L1, b.L2, b.R1, b.R2),
		}
	}
}

// With the scope of a Service a client meets one server on all ports, over TCP and UDP, at cluster IP, load
// balancer IP and node port, and another client another one.
func Test375_affinity_of_a_whole_service(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.stickyExtras(10800, "svcctl.io/affinity-scope: service"))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		met := map[string]bool{}
		for n := range 24 {
			from := netlab.From(f.client(1 + n))
			asks := []func() netlab.Reply{
				func() netlab.Reply { return answers(t, b.EXT, "tcp", f.at(f.vip(41), 80), from) },
				func() netlab.Reply { return answers(t, b.EXT, "udp", f.at(f.vip(41), 53), from) },
				func() netlab.Reply { return answers(t, b.EXT, "tcp", f.at(f.lb(4), 443), from) },
				func() netlab.Reply {
					return answers(t, b.EXT, "tcp", f.at(f.boxAddr(), f.everywherePort("tcp")), from)
				},
				func() netlab.Reply {
					return answers(t, b.EXT, "udp", f.at(f.boxAddr(), f.everywherePort("udp")), from)
				},
			}
			asks = append(asks[n%len(asks):], asks[:n%len(asks)]...) // each client begins elsewhere
			var servers []string
			for _, ask := range asks {
				servers = append(servers, ask().Server)
			}
			if len(slices.Compact(slices.Clone(servers))) != 1 {
				t.Errorf("%s: client %d meets %v", f, n, servers)
			}
			met[servers[0]] = true
		}
		if len(met) < 2 { // one of 4²³ times
			t.Errorf("%s: all clients meet %v", f, met)
		}
	})
}

// All clients of a prefix meet one server.
func Test376_affinity_of_a_prefix(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.stickyExtras(10800, `svcctl.io/affinity-prefix: "28,124"`))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		of := map[int]string{} // by prefix
		met := map[string]bool{}
		for n := range 96 {
			addr := f.client(1 + n)
			last := addr.AsSlice()
			prefix := int(last[len(last)-1]) >> 4
			if f.v6 { // addresses are written in decimal
				prefix = int(last[len(last)-2])<<4 | prefix
			}
			server := answers(t, b.EXT, "tcp", f.at(f.vip(41), 80), netlab.From(addr)).Server
			if was, known := of[prefix]; known && was != server {
				t.Errorf("%s: %s meets %s, others of its prefix %s", f, addr, server, was)
			}
			of[prefix], met[server] = server, true
		}
		if len(of) < 6 || len(met) < 2 {
			t.Errorf("%s: %d prefixes meet %v", f, len(of), met)
		}
	})
}

// With refresh by packets a client is remembered for as long as its connection is in use; without it the
// time is over while it is.
func Test377_affinity_refreshed_by_packets(t *testing.T) {
	b := newBox(t, nil)
	const seconds = 6
	b.write("web.yaml", b.stickyExtras(seconds, "svcctl.io/affinity-refresh: packets"))
	b.svcctl.Start()
	remembers := func(f family, client *netlab.Host) bool {
		out := b.GW1.Nft("list", "map", f.pick("ip", "ip6"), "svcctl", "affinity/default/"+f.name("web")+"/http")
		return strings.Contains(out, f.of(client).String()+" timeout")
	}
	// use sends packets until it need not wait. longest is the time between two of them: a busy machine may be silent for
	// as long as clients are remembered.
	use := func(t *testing.T, client *netlab.Host, to netip.AddrPort, wait func(begin time.Time) bool) (c *netlab.Conn, last time.Time, longest time.Duration) {
		c, err := client.Dial(to, patiently)
		if err != nil {
			t.Fatal(err)
		}
		last = time.Now()
		for begin := last; wait(begin); time.Sleep(100 * time.Millisecond) {
			sent := time.Now()
			if err := c.Echo("hello", patiently); err != nil {
				t.Fatal(err)
			}
			longest, last = max(longest, time.Since(last)), sent
		}
		return c, last, longest
	}
	parts := map[string]func(t *testing.T, b *box){}
	for _, f := range families {
		for client, to := range map[*netlab.Host]netip.AddrPort{b.IN: f.at(f.vip(41), 80), b.EXT: f.at(f.boxAddr(), f.everywherePort("tcp"))} {
			parts[fmt.Sprintf("%s of %s", to, client.Name)] = func(t *testing.T, b *box) {
				client := client.For(t)
				for range 10 {
					c, last, longest := use(t, client, to, func(begin time.Time) bool { return time.Since(begin) < 2*seconds*time.Second })
					defer c.Close()
					remembered, again := remembers(f, client), answers(t, client, "tcp", to).Server
					if longest = max(longest, time.Since(last)); longest > (seconds-1)*time.Second {
						t.Logf("%s was silent for %s", client.Name, longest)
						continue
					}
					if !remembered {
						t.Error("after twice the time a client in use is forgotten")
					}
					if again != c.Reply.Server {
						t.Errorf("a client in use meets %s and then %s", c.Reply.Server, again)
					}
					return
				}
				t.Error("the machine is too busy to send a packet in as long as clients are remembered")
			}
		}
	}
	b.atOnce(t, parts)
	b.rewrite("web.yaml", b.stickyExtras(seconds))
	b.each(t, func(t *testing.T, b *box, f family) {
		deadline := time.Now().Add(time.Minute)
		c, _, _ := use(t, b.IN, f.at(f.vip(41), 80), func(time.Time) bool { return remembers(f, b.IN) && time.Now().Before(deadline) })
		c.Close()
		if remembers(f, b.IN) {
			t.Errorf("%s: without refresh a client is remembered for a minute of packets", f)
		}
	})
}
