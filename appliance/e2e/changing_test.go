package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// exampleAt is a file of examples with the addresses of hosts in place of those that it has.
func exampleAt(t *testing.T, name string, pairs ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../examples", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(pairs...).Replace(string(text))
}

// The provider's end of ppp0, and the addresses that it gives, from 10 to 40 of 198.18.0.0/24.
const pppProvider = "198.18.0.1"

// pppAddress is the address that ppp0 has.
func (b *box) pppAddress() (netip.Addr, error) {
	out, _, err := b.GW1.Run("ip", "-4", "-o", "address", "show", "dev", "ppp0")
	if err != nil {
		return netip.Addr{}, err
	}
	_, after, _ := strings.Cut(out, " inet ")
	text, _, _ := strings.Cut(strings.ReplaceAll(after, "/", " "), " ")
	return netip.ParseAddr(text)
}

// redials has an uplink get another address 20 times. After each the Service of examples/uplink answers there, to clients with their own
// addresses, and the rules have nothing of the address before; connections at other addresses go on, and what endpoints begin leaves with
// the new address where a rule of the operator masquerades it, and with that of its Service where this has one.
func redials(t *testing.T, dialer func(b *box) (again func(n int))) {
	b := newBox(t, flags{"nodeport-addresses": {"ppp0"}, "service-node-port-range": {"80-32767"}, "egress-from": {"10.180.0.0/16"}})
	f := ipv4
	b.svcctl.Manifests.Write("web.yaml", exampleAt(t, "uplink/web.yaml", "10.96.0.80", f.vip(41), "10.1.2.11", f.of(b.L1).String(), "10.1.2.12", f.of(b.R1).String()))
	b.svcctl.Manifests.Write("mail.yaml", f.mail("mail", 5)+"---\n"+f.slice("mail", "p80: 80", b.L2))
	b.GW1.LoadNft(`table ip operator { chain c { type nat hook postrouting priority srcnat; oifname "ppp0" masquerade; }; }`)
	ip(t, b.GW1, "route", "replace", "203.0.113.128/25", "via", "192.0.2.254", "dev", "ext0") // clients of the other uplink
	ip(t, b.GW1, "route", "del", "default")
	b.EXT.Serve("tcp", 7000)
	b.EXT.Serve("udp", 7000)
	outside := f.at(f.of(b.EXT).String(), 7000)
	b.svcctl.Start()
	again := dialer(b)
	var before netip.Addr
	held := map[string]*netlab.Conn{"a client's by the other uplink": open(t, b.BLK, f.at(f.lb(5), 80))}
	for n := range 20 {
		again(n)
		var address netip.Addr
		for _, port := range []uint16{80, 443} {
			eventually(t, 2*syncTimeout, func() (err error) {
				if address, err = b.pppAddress(); err == nil && address == before {
					err = fmt.Errorf("ppp0 has %s still", before)
				}
				if err != nil {
					return err
				}
				reply, err := b.EXT.Ask("tcp", netip.AddrPortFrom(address, port))
				if err == nil && reply.Client.Addr() != f.of(b.EXT) {
					t.Errorf("the server sees %s, want %s", reply.Client.Addr(), f.of(b.EXT))
				}
				return err
			})
		}
		for _, network := range []string{"tcp", "udp"} {
			leavesWith(t, b.L1, network, outside, address.String())
			leavesWith(t, b.L2, network, outside, f.lb(5))
		}
		for what, c := range held {
			if err := c.Echo(fmt.Sprint("dial ", n), patiently); err != nil {
				t.Errorf("dial %d: a connection is held, %s: %v", n, what, err)
			}
		}
		if n == 0 {
			held["an endpoint's with the address of its Service"] = open(t, b.L2, outside)
		} else {
			eventually(t, syncTimeout, func() error { return b.notListed(t, f, before) })
			if rules := b.GW1.Nft("list", "ruleset"); regexp.MustCompile(regexp.QuoteMeta(before.String()) + `\b`).MatchString(rules) {
				t.Errorf("dial %d: %s is in\n%s", n, before, rules)
			}
		}
		before = address
	}
	b.isHosts(t, f.at(f.boxAddr(), 443))
	for _, p := range b.status().Problems {
		t.Errorf("unexpected problem: %s", p)
	}
}

