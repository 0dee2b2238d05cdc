package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// userspace asks for a relay, with more annotations.
func (f family) userspace(name string, annotations string, spec ...string) string {
	doc := f.service(name, spec...)
	return strings.Replace(doc, "spec:\n", "  annotations: {svcctl.io/proxy-mode: userspace"+annotations+"}\nspec:\n", 1)
}

// relayedPorts are a TCP and a UDP port with node ports.
func (f family) relayedPorts() string {
	return "ports:\n- {name: p80, port: 80, nodePort: " + f.port(30080) + "}\n- {name: udp, port: 53, protocol: UDP, nodePort: " + f.port(30080) + "}"
}

// relayed writes and serves a load balancer that is relayed, and beside it one that is not.
func relayed(t *testing.T, other flags, annotations string, hosts func(b *box) []*netlab.Host, spec ...string) *box {
	t.Helper()
	b := newBox(t, other)
	b.write("web.yaml", relayedDocuments(b, annotations, hosts(b), spec...))
	b.svcctl.Start()
	return b
}

func relayedDocuments(b *box, annotations string, hosts []*netlab.Host, spec ...string) func(f family) []string {
	return func(f family) []string {
		lines := append([]string{"type: LoadBalancer", "clusterIP: " + f.vip(41), "loadBalancerIP: " + f.lb(4), f.relayedPorts()}, spec...)
		return []string{
			f.userspace("web", annotations, lines...), f.slice("web", "p80: 80, udp: 53/UDP", hosts...),
			f.service("other", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}]"), f.slice("other", "p80: 80", b.L1),
		}
	}
}

// order are the servers that answer so many questions, one after the other.
func order(t *testing.T, n int, from *netlab.Host, network string, to netip.AddrPort, opts ...netlab.Option) (servers []string) {
	t.Helper()
	for range n {
		servers = append(servers, answers(t, from, network, to, opts...).Server)
	}
	return servers
}

// takeTurns asserts that servers answer in turn.
func takeTurns(t *testing.T, servers []string, n int) {
	t.Helper()
	seen := map[string]bool{}
	for i, s := range servers {
		if i >= n && s != servers[i-n] {
			t.Errorf("the %dth question was answered by %s, want %s, whose turn it was: %v", i+1, s, servers[i-n], servers)
			return
		}
		seen[s] = true
	}
	if len(seen) != n {
		t.Errorf("%d servers took part, want %d: %v", len(seen), n, servers)
	}
}

func Test350_userspace_mode_serves_every_frontend(t *testing.T) {
	b := relayed(t, nil, ", svcctl.io/connect-timeout: 1m", l1r1) // else an endpoint of a busy machine is passed over
	b.each(t, func(t *testing.T, b *box, f family) {
		for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
			at := f.on(port, b.L1, b.R1)
			b.reaches(t, b.IN, network, f.at(f.vip(41), port), masq, at...)
			b.reaches(t, b.L1, network, f.at(f.vip(41), port), masq, at...) // an endpoint reaches itself too
			b.reaches(t, b.EXT, network, f.at(f.lb(4), port), masq, at...)
			b.reaches(t, b.EXT, network, f.nodePort(), masq, at...)
			b.reaches(t, b.GW1, network, f.at(f.vip(41), port), masq, at...) // the box itself
		}
		b.reaches(t, b.IN, "tcp", f.at(f.vip(42), 80), plain, f.on(80, b.L1)...)
		b.noProblem(t, f.object("Service", "web"))
		rules := b.GW1.Nft("list", "table", f.pick("ip", "ip6"), "svcctl")
		for line := range strings.Lines(rules) {
			if strings.Contains(line, "10270") && !strings.Contains(line, " : ") {
				t.Errorf("a rule of its own: %s", line)
			}
		}
	})
}

func Test351_userspace_mode_takes_turns(t *testing.T) {
	b := relayed(t, nil, ", svcctl.io/connect-timeout: 1m", func(b *box) []*netlab.Host { return b.Endpoints() })
	b.each(t, func(t *testing.T, b *box, f family) {
		takeTurns(t, order(t, 25, b.IN, "tcp", f.at(f.vip(41), 80)), 4)
		takeTurns(t, order(t, 25, b.IN, "udp", f.at(f.vip(41), 53)), 4)
	})
}

