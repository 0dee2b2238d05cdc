package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
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

// A dialing takes the uplink ppp0 down and up again, with an address that the provider gives.
type dialing func(address string)

// dialer is pppd on both sides where the kernel has PPP. Elsewhere a link stands for it: it goes, and comes with another address.
func (b *box) dialer(t *testing.T) dialing {
	t.Helper()
	const provider = "198.18.0.1"
	if _, err := os.Stat("/dev/ppp"); err != nil {
		t.Log("this kernel has no PPP: a link stands for the one of pppd")
		return func(address string) {
			if _, _, err := b.GW1.Run("ip", "link", "show", "ppp0"); err == nil {
				ip(t, b.GW1, "link", "del", "ppp0")
			}
			ip(t, b.GW1, "link", "add", "ppp0", "type", "veth", "peer", "name", "customer")
			ip(t, b.GW1, "link", "set", "customer", "netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), b.RTR.Namespace()))
			ip(t, b.GW1, "address", "add", address, "peer", provider, "dev", "ppp0")
			ip(t, b.RTR, "address", "add", provider, "peer", address, "dev", "customer")
			ip(t, b.RTR, "link", "set", "customer", "up")
			ip(t, b.GW1, "link", "set", "ppp0", "up")
			ip(t, b.GW1, "route", "replace", "default", "via", provider, "dev", "ppp0")
		}
	}
	if _, err := exec.LookPath("pppd"); err != nil {
		t.Fatal("pppd is missing: make deps")
	}
	dir := t.TempDir()
	next, pid, log := filepath.Join(dir, "next"), filepath.Join(dir, "pid"), filepath.Join(dir, "log")
	script := filepath.Join(dir, "provider")
	text := fmt.Sprintf("#!/bin/sh\necho $$ >%s\nexec nsenter --net=/proc/%d/fd/%d pppd notty nodetach local noauth nodefaultroute %s:$(cat %s)\n", pid, os.Getpid(), b.RTR.Namespace(), provider, next)
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	ip(t, b.GW1, "route", "del", "default")
	started := false
	return func(address string) {
		if err := os.WriteFile(next, []byte(address), 0o644); err != nil {
			t.Fatal(err)
		}
		if !started {
			started = true
			b.GW1.Background("pppd", "nodetach", "local", "noauth", "ipcp-accept-local", "ipcp-accept-remote", "defaultroute",
				"persist", "maxfail", "0", "holdoff", "1", "unit", "0", "logfile", log, "pty", script)
			return
		}
		// The provider hangs up.
		number, err := os.ReadFile(pid)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("kill", strings.TrimSpace(string(number))).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// The Service of examples/uplink answers at the address that an uplink has after each of 20 dials, to clients of that uplink with their
// own address, and at no earlier one. Nothing is restarted.
func Test1050_node_ports_of_an_uplink_that_is_dialed_again(t *testing.T) {
	b := newBox(t, flags{"nodeport-addresses": {"ppp0"}, "service-node-port-range": {"80-32767"}})
	b.svcctl.Manifests.Write("web.yaml", exampleAt(t, "uplink/web.yaml", "10.96.0.80", ipv4.vip(41), "10.1.2.11", ipv4.of(b.L1).String(), "10.1.2.12", ipv4.of(b.R1).String()))
	b.svcctl.Start()
	dial := b.dialer(t)
	var before netip.Addr
	for n := range 20 {
		address := netip.AddrFrom4([4]byte{198, 18, 0, byte(10 + n)})
		dial(address.String())
		for _, port := range []uint16{80, 443} {
			to := netip.AddrPortFrom(address, port)
			eventually(t, syncTimeout, func() error {
				reply, err := b.EXT.Ask("tcp", to)
				if err == nil && reply.Client.Addr() != ipv4.of(b.EXT) {
					t.Errorf("the server sees %s, want %s", reply.Client.Addr(), ipv4.of(b.EXT))
				}
				return err
			})
		}
		if before.IsValid() {
			eventually(t, syncTimeout, func() error { return b.notListed(t, ipv4, before) })
		}
		before = address
	}
	b.isHosts(t, ipv4.at(ipv4.boxAddr(), 443))
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
