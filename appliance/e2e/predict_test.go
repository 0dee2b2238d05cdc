package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// predicted has the output of `svcctl trace --predict`, as text and as lines by state.
func (v *verbs) predicted(args ...string) (text string) {
	v.t.Helper()
	var packet struct {
		What  string
		Lines []struct{ State, Text string }
	}
	if err := json.Unmarshal([]byte(v.does(0, "trace", append(args, "--predict", "-o", "json")...)), &packet); err != nil {
		v.t.Fatal(err)
	}
	lines := []string{packet.What}
	for _, l := range packet.Lines {
		lines = append(lines, l.State+" "+l.Text)
	}
	return strings.Join(lines, "\n")
}

// What `svcctl trace --predict` says is what becomes of the packets that are sent then: which endpoints answer, as whom they
// see the client, which refusal comes, or none. No packet is sent for it, and no entry of connection tracking is there.
func Test342_prediction_is_what_happens(t *testing.T) {
	b := newBox(t, setAside(nil))
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.policyService(f.ranges(extOnly)), f.slice("web", "p80: 80", b.L1, b.L2),
			f.service("empty", "clusterIP: "+f.vip(60), "ports: [{name: p80, port: 80}, {name: u80, port: 80, protocol: UDP}]"),
			f.service("node", "type: NodePort", "clusterIP: "+f.vip(61), nodePorts(f, 30090)), f.slice("node", "p80: 80", b.L1),
			f.service("away", "type: LoadBalancer", "loadBalancerIP: "+f.lb(5), "externalTrafficPolicy: Local", "ports: [{name: p80, port: 80}]"),
			f.slice("away", "p80: 80", b.R1),
			annotated(f.service("hash", "clusterIP: "+f.vip(62), "ports: [{name: p80, port: 80}]"), "svcctl.io/balance", "source-hash"),
			f.slice("hash", "p80: 80", b.L1, b.L2),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		v := b.verbs(t)
		one, both := f.on(80, b.L1), f.on(80, b.L1, b.L2)
		for _, tt := range []struct {
			what    string
			from    *netlab.Host
			network string
			to      netip.AddrPort
			at      []netip.AddrPort // nil: not served
			seen    source
			refusal string // of what is not served: what the prediction says
		}{
			{"a client inside", b.IN, "tcp", f.at(f.vip(61), 80), one, plain, ""},
			{"a client outside", b.EXT, "tcp", f.at(f.vip(61), 80), one, masq, ""},
			{"the box", b.GW1, "tcp", f.at(f.vip(61), 80), one, masq, ""},
			{"a node port", b.EXT, "tcp", f.at(f.boxAddr(), f.number(30090)), one, masq, ""},
			{"two endpoints", b.EXT, "tcp", f.balancer(), both, masq, ""},
			{"no endpoint, TCP", b.EXT, "tcp", f.at(f.vip(60), 80), nil, plain, "refused, the client gets a TCP reset: Service default/" + f.name("empty") + " has no endpoint"},
			{"no endpoint, UDP", b.EXT, "udp", f.at(f.vip(60), 80), nil, plain, "refused, the client gets a port unreachable"},
			{"no such port", b.IN, "tcp", f.at(f.vip(60), 81), nil, plain, "refused, the client gets a TCP reset: nothing is served at this port"},
			{"no such address", b.IN, "tcp", f.at(f.vip(200), 80), nil, plain, "dropped, the client gets no answer: " + f.vip(200) + " is in the service range"},
			{"source ranges", b.BLK, "tcp", f.balancer(), nil, plain, "dropped, the client gets no answer: Service default/" + f.name("web") + " does not let this client in"},
			{"policy Local", b.EXT, "tcp", f.at(f.lb(5), 80), nil, plain, "dropped, the client gets no answer: Service default/" + f.name("away")},
		} {
			args := []string{tt.to.String() + "/" + tt.network}
			if tt.from != b.GW1 {
				args = slices.Insert(args, 0, f.of(tt.from).String())
			}
			text := v.predicted(args...)
			if tt.at == nil {
				if !strings.Contains(text, "bad "+tt.refusal) {
					t.Errorf("%s: %q is not predicted:\n%s", tt.what, tt.refusal, text)
				}
				_, err := tt.from.Ask(tt.network, tt.to)
				if refusal, drops := netlab.RefusalOf(err), strings.HasPrefix(tt.refusal, "dropped"); err == nil || drops != (refusal == netlab.Timeout) ||
					strings.Contains(tt.refusal, "TCP reset") && refusal != netlab.Refused || strings.Contains(tt.refusal, "port unreachable") && refusal != netlab.Unreachable {
					t.Errorf("%s: %v came", tt.what, err)
				}
				continue
			}
			list := make([]string, len(tt.at))
			for i, at := range tt.at {
				list[i] = at.String()
			}
			slices.Sort(list)
			which := "endpoint "
			if len(list) > 1 {
				which = "one of the endpoints "
			}
			seen := "the endpoint sees the client's own address"
			if tt.seen == masq && tt.from != b.GW1 {
				seen = "the endpoint sees " + b.seenAs(tt.from, tt.at[0].Addr(), tt.seen).String() + ": the client's address is masqueraded"
			} else if tt.from == b.GW1 {
				seen = ""
			}
			for _, want := range []string{"good goes to " + which + strings.Join(list, ", "), seen} {
				if !strings.Contains(text, want) {
					t.Errorf("%s: %q is not predicted:\n%s", tt.what, want, text)
				}
			}
			b.reaches(t, tt.from, tt.network, tt.to, tt.seen, tt.at...)
		}
		// A hash is known before.
		for n := range 6 {
			client := f.client(10 + n)
			text := v.predicted(client.String(), f.at(f.vip(62), 80).String())
			reply, err := b.EXT.Ask("tcp", f.at(f.vip(62), 80), netlab.From(client), patiently)
			if err != nil {
				t.Fatal(err)
			}
			at := f.on(80, b.L1)[0]
			if reply.Server == "L2" {
				at = f.on(80, b.L2)[0]
			}
			if !strings.Contains(text, "goes to endpoint "+at.String()) {
				t.Errorf("%s was answered by %s, predicted was:\n%s", client, reply.Server, text)
			}
		}
		v.says(2, []string{"give it, as 10.96.0.10:80"}, "trace", "--predict", f.vip(41))
		v.says(2, []string{"give its address instead of"}, "trace", "--predict", f.pick("203.0.113.0/24", "2001:db8::/32"), f.cluster().String())
	})
	for _, line := range b.status().Problems {
		t.Log(line)
	}
	if text := fmt.Sprint(b.GW1.Nft("list", "tables")); strings.Contains(text, "svcctl-trace") {
		t.Errorf("a prediction made a table: %s", text)
	}
}