// failing has a host refuse connections to port 80, another one not answer them.
func failing(refuses, silent *netlab.Host) {
	refuses.Nft("add table inet fault; add chain inet fault input { type filter hook input priority 0; }; add rule inet fault input tcp dport 80 reject with tcp reset")
	silent.Nft("add table inet fault; add chain inet fault input { type filter hook input priority 0; }; add rule inet fault input tcp dport 80 drop")
}

func Test352_another_endpoint_when_one_fails(t *testing.T) {
	b := relayed(t, nil, "", func(b *box) []*netlab.Host { return []*netlab.Host{b.L1, b.L2, b.R1} })
	failing(b.L1, b.L2)
	b.each(t, func(t *testing.T, b *box, f family) {
		tally := b.EXT.AskMany(1000, "tcp", f.at(f.lb(4), 80), patiently)
		if len(tally.Failures) != 0 || tally.At[f.on(80, b.R1)[0]] != tally.Asked {
			t.Errorf("with one endpoint of three that serves: %s, want all of 1000 by it", tally)
		}
	})
	// All of them fail: the client is told.
	b.R1.Nft("add table inet fault; add chain inet fault input { type filter hook input priority 0; }; add rule inet fault input tcp dport 80 reject with tcp reset")
	b.each(t, func(t *testing.T, b *box, f family) {
		c, err := b.EXT.Dial(f.at(f.lb(4), 80), patiently)
		if err == nil {
			c.Close()
		}
		if netlab.RefusalOf(err) != netlab.Reset && netlab.RefusalOf(err) != netlab.Refused {
			t.Errorf("without an endpoint that serves: %v, want a reset", err)
		}
	})
}

func Test353_the_kernel_decides_who_may_connect(t *testing.T) {
	b := relayed(t, nil, "", l1r1, etpLocal, "loadBalancerSourceRanges: [203.0.113.0/25, '2001:db8:203::/65']")
	b.each(t, func(t *testing.T, b *box, f family) {
		for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
			b.reaches(t, b.EXT, network, f.at(f.lb(4), port), masq, f.on(port, b.L1)...) // the policy Local
			b.drops(t, b.BLK, network, f.at(f.lb(4), port))
			b.reaches(t, b.IN, network, f.at(f.vip(41), port), masq, f.on(port, b.L1, b.R1)...)
		}
		// Nobody gets past that by asking the relay itself.
		for _, port := range []uint16{10270, 10271} {
			if reply, err := b.BLK.Ask("tcp", f.at(f.boxAddr(), port), patiently); err == nil {
				t.Errorf("the relay answers who asks it directly: %s", reply)
			}
			if reply, err := b.BLK.Ask("udp", f.at(f.boxAddr(), port)); err == nil {
				t.Errorf("the relay answers who asks it directly: %s", reply)
			}
		}
	})
	// Without a local endpoint outside clients get no answer, as in the kernel's path.
	b.rewrite("web.yaml", relayedDocuments(b, "", r1(b), etpLocal))
	b.each(t, func(t *testing.T, b *box, f family) {
		if reply, err := b.EXT.Ask("tcp", f.at(f.lb(4), 80)); netlab.RefusalOf(err) != netlab.Timeout {
			t.Errorf("without a local endpoint: %v, %v, want silence", reply, err)
		}
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), masq, f.on(80, b.R1)...)
	})
}

func Test354_relayed_clients_keep_their_endpoint(t *testing.T) {
	b := relayed(t, nil, "", l1r1, "sessionAffinity: ClientIP")
	b.each(t, func(t *testing.T, b *box, f family) {
		for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
			seen := map[string]int{}
			for i := range 6 {
				from := netlab.From(f.client(i))
				servers := order(t, 5, b.EXT, network, f.at(f.lb(4), port), from)
				for _, s := range servers {
					if s != servers[0] {
						t.Errorf("%s: a client was answered by %v", network, servers)
						break
					}
				}
				seen[servers[0]]++
			}
			if seen["L1"] != 3 || seen["R1"] != 3 {
				t.Errorf("%s: 6 clients went to %v, want 3 each", network, seen)
			}
		}
	})
	b.L1.Nft("add table inet fault; add chain inet fault input { type filter hook input priority 0; }; add rule inet fault input tcp dport 80 reject with tcp reset")
	b.each(t, func(t *testing.T, b *box, f family) {
		for i := range 6 {
			if got := answers(t, b.EXT, "tcp", f.at(f.lb(4), 80), netlab.From(f.client(i))).Server; got != "R1" {
				t.Errorf("client %d was answered by %s, want R1: the other refuses", i, got)
			}
		}
	})
}

