package e2e

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// gateway is a Gateway for TCP and UDP with a route to the Services blue and green, whose shares are weights.
func (b *box) gateway(blue, green int) func(f family) []string {
	return func(f family) []string {
		route := func(kind string, port int) string {
			return fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: %s\nmetadata: {name: %s}\nspec:\n  parentRefs: [{name: %s}]\n  rules: [{backendRefs: [{name: %s, port: %d, weight: %d}, {name: %s, namespace: shop, port: %d, weight: %d}]}]\n",
				kind, f.name("web"), f.name("edge"), f.name("blue"), port, blue, f.name("green"), port, green)
		}
		return []string{
			fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: %s}\nspec:\n  gatewayClassName: svcctl\n  addresses: [{value: %q}]\n  listeners: [{name: tcp, port: 80, protocol: TCP}, {name: udp, port: 53, protocol: UDP}]\n",
				f.name("edge"), f.lb(4)),
			route("TCPRoute", 80), route("UDPRoute", 53),
		}
	}
}

const backendPorts = "ports: [{name: tcp, port: 80}, {name: udp, port: 53, protocol: UDP}]"

func (b *box) backend(name, namespace string, hosts ...*netlab.Host) func(f family) []string {
	in := func(doc string) string {
		return strings.Replace(doc, "metadata:\n", "metadata:\n  namespace: "+namespace+"\n", 1)
	}
	return func(f family) []string {
		return []string{
			in(f.service(name, backendPorts)), in(f.slice(name, "tcp: 80, udp: 53/UDP", hosts...)),
		}
	}
}

func grantFor(family) []string {
	return []string{"apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: routes, namespace: shop}\nspec:\n" +
		"  from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: default}, {group: gateway.networking.k8s.io, kind: UDPRoute, namespace: default}]\n  to: [{group: \"\", kind: Service}]\n"}
}

// startCanary starts a box with a Gateway that shares its connections between blue, on two hosts, and green of another namespace, on one,
// by their weights. It returns the grant that lets green be one.
func startCanary(t *testing.T, blue, green int) (b *box, grant string) {
	t.Helper()
	b, grant = newBox(t, nil), grantFor(family{})[0]
	b.write("gateway.yaml", b.gateway(blue, green))
	b.write("blue.yaml", b.backend("blue", "default", b.L1, b.L2))
	b.write("green.yaml", b.backend("green", "shop", b.R1))
	b.svcctl.Manifests.Write("grant.yaml", grant)
	b.svcctl.Start()
	return b, grant
}

// Test963: connections are shared 9 to 1 between two Services of different sizes, over TCP and UDP, IPv4 and IPv6. A new
// weight, a grant that goes and a backend that is emptied act in their shares alone, and an open connection of the other
// backend stays.
func Test963_a_canary_of_two_Services(t *testing.T) {
	b, grant := startCanary(t, 9, 1)
	open := map[string]*netlab.Conn{}
	b.each(t, func(t *testing.T, b *box, f family) {
		for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
			b.shares(t, b.EXT, network, f.at(f.lb(4), port), weightsOf(f.on(port, b.L1, b.L2, b.R1), 9, 9, 2))
		}
	})
	for _, f := range families {
		for {
			c, err := b.EXT.Dial(f.at(f.lb(4), 80))
			if err != nil {
				t.Fatal(err)
			}
			if c.Reply.At.Addr() == f.of(b.L1) {
				open[f.String()] = c
				break
			}
			c.Close()
		}
	}
	still := func(t *testing.T, f family, after string) {
		t.Helper()
		if err := open[f.String()].Echo(after, patiently); err != nil {
			t.Errorf("an open connection after %s: %v", after, err)
		}
	}

	b.rewrite("gateway.yaml", b.gateway(1, 1))
	b.each(t, func(t *testing.T, b *box, f family) {
		b.shares(t, b.EXT, "tcp", f.at(f.lb(4), 80), weightsOf(f.on(80, b.L1, b.L2, b.R1), 1, 1, 2))
		still(t, f, "a new weight")
	})

	// Without its grant, half of the connections is refused, and nothing of it goes to the other backend.
	refused := func(t *testing.T, b *box, f family, after string) {
		t.Helper()
		tally := b.EXT.AskMany(400, "tcp", f.at(f.lb(4), 80), patiently)
		n := 0
		for _, times := range tally.Failures {
			n += times
		}
		if n < 140 || n > 260 || len(tally.At) != 2 { // of 200 wanted: 6 standard deviations
			t.Errorf("after %s: %s, want half of 400 refused", after, tally)
		}
		still(t, f, after)
	}
	b.change(func() { b.svcctl.Manifests.Remove("grant.yaml") })
	b.each(t, func(t *testing.T, b *box, f family) { refused(t, b, f, "the grant went") })

	b.change(func() { b.svcctl.Manifests.Write("grant.yaml", grant) })
	b.rewrite("green.yaml", b.backend("green", "shop"))
	b.each(t, func(t *testing.T, b *box, f family) { refused(t, b, f, "the backend was emptied") })

	b.rewrite("green.yaml", b.backend("green", "shop", b.R1))
	b.each(t, func(t *testing.T, b *box, f family) {
		b.shares(t, b.EXT, "tcp", f.at(f.lb(4), 80), weightsOf(f.on(80, b.L1, b.L2, b.R1), 1, 1, 2))
	})
}