// A box that does not forward serves only itself, by endpoints anywhere, and others by its own endpoints.
func Test1047_prediction_on_a_box_that_does_not_forward(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("away", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]"), f.slice("away", "p80: 80", b.R1),
			f.service("here", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}]"), f.slice("here", "p80: 80", b.GW1),
		}
	})
	b.svcctl.Start()
	for _, setting := range []struct {
		name string
		f    family
	}{{"net.ipv4.ip_forward", ipv4}, {"net.ipv6.conf.all.forwarding", ipv6}} {
		off := "bad does not leave this host: " + setting.name + " is 0, so the box serves only itself over " + setting.f.String()
		client, away, here := setting.f.of(b.IN).String(), setting.f.at(setting.f.vip(41), 80), setting.f.at(setting.f.vip(42), 80)
		check := func(forwards bool, args ...string) {
			t.Helper()
			text := b.verbs(t).predicted(args...)
			if strings.Contains(text, off) == forwards || strings.Contains(text, "good goes to endpoint") != forwards {
				t.Errorf("%s, %q:\n%s", setting.name, args, text)
			}
		}
		check(true, client, away.String())
		b.GW1.Sysctl(setting.name, "0")
		check(false, client, away.String())
		check(true, client, here.String())
		check(true, away.String())
		if _, err := b.IN.Ask("tcp", away); err == nil {
			t.Errorf("%s is 0, and %s answers", setting.name, away)
		}
		b.GW1.Sysctl(setting.name, "1")
	}
}