func Test355_relayed_connections_when_an_endpoint_goes(t *testing.T) {
	for name, tt := range map[string]struct {
		annotation string
		want       netlab.Refusal
	}{
		"they stay":    {"", 0},
		"they drained": {", svcctl.io/drain-timeout: 1s", netlab.Reset},
	} {
		t.Run(name, func(t *testing.T) {
			b := relayed(t, nil, tt.annotation, l1)
			open := map[family]*netlab.Conn{}
			const flow = 4711 // the port of a client of UDP that goes on asking
			for _, f := range families {
				answers(t, b.EXT, "udp", f.at(f.lb(4), 53), netlab.FromPort(flow), patiently)
				c, err := b.EXT.Dial(f.at(f.lb(4), 80), patiently)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				open[f] = c
			}
			b.rewrite("web.yaml", relayedDocuments(b, tt.annotation, r1(b)))
			b.each(t, func(t *testing.T, b *box, f family) {
				b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), masq, f.on(80, b.R1)...)
				b.reaches(t, b.EXT, "udp", f.at(f.lb(4), 53), masq, f.on(53, b.R1)...)
				if tt.want == 0 {
					if err := open[f].Echo("still here", patiently); err != nil {
						t.Errorf("a connection to an endpoint that is gone: %v", err)
					}
					return
				}
				eventually(t, time.Minute, func() error {
					if err := open[f].Echo("still here", patiently); netlab.RefusalOf(err) != tt.want {
						return fmt.Errorf("a connection whose time is over: %v, want a reset", err)
					}
					return nil
				})
			})
			b.rewrite("web.yaml", relayedDocuments(b, tt.annotation, nil))
			b.each(t, func(t *testing.T, b *box, f family) {
				if reply, err := b.EXT.Ask("tcp", f.at(f.lb(4), 80), patiently); netlab.RefusalOf(err) != netlab.Refused {
					t.Errorf("without endpoints: %v, %v, want a reset", reply, err)
				}
				if reply, err := b.EXT.Ask("udp", f.at(f.lb(4), 53), patiently); netlab.RefusalOf(err) != netlab.Unreachable {
					t.Errorf("without endpoints: %v, %v, want port unreachable", reply, err)
				}
				eventually(t, time.Minute, func() error {
					if reply, err := b.EXT.Ask("udp", f.at(f.lb(4), 53), netlab.FromPort(flow)); netlab.RefusalOf(err) != netlab.Unreachable {
						return fmt.Errorf("a client that had an endpoint: %v, %v, want port unreachable", reply, err)
					}
					return nil
				})
			})
		})
	}
}

// Both directions end on their own, and every byte arrives.
func Test356_half_closed_and_bulk(t *testing.T) {
	b := relayed(t, nil, "", l1)
	const size = 32 << 20
	b.each(t, func(t *testing.T, b *box, f family) {
		stop := sumServer(t, b.L1, f)
		defer stop()
		doc := func(f family) []string {
			return []string{f.userspace("sum-"+f.pick("a", "b"), "", "clusterIP: "+f.vip(43), "ports: [{name: sum, port: 7}]"),
				f.slice("sum-"+f.pick("a", "b"), "sum: 7007", b.L1)}
		}
		b.svcctl.Manifests.Write("sum"+f.String()+".yaml", strings.Join(doc(f), "---\n"))
		eventually(t, syncTimeout, func() error { return exchange(b.IN, f.at(f.vip(43), 7), 1) })
		if err := exchange(b.IN, f.at(f.vip(43), 7), size); err != nil {
			t.Error(err)
		}
	})
}