// Test1004: with a hash, when the endpoints of a backend go, change and come back, its clients alone are refused, move and come back,
// by source port.
func Test1004_backends_keep_their_hashed_clients(t *testing.T) {
	b := newBox(t, nil)
	b.write("gateway.yaml", func(f family) []string {
		docs := b.gateway(3, 1)(f)
		docs[0] = strings.Replace(docs[0], "  listeners:", "  infrastructure: {annotations: {svcctl.io/balance: maglev}}\n  listeners:", 1)
		return docs
	})
	b.write("blue.yaml", b.backend("blue", "default", b.L1, b.L2))
	b.write("green.yaml", b.backend("green", "shop", b.R1, b.R2))
	b.svcctl.Manifests.Write("grant.yaml", grantFor(family{})[0])
	b.svcctl.Start()
	// servers are those of clients; "": it is refused.
	servers := func(f family) []string {
		at := make([]string, 200)
		netlab.AskEach(len(at), func(i int) (netlab.Reply, error) {
			client := clientOfFlow(f, i)
			reply, err := b.EXT.Ask("tcp", f.at(f.lb(4), 80), patiently, netlab.From(client.Addr()), netlab.FromPort(client.Port()))
			at[i] = reply.Server
			return reply, err
		})
		return at
	}
	first := map[string][]string{}
	for _, f := range families {
		first[f.String()] = servers(f)
		for _, server := range []string{"L1", "L2", "R1", "R2"} {
			if !slices.Contains(first[f.String()], server) {
				t.Fatalf("%s: no client is at %s: %q", f, server, first[f.String()])
			}
		}
	}
	for _, step := range []struct {
		what        string
		blue, green []*netlab.Host
		at          map[string]string // another server for the clients of one, where the change moves them all
	}{
		{"green is emptied", []*netlab.Host{b.L1, b.L2}, nil, map[string]string{"R1": "", "R2": ""}},
		{"green has one endpoint", []*netlab.Host{b.L1, b.L2}, []*netlab.Host{b.R2}, map[string]string{"R1": "R2"}},
		{"blue has one endpoint", []*netlab.Host{b.L1}, []*netlab.Host{b.R1, b.R2}, map[string]string{"L2": "L1"}},
		{"all are there again", []*netlab.Host{b.L1, b.L2}, []*netlab.Host{b.R1, b.R2}, nil},
	} {
		b.change(func() {
			b.write("blue.yaml", b.backend("blue", "default", step.blue...))
			b.write("green.yaml", b.backend("green", "shop", step.green...))
		})
		for _, f := range families {
			for i, server := range servers(f) {
				want, moves := step.at[first[f.String()][i]]
				if !moves {
					want = first[f.String()][i]
				}
				if server != want {
					t.Fatalf("%s: %s: client %d of %s is at %q, want %q", f, step.what, i, first[f.String()][i], server, want)
				}
			}
		}
	}
}

// gateway is a Gateway of each family with a route to a Service.
func (f *fleet) gateway(backend string) (documents []string) {
	for i, fam := range families {
		documents = append(documents,
			fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: %s}\nspec:\n  gatewayClassName: svcctl\n  addresses: [{value: %q}]\n  listeners: [{name: web, port: 80, protocol: TCP}]\n", fam.name("edge"), gatewayAddresses[i]),
			fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: TCPRoute\nmetadata: {name: %s}\nspec:\n  parentRefs: [{name: %s}]\n  rules: [{backendRefs: [{name: %s, port: 80}]}]\n", fam.name("web"), fam.name("edge"), fam.name(backend)))
	}
	return documents
}

