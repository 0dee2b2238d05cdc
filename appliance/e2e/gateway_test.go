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

// Test963: connections are shared 9 to 1 between two Services of different sizes, over TCP and UDP, IPv4 and IPv6. A new
// weight, a grant that goes and a backend that is emptied act in their shares alone, and an open connection of the other
// backend stays.
func Test963_a_canary_of_two_Services(t *testing.T) {
	b := newBox(t, nil)
	b.write("gateway.yaml", b.gateway(9, 1))
	b.write("blue.yaml", b.backend("blue", "default", b.L1, b.L2))
	b.write("green.yaml", b.backend("green", "shop", b.R1))
	grant := grantFor(family{})[0]
	b.svcctl.Manifests.Write("grant.yaml", grant)
	b.svcctl.Start()
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