// sumServer answers with the number of bytes it got, and as many bytes, after the client has closed its
// direction.
func sumServer(t *testing.T, h *netlab.Host, f family) (stop func()) {
	t.Helper()
	var l net.Listener
	err := h.Do(func() (err error) {
		l, err = net.Listen(f.pick("tcp4", "tcp6"), f.pick("0.0.0.0:7007", "[::]:7007"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				n, err := io.Copy(io.Discard, c)
				if err == nil {
					_, _ = fmt.Fprintf(c, "%d\n", n)
					_, _ = io.CopyN(c, zeros{}, n)
				}
			})
		}
	})
	return func() { l.Close(); all.Wait() }
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// exchange sends so many bytes to a sumServer, closes that direction, and wants as many back.
func exchange(from *netlab.Host, to netip.AddrPort, n int64) error {
	var c net.Conn
	err := from.Do(func() (err error) {
		dialer := net.Dialer{Timeout: time.Minute}
		c, err = dialer.DialContext(context.Background(), "tcp", to.String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return err
	}
	if _, err := io.CopyN(c, zeros{}, n); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	var got int64
	if _, err := fmt.Fscanf(c, "%d\n", &got); err != nil || got != n {
		return fmt.Errorf("the endpoint got %d bytes of %d: %v", got, n, err)
	}
	if back, err := io.Copy(io.Discard, c); err != nil || back != n {
		return fmt.Errorf("%d bytes came back of %d: %w", back, n, err)
	}
	return nil
}

func Test357_relayed_connections_that_idle_are_reset(t *testing.T) {
	b := relayed(t, nil, ", svcctl.io/idle-timeout: 2s", l1)
	b.each(t, func(t *testing.T, b *box, f family) {
		eventually(t, syncTimeout, func() error { // a client that is not scheduled for 2 s is reset before its connect or its read returns
			c, err := dialTCP(b.EXT, netip.Addr{}, f.at(f.lb(4), 80))
			if err != nil {
				return err
			}
			defer c.Close()
			greeting, err := io.ReadAll(c)
			if !strings.HasPrefix(string(greeting), "L1 ") || !errors.Is(err, syscall.ECONNRESET) {
				return fmt.Errorf("a connection that idles: %q, %v, want the greeting of L1 and then a reset", greeting, err)
			}
			return nil
		})
	})
}

func Test358_relayed_ports_over_a_restart(t *testing.T) {
	b := relayed(t, nil, "", l1r1)
	committed := b.transactions(func() {
		b.svcctl.Stop()
		b.each(t, func(t *testing.T, b *box, f family) {
			if reply, err := b.EXT.Ask("tcp", f.at(f.lb(4), 80), patiently); netlab.RefusalOf(err) != netlab.Refused {
				t.Errorf("without the process: %v, %v, want a reset", reply, err)
			}
			b.reaches(t, b.IN, "tcp", f.at(f.vip(42), 80), plain, f.on(80, b.L1)...) // other clients do not notice
		})
		b.svcctl.Start()
	})
	for _, transaction := range committed {
		for change := range transaction.Changes {
			if !strings.HasSuffix(change.Table, "-sentinel") && change.Kind != "add table" {
				t.Errorf("a restart: %s", transaction)
				break
			}
		}
	}
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), masq, f.on(80, b.L1, b.R1)...)
		b.reaches(t, b.EXT, "udp", f.at(f.lb(4), 53), masq, f.on(53, b.L1, b.R1)...)
	})
}

// Clients are never sent to a program that has the port of the relay.
func Test359_the_port_of_the_relay_is_taken(t *testing.T) {
	b := newBox(t, nil)
	var taken []*netlab.Server
	for _, at := range []string{"0.0.0.0", "::"} {
		taken = append(taken, b.GW1.ServeAt("tcp", netip.MustParseAddrPort(net.JoinHostPort(at, "10270"))))
	}
	b.write("web.yaml", relayedDocuments(b, "", l1r1(b)))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hasProblem(t, f.object("Service", "web"), "NoRelay", "10270", "address already in use", "--relay-ports")
		b.refuses(t, b.EXT, "tcp", f.at(f.lb(4), 80))
		b.reaches(t, b.EXT, "udp", f.at(f.lb(4), 53), masq, f.on(53, b.L1, b.R1)...)
	})
	for _, s := range taken {
		s.Close()
	}
	b.each(t, func(t *testing.T, b *box, f family) {
		eventually(t, time.Minute, func() error {
			return b.tryReaches(b.EXT, "tcp", f.at(f.lb(4), 80), masq, f.on(80, b.L1, b.R1)...)
		})
	})
}