var gatewayAddresses = []string{"198.51.100.4", "2001:db8:198::4"}

// Test1006: both boxes of a fleet serve a Gateway that one got, and have the same status of it. In a rollout of its backend the
// box of the step has the new endpoints of the Service, and the Gateway has those before; the rollout fails and goes back, and the
// Gateway and its conditions are those from before, on both.
func Test1006_a_fleet_serves_a_Gateway(t *testing.T) {
	f := newFleet(t, 2, func(int) []string { return []string{"--load-balancer-pool", "198.51.100.0/28,2001:db8:198::/124"} })
	second := f.secondServer()
	if out, code := f.apply(0, slices.Concat(f.web("web"), f.gateway("web"))...); code != 0 {
		t.Fatal(out)
	}
	served := func() {
		t.Helper()
		for _, address := range gatewayAddresses {
			f.answersAt(netip.AddrPortFrom(netip.MustParseAddr(address), 80), "server", "server")
		}
	}
	// status is what a box has of the Gateways and their routes, once all is true.
	status := func(n int) (text string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			out, errOut, _ := f.boxes[n].Svcctl("get", "gateways,tcproutes", "-o", "jsonpath={range .items[*]}{.metadata.name} {.metadata.resourceVersion} {.status}{\"\\n\"}{end}")
			if text = out; strings.Count(out, `"Programmed"`) < 8 || strings.Contains(out, `"Unknown"`) || strings.Count(out, `"False"`) != 2 { // Conflicted
				return fmt.Errorf("box %d has %s%s", n+1, out, errOut)
			}
			return nil
		})
		return text
	}
	served()
	before := status(0)
	if other := status(1); other != before {
		t.Errorf("box 1 has %s\nbox 2 has %s", before, other)
	}
	for n := range f.boxes {
		for _, fam := range families {
			f.says(n, []string{"explain", "gtw/" + fam.name("edge")}, "it is programmed", "TCPRoute default/"+fam.name("web")+": default/"+fam.name("web")+":80 1/1 (1 endpoints)")
		}
	}

	// Box 2 gets a new version without an endpoint: it fails, and goes back.
	var unready []string
	for _, fam := range families {
		unready = append(unready, fam.slice("web", "t: 80"))
	}
	if out, code := f.applyWith(0, unready, "--rollout", "box2", "--bake", "1h", "--within", "1h", "--on-failure", "undo"); code != 0 {
		t.Fatal(out)
	}
	f.phase(0, "Undone", "NoEndpoints")
	served()
	for n := range f.boxes {
		if after := status(n); after != before {
			t.Errorf("after a rollout that failed box %d has %s\nbefore it %s", n+1, after, before)
		}
	}

	// One that succeeds: the Gateway follows when it is finished.
	if out, code := f.applyWith(0, f.webAt("web", second), "--rollout", "box2", "--bake", "1s", "--within", "1h"); code != 0 {
		t.Fatal(out)
	}
	if out, errOut, code := f.boxes[0].Svcctl("fleet", "rollout", "status", "--wait"); code != 0 || !strings.Contains(out, "Done") {
		t.Fatalf("exit %d: %s%s", code, out, errOut)
	}
	for _, address := range gatewayAddresses {
		f.answersAt(netip.AddrPortFrom(netip.MustParseAddr(address), 80), "second", "second")
	}
	for n := range f.boxes {
		if after := status(n); after != before {
			t.Errorf("after a rollout box %d has %s\nbefore it %s", n+1, after, before)
		}
	}
}

// balanced are Gateways that share a TCPRoute and a UDPRoute, one for each choice of endpoints, at the load balancer IPs from 2.
// Of 100 connections 12 are for blue, 58 for green, and 30 for backends that are not there, not granted, or without that port.
func balanced(annotations ...string) func(f family) []string {
	return func(f family) (docs []string) {
		var parents []string
		for i, a := range annotations {
			name := f.name(fmt.Sprintf("edge%d", i))
			parents = append(parents, "{name: "+name+"}")
			docs = append(docs, fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: %s}\nspec:\n  gatewayClassName: svcctl\n  infrastructure: {annotations: {%s}}\n  addresses: [{value: %q}]\n  listeners: [{name: tcp, port: 80, protocol: TCP}, {name: udp, port: 53, protocol: UDP}]\n",
				name, a, f.lb(2+i)))
		}
		for kind, port := range map[string]int{"TCPRoute": 80, "UDPRoute": 53} {
			docs = append(docs, fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: %s\nmetadata: {name: %s}\nspec:\n  parentRefs: [%s]\n  rules:\n  - backendRefs:\n    - {name: %s, port: %d, weight: 12}\n    - {name: %s, namespace: shop, port: %d, weight: 58}\n    - {name: %s, port: %d, weight: 10}\n    - {name: %s, namespace: vault, port: %d, weight: 10}\n    - {name: %s, port: 99, weight: 10}\n",
				kind, f.name("web"), strings.Join(parents, ", "), f.name("blue"), port, f.name("green"), port, f.name("missing"), port, f.name("secret"), port, f.name("blue")))
		}
		return docs
	}
}

