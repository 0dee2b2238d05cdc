package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// The tests of this file are about connections that end for their silence.

// idleSeconds is the idle timeout of Services here: much longer than a busy client waits
// for a turn.
const idleSeconds = 5

var (
	idles = drainable{"idles", 41, fmt.Sprintf("{svcctl.io/idle-timeout: %ds}", idleSeconds)}
	stays = drainable{"stays", 42, "{}"}
)

// idle serves a Service with an idle timeout, and one without.
func idle(t *testing.T, of func(b *box) *netlab.Host) *box {
	t.Helper()
	b := newBox(t, nil)
	b.GW1.Sysctl("net.netfilter.nf_conntrack_udp_timeout", "300")
	b.write("idle.yaml", func(f family) []string {
		endpoint := "{addresses: ['" + f.on(80, of(b))[0].Addr().String() + "']}"
		return append(idles.documents(f, endpoint), stays.documents(f, endpoint)...)
	})
	b.svcctl.Start()
	return b
}

// lives gives the seconds that the kernel has left for the connections that a client began from
// a port, as conntrack -L lists them; none when there is no entry.
func (b *box) lives(t *testing.T, f family, network string, from netip.AddrPort) (seconds []int) {
	t.Helper()
	out, _, err := b.GW1.Run("conntrack", "-L", "-f", f.pick("ipv4", "ipv6"), "-p", network, "--orig-src", from.Addr().String(), "--orig-port-src", strconv.Itoa(int(from.Port())))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		n, err := strconv.Atoi(fields[2])
		if err != nil {
			t.Fatalf("conntrack lists %q", line)
		}
		seconds = append(seconds, n)
	}
	return seconds
}

// forgotten waits until the kernel has no entry of a client any more, and calls each meanwhile.
func (b *box) forgotten(t *testing.T, f family, network string, from netip.AddrPort, each func()) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); len(b.lives(t, f, network, from)) > 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s of %s is not forgotten: %v", network, from, b.lives(t, f, network, from))
		}
		each()
	}
}

func Test211_idle_connections_end(t *testing.T) {
	b := idle(t, func(b *box) *netlab.Host { return b.L1 })
	servers := b.mute(t)
	for _, f := range families {
		silent := open(t, b.IN, idles.at(f, 80))
		byNodePort := open(t, b.EXT, f.at(f.boxAddr(), idles.nodePort(f)))
		hears := open(t, b.IN, idles.at(f, 9000))
		server := <-servers
		other := open(t, b.IN, stays.at(f, 80))
		used := time.Now() // before the packets of active, as in use
		active := open(t, b.IN, idles.at(f, 80))
		use := func() {
			began := time.Now()
			if err := active.Echo("still here", patiently); err != nil {
				if time.Since(used) < idleSeconds*time.Second { // real time: on a busy machine, its connection has ended, too
					t.Fatalf("%s, a connection that is used: %v", f, err)
				}
				active = open(t, b.IN, idles.at(f, 80))
			}
			used = began
		}
		for _, c := range []*netlab.Conn{silent, byNodePort, hears} {
			b.forgotten(t, f, "tcp", c.Local, use)
		}
		for what, c := range map[string]*netlab.Conn{"cluster IP": silent, "node port": byNodePort} {
			if err := c.Echo("are you there?", patiently); netlab.RefusalOf(err) != netlab.Reset {
				t.Errorf("%s, a client of the %s that was silent: %v, want a reset", f, what, err)
			}
		}
		// The endpoint's end: there is an entry that leads to the box.
		endpoint := f.on(9000, b.L1)[0]
		for deadline := time.Now().Add(time.Minute); len(b.lives(t, f, "tcp", endpoint)) == 0; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: nothing is there to reset the endpoint", f)
			}
		}
		if _, err := talk(server, "are you there?"); !isReset(err) {
			t.Errorf("%s, the endpoint of a connection that was silent: %v, want a reset", f, err)
		}
		use()
		if err := other.Echo("still here", patiently); err != nil {
			t.Errorf("%s, a connection of a Service without a timeout: %v", f, err)
		}
		if left := b.lives(t, f, "tcp", other.Local); len(left) != 1 || left[0] < 1000 {
			t.Errorf("%s: a connection of a Service without a timeout has %v s to live", f, left)
		}
		// Who is reset may come back at once, from the same port too, while the endpoint does not
		// know yet.
		silent.Close()
		answers(t, b.IN, "tcp", idles.at(f, 80), netlab.FromPort(silent.Local.Port()))
	}
}

func Test212_idle_mappings_of_udp_end(t *testing.T) {
	b := idle(t, func(b *box) *netlab.Host { return b.L1 })
	b.each(t, func(t *testing.T, b *box, f family) {
		from := f.at(f.pick("10.0.0.2", "fd00:10::2"), 4711)
		for _, to := range []netip.AddrPort{idles.at(f, 53), stays.at(f, 53)} {
			answers(t, b.IN, "udp", to, netlab.FromPort(from.Port()))
			from = netip.AddrPortFrom(from.Addr(), from.Port()+1)
		}
		silent, other := netip.AddrPortFrom(from.Addr(), 4711), netip.AddrPortFrom(from.Addr(), 4712)
		if left := b.lives(t, f, "udp", silent); len(left) > 0 && left[0] > idleSeconds {
			t.Errorf("a mapping has %v s to live", left)
		}
		b.forgotten(t, f, "udp", silent, func() {})
		if left := b.lives(t, f, "udp", other); len(left) != 1 || left[0] <= idleSeconds {
			t.Errorf("a mapping of a Service without a timeout has %v s to live", left)
		}
		answers(t, b.IN, "udp", idles.at(f, 53), netlab.FromPort(silent.Port()))
	})
}

// An endpoint that is the box itself, whose connections never pass postrouting.
func Test213_idle_timeout_of_connections_to_the_box(t *testing.T) {
	b := idle(t, func(b *box) *netlab.Host { return b.GW1 })
	for _, f := range families {
		b.GW1.ServeAt("tcp", f.at(f.on(80, b.GW1)[0].Addr().String(), 80))
	}
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, to := range []netip.AddrPort{idles.at(f, 80), f.at(f.boxAddr(), idles.nodePort(f))} {
			c := open(t, b.IN, to)
			if left := b.lives(t, f, "tcp", c.Local); slices.ContainsFunc(left, func(n int) bool { return n > idleSeconds }) {
				t.Errorf("a connection to %s has %v s to live", to, left)
			}
			b.forgotten(t, f, "tcp", c.Local, func() {})
			if err := c.Echo("are you there?", patiently); netlab.RefusalOf(err) != netlab.Reset {
				t.Errorf("%s: %v, want a reset", to, err)
			}
		}
		c := open(t, b.IN, stays.at(f, 80))
		if left := b.lives(t, f, "tcp", c.Local); len(left) != 1 || left[0] < 1000 {
			t.Errorf("a connection of a Service without a timeout has %v s to live", left)
		}
	})
}

func isReset(err error) bool {
	return err != nil && strings.Contains(err.Error(), unix.ECONNRESET.Error())
}