func Test360_modes_change_without_a_loss(t *testing.T) {
	b := relayed(t, nil, "", l1r1)
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for _, f := range families {
		asking.Go(func() {
			for ctx.Err() == nil {
				if _, err := b.EXT.Ask("tcp", f.at(f.lb(4), 80), patiently); err != nil {
					t.Errorf("%s: %v", f, err)
					return
				}
			}
		})
	}
	for i := range 6 {
		mode := []string{"kernel", "userspace"}[i%2]
		b.rewrite("web.yaml", func(f family) []string {
			docs := relayedDocuments(b, "", l1r1(b))(f)
			docs[0] = strings.Replace(docs[0], "userspace", mode, 1)
			return docs
		})
		want := []source{plain, masq}[i%2]
		for _, f := range families {
			b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), want, f.on(80, b.L1, b.R1)...)
		}
	}
	stop()
	asking.Wait()
}

func Test361_what_is_relayed_is_said(t *testing.T) {
	b := relayed(t, nil, "", l1r1)
	b.each(t, func(t *testing.T, b *box, f family) {
		v := b.verbs(t)
		v.says(0, []string{"port 80/TCP is relayed", "svcctl.io/proxy-mode", "2 endpoints"}, "explain", "svc/"+f.name("web"))
	})
	b.change(func() {
		b.svcctl.Manifests.Write("sctp.yaml", both(func(f family) []string {
			return []string{f.userspace("sctp", "", "clusterIP: "+f.vip(44), "ports: [{name: a, port: 53, protocol: SCTP}]"),
				f.slice("sctp", "a: 53/SCTP", b.L1)}
		}))
	})
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hasProblem(t, f.object("Service", "sctp"), "NotRelayed", "spec.ports[0].protocol", "SCTP is not relayed")
		b.reaches(t, b.IN, "sctp", f.at(f.vip(44), 53), plain, f.on(53, b.L1)...)
	})
}

// Two boxes whose relayed Services have each other's node ports as endpoints: what a client sends ends, and is reported.
func Test827_relays_of_two_boxes(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	p := &pair{client: l.Host("client")}
	lan := l.Segment("lan").Attach(p.client, "eth0", "192.0.2.9/24", "2001:db8::9/64")
	inside := l.Segment("inside")
	for n := range p.boxes {
		other := 2 - n
		p.attach(n, l, lan, inside).Manifests.Write("web.yaml", both(func(f family) []string {
			return []string{
				f.userspace("web", ", svcctl.io/backend-protocol.http: http", "type: NodePort", "ports:\n- {name: tcp, port: 80, nodePort: "+f.port(30080)+"}\n"+
					"- {name: udp, port: 80, protocol: UDP, nodePort: "+f.port(30080)+"}\n- {name: http, port: 81, nodePort: "+f.port(30090)+"}"),
				f.rawSlice("web", "web", fmt.Sprintf("tcp: %s, udp: %s/UDP, http: %s", f.port(30080), f.port(30080), f.port(30090)),
					"{addresses: ["+f.pick(fmt.Sprintf("192.0.2.%d", other), fmt.Sprintf("2001:db8::%d", other))+"]}"),
			}
		}))
		p.boxes[n].Start()
	}
	for _, f := range families {
		box := f.pick("192.0.2.1", "2001:db8::1")
		// real time: nobody answers
		if _, err := p.client.Ask("udp", f.at(box, f.number(30080)), netlab.Within(time.Second)); err == nil {
			t.Error("a datagram is answered")
		}
		if _, err := p.client.Ask("tcp", f.at(box, f.number(30080)), patiently); err == nil {
			t.Error("a connection is answered")
		}
		if r, err := p.client.Get(f.at(box, f.number(30090)), "/"); err != nil || r.Status < 500 {
			t.Errorf("HTTP: %v %v, want an error of a gateway", r, err)
		}
		eventually(t, time.Minute, func() error {
			all := ""
			for _, b := range p.boxes {
				out, _, _ := b.Svcctl("get", "svc/"+f.name("web"), "-o", "yaml")
				status, _, _ := b.Svcctl("status")
				all += out + status
			}
			if !strings.Contains(all, f.name("web")+": ") || !strings.Contains(all, "RelayLoop") {
				return fmt.Errorf("no RelayLoop of %s in\n%s", f.name("web"), all)
			}
			return nil
		})
		for n, h := range p.hosts {
			for _, protocol := range []string{"tcp", "udp"} {
				flows := strings.Count(h.Conntrack("-L", "-f", f.pick("ipv4", "ipv6"), "-p", protocol, "--orig-port-dst", f.port(30080)), "dport="+f.port(30080))
				if flows > 3*64 { // the client tries a datagram more than once
					t.Errorf("box %d: %d flows of one client", n+1, flows)
				}
			}
		}
	}
}