// Test1097: however the endpoints of a Gateway are chosen, in the kernel or by the relay, by chance, in turns, by the number of
// connections or by a hash, over TCP and UDP, each backend has its share, and those of invalid ones are refused. As endpoints go
// down one by one, connections move within their backend; of the canary whose only endpoint dies they are refused.
func Test1097_shares_however_endpoints_are_chosen(t *testing.T) {
	b := newBox(t, nil)
	kernel := []string{"svcctl.io/balance: random", "svcctl.io/balance: round-robin", "svcctl.io/balance: least-connection", "svcctl.io/balance: maglev"}
	relayed := []string{"svcctl.io/proxy-mode: userspace", "svcctl.io/proxy-mode: userspace, svcctl.io/balance: random",
		"svcctl.io/proxy-mode: userspace, svcctl.io/balance: least-connection", "svcctl.io/proxy-mode: userspace, svcctl.io/balance: maglev"}
	choices, leastConnection := slices.Concat(kernel, relayed), slices.Index(kernel, "svcctl.io/balance: least-connection")
	b.write("gateways.yaml", balanced(choices...))
	b.svcctl.Manifests.Write("grant.yaml", grantFor(family{})[0])
	b.write("secret.yaml", b.backend("secret", "vault", b.R2))
	// backends are both, with the endpoints that are ready.
	backends := func(ready ...*netlab.Host) func(f family) []string {
		return func(f family) (docs []string) {
			of := func(name, namespace string, hosts ...*netlab.Host) {
				var endpoints []string
				for _, h := range hosts {
					endpoints = append(endpoints, f.having(h, fmt.Sprintf("{ready: %t}", slices.Contains(ready, h))))
				}
				slice := f.rawSlice(name, name, "tcp: 80, udp: 53/UDP", endpoints...)
				docs = append(docs, b.backend(name, namespace)(f)[0], strings.Replace(slice, "metadata:\n", "metadata:\n  namespace: "+namespace+"\n", 1))
			}
			of("blue", "default", b.L1, b.L2)
			of("green", "shop", b.R1)
			return docs
		}
	}
	b.write("backends.yaml", backends())
	b.svcctl.Start()
	for n, step := range []struct {
		what    string
		ready   []*netlab.Host
		weights []int // of L1, L2, R1, and of a refusal
	}{
		{"all are ready", []*netlab.Host{b.L1, b.L2, b.R1}, []int{6, 6, 58, 30}},
		{"one of blue is down", []*netlab.Host{b.L2, b.R1}, []int{0, 12, 58, 30}},
		{"the canary died", []*netlab.Host{b.L1, b.L2}, []int{6, 6, 0, 88}},
		{"blue is down", []*netlab.Host{b.R1}, []int{0, 0, 58, 42}},
		{"all are down", nil, []int{0, 0, 0, 100}},
		{"all are ready again", []*netlab.Host{b.L1, b.L2, b.R1}, []int{6, 6, 58, 30}},
	} {
		b.rewrite("backends.yaml", backends(step.ready...))
		b.each(t, func(t *testing.T, b *box, f family) {
			from := netlab.From(f.client(1 + n)) // flows of UDP that an earlier step began may go on for a moment
			for i, choice := range choices {
				for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
					if network == "udp" && i >= len(kernel) {
						continue // the relay drops datagrams that it refuses
					}
					want := map[netip.AddrPort]int{}
					for i, at := range append(f.on(port, b.L1, b.L2, b.R1), netip.AddrPort{}) {
						if step.weights[i] > 0 {
							want[at] = step.weights[i]
						}
					}
					if i == leastConnection {
						// The kernel's shares follow the open connections, within what is not refused.
						tally := b.EXT.AskMany(600, network, f.at(f.lb(2+i), port), patiently, from)
						refused := tally.Failures[netlab.Refused] + tally.Failures[netlab.Reset] + tally.Failures[netlab.Unreachable]
						of := float64(step.weights[3]) / 100
						if off := float64(refused) - 600*of; off*off > 36*600*of*(1-of) || slices.ContainsFunc(slices.Collect(maps.Keys(tally.At)), func(at netip.AddrPort) bool { return want[at] == 0 }) {
							t.Fatalf("%s: %s: %s, want %.0f refused and answers of %v", step.what, choice, tally, 600*of, want)
						}
						continue
					}
					if b.shares(t, b.EXT, network, f.at(f.lb(2+i), port), want, from); t.Failed() {
						t.Fatalf("%s: %s", step.what, choice)
					}
				}
			}
		})
	}
}