// A link stands for the one of pppd: it goes, and comes with another address.
func Test1050_node_ports_of_an_uplink_that_is_dialed_again(t *testing.T) {
	redials(t, func(b *box) func(n int) {
		return func(n int) {
			if n > 0 {
				ip(t, b.GW1, "link", "del", "ppp0")
			}
			address := fmt.Sprint("198.18.0.", 10+n)
			ip(t, b.GW1, "link", "add", "ppp0", "type", "veth", "peer", "name", "customer")
			ip(t, b.GW1, "link", "set", "customer", "netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), b.RTR.Namespace()))
			ip(t, b.GW1, "address", "add", address, "peer", pppProvider, "dev", "ppp0")
			ip(t, b.RTR, "address", "add", pppProvider, "peer", address, "dev", "customer")
			ip(t, b.RTR, "link", "set", "customer", "up")
			ip(t, b.GW1, "link", "set", "ppp0", "up")
			ip(t, b.GW1, "route", "replace", "default", "via", pppProvider, "dev", "ppp0")
		}
	})
}

// Test1146: pppd dials by PPPoE with the options of examples/uplink, and the provider hangs up 20 times.
func Test1146_node_ports_of_a_pppd_that_dials_again(t *testing.T) {
	_, _ = exec.Command("modprobe", "-a", "pppoe", "ppp_async").CombinedOutput() // built in, or there are none
	if _, err := os.Stat("/dev/ppp"); err != nil {
		if os.Getenv("SVCCTL_REQUIRE_PPP") != "" {
			t.Fatal("this kernel has PPP, and there is no /dev/ppp: ", err)
		}
		t.Skip("SKIPPED: this kernel has no PPP")
	}
	redials(t, func(b *box) func(n int) {
		dir, programs := t.TempDir(), map[string]string{}
		for _, name := range []string{"pppd", "pppoe", "pppoe-server"} {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Fatal(name, " is missing: make deps")
			}
			programs[name] = path
		}
		file := func(name, text string) string {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			return path
		}
		pid, logs := filepath.Join(dir, "server"), map[string]string{"pppd": filepath.Join(dir, "log"), "the provider's pppd": filepath.Join(dir, "provider.log")}
		b.RTR.Background(programs["pppoe-server"], "-F", "-I", "boxalt", "-L", pppProvider, "-p", file("pool", "198.18.0.10-40\n"), "-O", file("options", "noauth\nnodefaultroute\nlogfile "+logs["the provider's pppd"]+"\n"),
			"-X", pid, "-q", programs["pppd"], "-Q", programs["pppoe"])
		t.Cleanup(func() {
			for name, path := range logs {
				if log, _ := os.ReadFile(path); t.Failed() {
					t.Logf("%s:\n%s", name, log)
				}
			}
		})
		return func(n int) {
			if n == 0 {
				b.GW1.Background(programs["pppd"], "file", file("provider", exampleAt(t, "uplink/provider", "\neth1\n", "\nalt0\n")), "nodetach", "logfile", logs["pppd"])
				return
			}
			number, err := os.ReadFile(pid)
			if err != nil {
				t.Fatal(err)
			}
			server := strings.TrimSpace(string(number))
			sessions, err := os.ReadFile(filepath.Join("/proc", server, "task", server, "children"))
			if err != nil || len(sessions) == 0 {
				t.Fatalf("dial %d: the provider has no session: %v", n, err)
			}
			if out, err := exec.Command("kill", strings.Fields(string(sessions))...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	})
}

// The provider of examples/delegated-prefix delegates another prefix 20 times: after each hook the new address answers, the one before
// too, as it is valid, and a connection to it goes on; the one before that has gone.
func Test1051_a_delegated_prefix_changes(t *testing.T) {
	b := newBox(t, nil)
	hosts := []string{"fd00:10:96::53", ipv6.vip(41), "fd53::11", ipv6.of(b.L1).String(), "fd53::12", ipv6.of(b.R1).String()}
	template := filepath.Join(t.TempDir(), "dns.yaml.in")
	if err := os.WriteFile(template, []byte(exampleAt(t, "delegated-prefix/dns.yaml.in", hosts...)), 0o600); err != nil {
		t.Fatal(err)
	}
	hook, err := filepath.Abs("../../examples/delegated-prefix/delegated-prefix.sh")
	if err != nil {
		t.Fatal(err)
	}
	ip(t, b.RTR, "-6", "route", "add", "2001:db8:4000::/36", "via", netlab.BoxAddr6)
	// at is the address of the Service in the n-th prefix.
	at := func(n int) netip.AddrPort {
		return netip.MustParseAddrPort(fmt.Sprintf("[2001:db8:40%02x:100::53]:53", n))
	}
	var held *netlab.Conn
	for n := range 21 {
		prefix := fmt.Sprintf("2001:db8:40%02x:100::/56,3600", n)
		cmd := []string{"NOW=" + fmt.Sprint(1_000_000+n*2000), hook, template, filepath.Join(b.svcctl.Manifests.Path, "dns.yaml"), prefix}
		if out, errOut, err := b.GW1.Run("env", cmd...); err != nil {
			t.Fatalf("%v: %v\n%s%s", cmd, err, out, errOut)
		}
		if n == 0 {
			b.svcctl.Start()
		}
		for _, network := range []string{"tcp", "udp"} {
			eventually(t, syncTimeout, func() error {
				_, err := b.EXT.Ask(network, at(n))
				return err
			})
			if n > 0 {
				if reply, err := b.EXT.Ask(network, at(n-1), patiently); err != nil {
					t.Errorf("change %d: the address of the earlier prefix, which is valid: %s, %v", n, reply, err)
				}
			}
		}
		if n > 1 {
			eventually(t, syncTimeout, func() error { return b.notListed(t, ipv6, at(n-2).Addr()) })
		}
		if held != nil {
			if err := held.Echo(fmt.Sprint("change ", n), patiently); err != nil {
				t.Errorf("change %d: a connection to the earlier address: %v", n, err)
			}
			held.Close()
		}
		if held, err = b.EXT.Dial(at(n), patiently); err != nil {
			t.Fatal(err)
		}
	}
	held.Close()
	for _, p := range b.status().Problems {
		t.Errorf("unexpected problem: %s", p)
	}
}
