package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// seen asserts that a client is answered by exactly these endpoints, and how each of them
// sees it.
func (b *box) seen(t *testing.T, from *netlab.Host, to netip.AddrPort, want map[netip.AddrPort]source) {
	t.Helper()
	tally := from.AskMany(100, "tcp", to, patiently)
	what := fmt.Sprintf("%s to %s", from.Name, to)
	if len(tally.Failures) != 0 || len(tally.At) != len(want) {
		t.Fatalf("%s: %s, want answers by %v", what, tally, want)
	}
	for _, r := range tally.Replies {
		how, expected := want[r.At]
		if saw := r.Client.Addr(); !expected || saw != b.seenAs(from, r.At.Addr(), how) {
			t.Errorf("%s: %s saw %s, want %s (%s)", what, r.At, saw, b.seenAs(from, r.At.Addr(), how), how)
		}
	}
}

// An endpoint reaches itself by every address of its Service, whatever the policies.
func Test008_hairpin_by_every_address(t *testing.T) {
	for name, spec := range map[string][]string{"policies Cluster": nil, "policy Local": {etpLocal}} {
		t.Run(name, func(t *testing.T) {
			b := policies(t, nil, l1r1, spec...)
			b.each(t, func(t *testing.T, b *box, f family) {
				l1, r1 := f.on(80, b.L1)[0], f.on(80, b.R1)[0]
				b.seen(t, b.L1, f.cluster(), map[netip.AddrPort]source{l1: masq, r1: plain})
				b.seen(t, b.R1, f.cluster(), map[netip.AddrPort]source{l1: plain, r1: masq})
				other := masq // of an external address with policy Cluster, everybody is
				if spec != nil {
					other = plain
				}
				for _, to := range f.externals() {
					b.seen(t, b.L1, to, map[netip.AddrPort]source{l1: masq, r1: other})
					b.seen(t, b.R1, to, map[netip.AddrPort]source{l1: other, r1: masq})
				}
			})
		})
	}
}

// With the policy Local an endpoint that is outside gets the endpoints of this box, and
// reaches itself all the same.
func Test008_hairpin_without_internal_sources(t *testing.T) {
	b := policies(t, flags{"cluster-cidr": nil}, l1r1, etpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, to := range f.externals() {
			b.seen(t, b.L1, to, map[netip.AddrPort]source{f.on(80, b.L1)[0]: masq})
			b.seen(t, b.R1, to, map[netip.AddrPort]source{f.on(80, b.L1)[0]: plain})
		}
	})
}

// Clients on an endpoint's own segment: replies would not come back through the box, so
// they are masqueraded for that endpoint, and for no other.
func Test014_clients_on_the_segment_by_every_address(t *testing.T) {
	b := policies(t, nil, l1r1, etpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, to := range append(f.externals(), f.cluster()) {
			b.seen(t, b.Near, to, map[netip.AddrPort]source{f.on(80, b.L1)[0]: masq, f.on(80, b.R1)[0]: plain})
		}
	})
}

func Test014_clients_on_the_segment_without_internal_sources(t *testing.T) {
	b := policies(t, flags{"cluster-cidr": nil}, l1r1, etpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.seen(t, b.Near, f.cluster(), map[netip.AddrPort]source{f.on(80, b.L1)[0]: masq, f.on(80, b.R1)[0]: plain})
		for _, to := range f.externals() {
			b.seen(t, b.Near, to, map[netip.AddrPort]source{f.on(80, b.L1)[0]: masq})
		}
	})
}

// Masquerading all clients of cluster IPs leaves the policy Local to itself.
func Test013_masquerade_all_by_every_address(t *testing.T) {
	b := policies(t, flags{"masquerade-all": {"true"}}, l1r1, etpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, from := range []*netlab.Host{b.IN, b.EXT, b.GW1} {
			b.reaches(t, from, "tcp", f.cluster(), masq, f.on(80, b.L1, b.R1)...)
		}
		b.external(t, f, b.EXT, plain, b.L1)
		b.external(t, f, b.IN, plain, b.L1, b.R1)
		b.external(t, f, b.GW1, masq, b.L1, b.R1)
	})
}

// An endpoint behind a bridge does not reach itself where the packets of bridges pass the rules (br_netfilter), and
// explain, the status and doctor say so, until the setting is off.
func Test635_hairpin_behind_a_bridge(t *testing.T) {
	if _, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); err != nil {
		t.Skipf("this kernel has no br_netfilter, so that packets of bridges never pass the rules: %v", err)
	}
	b := newBox(t, nil)
	for _, args := range []string{"link add br0 type bridge", "link set br0 up", "link set int0 master br0"} {
		if _, errOut, err := b.GW1.Run("ip", strings.Fields(args)...); err != nil {
			t.Fatal(args, err, errOut)
		}
	}
	for _, prefix := range []string{"10.180.255.254/16", "fd00:10:180::ffff/64"} {
		b.GW1.RemoveAddr("int0", prefix)
		b.GW1.AddAddr("br0", prefix)
	}
	settings := map[family]string{families[0]: "net.bridge.bridge-nf-call-iptables", families[1]: "net.bridge.bridge-nf-call-ip6tables"}
	for _, setting := range settings {
		b.GW1.Sysctl(setting, "1")
	}
	b.write("web.yaml", func(f family) []string {
		return []string{f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]"), f.slice("web", "p80: 80", b.L1)}
	})
	b.svcctl.Start()
	page := func(verb string, args ...string) string {
		out, errOut, _ := b.svcctl.Svcctl(verb, args...)
		return strings.Join(strings.Fields(out+errOut), " ") // lines are wrapped
	}
	told := func(f family, want bool) error {
		l1 := f.of(b.L1).String()
		for what, text := range map[string]struct{ page, want string }{
			"explain": {page("explain", "svc/"+f.name("web")), "an endpoint that is balanced to itself gets no answer: it has 1 endpoint that is behind a bridge whose packets pass the rules for routed ones"},
			"detail":  {page("explain", "svc/"+f.name("web")), l1 + " is behind br0, and " + settings[f] + " is 1"},
			"status":  {page("status"), "an endpoint behind br0 that is a client of its own Service gets no answer when it is balanced to itself"},
			"doctor":  {page("doctor"), "an endpoint behind br0 that is balanced to itself gets no answer"},
		} {
			if strings.Contains(text.page, text.want) != want {
				return fmt.Errorf("%s: %s says %q: %t, want %t: %s", f, what, text.want, !want, want, text.page)
			}
		}
		return nil
	}
	for _, f := range families {
		eventually(t, syncTimeout, func() error { return told(f, true) })
		b.reaches(t, b.R1, "tcp", f.cluster(), plain, f.on(80, b.L1)...)
		if reply, err := b.L1.Ask("tcp", f.cluster()); err == nil {
			t.Errorf("%s: L1 got an answer by %s, which saw %s: the warning is untrue", f, reply.At, reply.Client)
		}
	}
	for _, setting := range settings {
		b.GW1.Sysctl(setting, "0")
	}
	for _, f := range families {
		b.reaches(t, b.L1, "tcp", f.cluster(), masq, f.on(80, b.L1)...)
		eventually(t, syncTimeout, func() error { return told(f, false) })
	}
}