// Test1044: 120 clients are shared among the backends of a Gateway by source-hash, in the kernel and by the relay, and a
// client stays where it is; and so are flows of UDP through the relay, however its endpoints are chosen.
func Test1044_shares_by_clients(t *testing.T) {
	const relay, hash = "svcctl.io/proxy-mode: userspace", "svcctl.io/balance: source-hash"
	choices := []string{hash, relay + ", " + hash, relay, relay + ", svcctl.io/balance: random", relay + ", svcctl.io/balance: least-connection", relay + ", svcctl.io/balance: maglev"}
	b := newBox(t, nil)
	refuses := regexp.MustCompile(`(?m)^.*weight: 10}\n`)
	b.write("gateways.yaml", func(f family) (docs []string) {
		for _, doc := range balanced(choices...)(f) {
			if strings.Contains(doc, "kind: UDPRoute") {
				doc = refuses.ReplaceAllString(doc, "") // the relay drops datagrams that it refuses
			}
			docs = append(docs, doc)
		}
		return docs
	})
	b.svcctl.Manifests.Write("grant.yaml", grantFor(family{})[0])
	b.write("secret.yaml", b.backend("secret", "vault", b.R2))
	b.write("blue.yaml", b.backend("blue", "default", b.L1, b.L2))
	b.write("green.yaml", b.backend("green", "shop", b.R1))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		for i, choice := range choices {
			for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
				if network == "tcp" && !strings.Contains(choice, hash) {
					continue // Test1097
				}
				to := f.at(f.lb(2+i), port)
				questions := 600
				if strings.Contains(choice, hash) {
					questions = 120 // as many addresses as EXT has
				}
				ask := func(n int) (netlab.Reply, error) {
					return b.EXT.Ask(network, to, patiently, netlab.From(f.client(1+n%120)))
				}
				first := make([]string, questions)
				tally := netlab.AskEach(questions, func(n int) (netlab.Reply, error) {
					reply, err := ask(n)
					first[n] = reply.Server
					return reply, err
				})
				want := weightsOf(f.on(port, b.L1, b.L2, b.R1), 6, 6, 58)
				if network == "tcp" {
					want[netip.AddrPort{}] = 30
				}
				t.Logf("%s over %s: %s", choice, network, tally)
				if isShared(t, choice+" over "+network, tally, want); t.Failed() {
					return
				}
				for n := range 30 {
					if reply, err := ask(n); strings.Contains(choice, hash) && reply.Server != first[n] {
						t.Fatalf("%s over %s: client %d was at %q and is at %q: %v", choice, network, n, first[n], reply.Server, err)
					}
				}
			}
		}
	})
}

