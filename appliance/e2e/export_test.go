package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// exported is the table of routes to announced addresses, of a family.
func (b *box) exported(t *testing.T, f family) string {
	t.Helper()
	out, _, _ := b.GW1.Run("ip", f.pick("-4", "-6"), "route", "show", "table", "118") // fails while there is no such table
	return out
}

// birdOnTheBox has BIRD tell RTR of the routes in table 118.
const birdOnTheBox = `
router id 192.0.2.1;
protocol device { scan time 1; }
protocol direct { ipv4; ipv6; }
protocol kernel { kernel table 118; learn; scan time 5; ipv4 { import where krt_source = 118; export none; }; }
protocol kernel { kernel table 118; learn; scan time 5; ipv6 { import where krt_source = 118; export none; }; }
protocol bgp tor {
	local 192.0.2.1 as 64512;
	neighbor 192.0.2.254 as 64513;
	connect delay time 1;
	ipv4 { import none; export where source = RTS_INHERIT; next hop self; };
	ipv6 { import none; export where source = RTS_INHERIT; next hop self; };
}
`

// A BIRD on the box tells a router of the addresses in the table, which follows what is to be announced, stays when
// serve stops, is emptied by drain and goes with `svcctl down`. The box itself routes nothing by it.
func Test278_routes_for_a_BIRD_on_the_box(t *testing.T) {
	b := newBox(t, flags{"announce-table": {"118"}, "load-balancer-pool": {"198.18.0.16/28", "2001:db8:99::10/124"}})
	b.write("web.yaml", b.toldDocuments(b.L1))
	b.svcctl.Start()
	b.bird(t, "", "")
	birdOn(t, b.GW1, birdOnTheBox)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.leads(t, f, f.routedVIP(1))
		b.reaches(t, b.EXT, "tcp", f.at(f.routedVIP(1), 80), masq, f.on(80, b.L1)...)
		if reply, err := b.GW1.Ask("tcp", f.at(f.routedVIP(1), 80), patiently); err != nil || reply.Server != "L1" {
			t.Errorf("the box itself is answered by %q: %v", reply.Server, err)
		}
	})
	b.rewrite("web.yaml", b.toldDocuments())
	b.each(t, func(t *testing.T, b *box, f family) {
		b.leadsNowhere(t, f, f.routedVIP(1))
		b.leads(t, f, f.routedVIP(2))
	})
	b.svcctl.Kill()
	for _, f := range families {
		if got := b.exported(t, f); !strings.Contains(got, f.routedVIP(2)) {
			t.Errorf("after serve was killed the table has %q", got)
		}
	}
	b.write("web.yaml", b.toldDocuments(b.L2))
	b.svcctl.Start()
	for _, f := range families {
		b.leads(t, f, f.routedVIP(1))
	}
	if out, errOut, code := b.svcctl.Svcctl("announce", "drain"); code != 0 {
		t.Fatalf("drain: exit code %d: %s%s", code, out, errOut)
	}
	for _, f := range families {
		b.leadsNowhere(t, f, f.routedVIP(1))
	}
	if out, errOut, code := b.svcctl.Svcctl("announce", "undrain"); code != 0 {
		t.Fatalf("undrain: exit code %d: %s%s", code, out, errOut)
	}
	for _, f := range families {
		b.leads(t, f, f.routedVIP(1))
	}
	b.svcctl.Stop()
	if out, errOut, code := b.svcctl.Svcctl("down", "--yes"); code != 0 {
		t.Fatalf("down: exit code %d: %s%s", code, out, errOut)
	}
	for _, f := range families {
		eventually(t, time.Minute, func() error {
			if got := b.exported(t, f); got != "" {
				return fmt.Errorf("after down the table has %q", got)
			}
			return nil
		})
	}
}

// The configurations of examples/frr have a routing daemon on the box tell a router of the addresses in the table, and
// of no other route.
func TestExampleFRR(t *testing.T) {
	const example = "../../examples/frr/"
	at := strings.NewReplacer("192.0.2.11", netlab.BoxAddr4, "192.0.2.1", "192.0.2.254")
	for name, test := range map[string]struct {
		daemon   func(t *testing.T, b *box, config string)
		families []family // FRR 8 takes IPv4 alone from a table
	}{
		"bird.conf": {func(t *testing.T, b *box, config string) {
			path := filepath.Join(t.TempDir(), "bird.conf")
			if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			runs(t, b.GW1, "/usr/sbin/bird", "-f", "-c", path, "-s", filepath.Join(t.TempDir(), "ctl"))
		}, families},
		"frr.conf": {func(t *testing.T, b *box, config string) { b.frrOn(t, b.GW1, config, "zebra", "bgpd") }, []family{ipv4}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(example + name)
			if err != nil {
				t.Fatal(err)
			}
			b := newBox(t, flags{"announce-table": {"118"}, "load-balancer-pool": {"198.18.0.16/28", "2001:db8:99::10/124"}})
			b.write("web.yaml", b.toldDocuments(b.L1))
			b.svcctl.Start()
			b.bird(t, "", "")
			for _, f := range families { // not while the daemon starts: FRR may then miss routes (docs/bgp.md)
				eventually(t, time.Minute, func() error {
					if got := b.exported(t, f); !strings.Contains(got, f.routedVIP(1)) || !strings.Contains(got, f.routedVIP(2)) {
						return fmt.Errorf("the table has %q", got)
					}
					return nil
				})
			}
			test.daemon(t, b, at.Replace(string(text)))
			for _, f := range test.families {
				b.leads(t, f, f.routedVIP(1))
				b.reaches(t, b.EXT, "tcp", f.at(f.routedVIP(1), 80), masq, f.on(80, b.L1)...)
			}
			b.rewrite("web.yaml", b.toldDocuments())
			for _, f := range test.families {
				b.leadsNowhere(t, f, f.routedVIP(1))
				b.leads(t, f, f.routedVIP(2))
			}
			out, _, _ := b.RTR.Run("sh", "-c", "ip route show proto bird; ip -6 route show proto bird")
			for line := range strings.Lines(out) {
				if !strings.Contains(line, ipv4.routedVIP(2)) && !strings.Contains(line, ipv6.routedVIP(2)) {
					t.Errorf("the router was told of another route: %s", line)
				}
			}
			b.rewrite("web.yaml", b.toldDocuments(b.L2)) // a route that is added while the daemon runs
			for _, f := range test.families {
				b.leads(t, f, f.routedVIP(1))
			}
		})
	}
}