// Test1098: a ReferenceGrant comes and goes a hundred times while connections are open: those of the other backend stay, on the
// wire and in the connection table, and each time new ones are shared as the grant has it.
func Test1098_a_grant_that_flaps(t *testing.T) {
	b, grant := startCanary(t, 1, 1)
	var open []*netlab.Conn
	for _, f := range families {
		for len(open) < 12 || f == ipv6 && len(open) < 24 {
			c, err := b.EXT.Dial(f.at(f.lb(4), 80), patiently)
			if err != nil {
				t.Fatal(err)
			}
			if t.Cleanup(c.Close); c.Reply.Server != "R1" {
				open = append(open, c)
			}
		}
	}
	entries := map[entry]string{}
	for e, id := range b.entries(t) {
		if e.network == "tcp" && slices.ContainsFunc(open, func(c *netlab.Conn) bool { return e.from == c.Local }) {
			entries[e] = id
		}
	}
	if len(entries) != len(open) {
		t.Fatalf("%d entries of %d connections", len(entries), len(open))
	}
	for i := range 50 {
		for _, granted := range []bool{false, true} {
			b.change(func() {
				if granted {
					b.svcctl.Manifests.Write("grant.yaml", grant)
				} else {
					b.svcctl.Manifests.Remove("grant.yaml")
				}
			})
			for _, f := range families {
				tally := b.EXT.AskMany(60, "tcp", f.at(f.lb(4), 80), patiently)
				refused := tally.Failures[netlab.Refused] + tally.Failures[netlab.Reset]
				if green := tally.Servers["R1"]; granted != (green > 0) || granted != (refused == 0) { // none of 60 by chance: 1 in 10¹⁸
					t.Fatalf("round %d, granted %t: %s", i, granted, tally)
				}
			}
			if b.untouched(t, entries); t.Failed() {
				t.FailNow()
			}
		}
	}
	for _, c := range open {
		if err := c.Echo("still there", patiently); err != nil {
			t.Errorf("an open connection to %s: %v", c.Reply.At, err)
		}
	}
}

// Test1099: a Gateway is deleted while its routes stay, and created again: it gets its address, and the routes attach. The
// listener for SCTP and the port range answer then as before.
func Test1099_a_Gateway_with_extensions_comes_again(t *testing.T) {
	b := newBox(t, nil)
	for _, host := range []*netlab.Host{b.L1, b.R1} {
		host.Serve("udp", mediaPorts...)
	}
	route := func(f family, kind, name, port string) string {
		return fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: %s\nmetadata: {name: %s}\nspec:\n  parentRefs: [{name: %s, sectionName: %s}]\n  rules: [{backendRefs: [{name: %s, port: %s}]}]\n",
			kind, f.name(name), f.name("edge"), name, f.name("calls"), port)
	}
	gateways := both(func(f family) []string {
		return []string{fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: %s}\nspec:\n  gatewayClassName: svcctl\n  infrastructure: {annotations: {%s: udp-5060=10000-20000/UDP}}\n  addresses: [{value: %q}]\n  listeners: [{name: sctp, port: 2905, protocol: svcctl.io/SCTP}, {name: sip, port: 5060, protocol: UDP}]\n",
			f.name("edge"), portRanges, f.lb(4))}
	})
	b.svcctl.Manifests.Write("gateway.yaml", gateways)
	b.write("routes.yaml", func(f family) []string {
		return []string{route(f, "TCPRoute", "sctp", "2905"), route(f, "UDPRoute", "sip", "5060"),
			f.service("calls", "ports: [{name: sctp, port: 2905, protocol: SCTP}, {name: sip, port: 5060, protocol: UDP}]"),
			f.slice("calls", "sctp: 53/SCTP, sip: 5353/UDP", b.L1, b.R1)}
	})
	b.svcctl.Start()
	served := func(t *testing.T, b *box, f family) {
		for network, ports := range map[string]map[uint16]uint16{"sctp": {2905: 53}, "udp": {5060: 5353, mediaPorts[0]: mediaPorts[0], mediaPorts[5]: mediaPorts[5]}} {
			for port, at := range ports {
				b.reaches(t, b.EXT, network, f.at(f.lb(4), port), masq, f.on(at, b.L1, b.R1)...)
			}
		}
		b.refuses(t, b.EXT, "udp", f.at(f.lb(4), 9999))
		b.refuses(t, b.EXT, "tcp", f.at(f.lb(4), 2905))
	}
	b.each(t, served)
	for range 3 {
		b.change(func() { b.svcctl.Manifests.Remove("gateway.yaml") })
		for _, f := range families {
			for network, port := range map[string]uint16{"sctp": 2905, "udp": mediaPorts[1]} {
				if reply, err := b.EXT.Ask(network, f.at(f.lb(4), port)); err == nil {
					t.Errorf("%s: without the Gateway: %s", f, reply)
				}
			}
		}
		b.change(func() { b.svcctl.Manifests.Write("gateway.yaml", gateways) })
		for _, f := range families {
			if _, errOut, code := b.svcctl.Svcctl("wait", "gtw/"+f.name("edge"), "--for=condition=Programmed", "--timeout", syncTimeout.String()); code != 0 {
				t.Fatalf("svcctl wait: exit code %d: %s", code, errOut)
			}
		}
		b.each(t, served)
	}
}
