package netlab

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// pair is two hosts on one segment, of which the second one serves.
func pair(t *testing.T) (client, server *Host, to netip.AddrPort) {
	t.Helper()
	l := New(t)
	client, server = l.Host("client"), l.Host("server")
	l.Segment("lan").Attach(client, "eth0", "10.1.0.1/24", "fd00::1/64").Attach(server, "eth0", "10.1.0.2/24", "fd00::2/64")
	server.Serve("udp", 80)
	server.Serve("tcp", 80)
	return client, server, netip.MustParseAddrPort("10.1.0.2:80")
}

func TestSizedAndNarrow(t *testing.T) {
	t.Parallel()
	client, server, to := pair(t)
	seen := server.Capture("eth0")
	fragments := func() int {
		return len(seen.Packets(func(p Packet) bool { return !p.Outgoing && p.Fragment }))
	}
	for _, size := range []int{1, 1400, 4000, maxDatagram} {
		before := fragments()
		if reply, err := client.Ask("udp", to, Sized(size)); err != nil || reply.Server != "server" {
			t.Errorf("%d bytes: %v, %v", size, reply, err)
		}
		if fragmented := fragments() > before; fragmented != (size > 1472) {
			t.Errorf("%d bytes came in fragments: %t", size, fragmented)
		}
	}
	client.Narrow(to.Addr(), "eth0", "", 1300)
	before := fragments()
	if _, err := client.Ask("udp", to, Sized(1400)); err != nil || fragments() == before {
		t.Errorf("1400 bytes through a route for 1300: %v, fragments: %t", err, fragments() > before)
	}
}

func TestSendTCP(t *testing.T) {
	t.Parallel()
	client, server, to := pair(t)
	seen, answers := server.Capture("eth0"), client.Capture("eth0")
	from := netip.MustParseAddrPort("10.1.0.1:40000")
	client.SendTCP(TCPHeader{From: from, To: to, Seq: 1, Ack: 1, Flags: TCPAck})
	if _, err := client.Ask("tcp", to); err != nil { // comes behind it
		t.Fatal(err)
	}
	if came := seen.Packets(func(p Packet) bool { return p.From == from && p.To == to && p.TCPFlags == TCPAck }); len(came) != 1 {
		t.Errorf("%d segments came: %v", len(came), came)
	}
	// Its checksum is right: the server resets what it knows nothing of.
	if resets := answers.Packets(func(p Packet) bool { return p.To == from && p.TCPFlags&TCPRst != 0 }); len(resets) != 1 {
		t.Errorf("%d resets came back: %v", len(resets), resets)
	}
}

// Entries finds those of TCP and UDP in both families, as conntrack lists them, and no others.
func TestEntries(t *testing.T) {
	t.Parallel()
	client, server, _ := pair(t)
	server.LoadNft("table inet track { chain input { type filter hook input priority 0; ct state new accept; }; }")
	for network, protocol := range map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP} {
		for from, to := range map[netip.Addr]netip.Addr{client.Addr4(): server.Addr4(), client.Addr6(): server.Addr6()} {
			if _, err := client.Ask(network, netip.AddrPortFrom(to, 80)); err != nil {
				t.Fatal(err)
			}
			listed := strings.Count(server.Conntrack("-L", "-f", map[bool]string{false: "ipv4", true: "ipv6"}[to.Is6()], "-p", network, "--orig-port-dst", "80"), "\n")
			if found := server.Entries(protocol, from, netip.AddrPortFrom(to, 80)); listed != 1 || len(found) != 1 {
				t.Errorf("%s to %s: conntrack lists %d entries, found %q", network, to, listed, found)
			}
			if found := server.Entries(protocol, from, netip.AddrPortFrom(to, 81)); len(found) != 0 {
				t.Errorf("%s to another port of %s: %q", network, to, found)
			}
			if found := server.Entries(protocol, to, netip.AddrPortFrom(to, 80)); len(found) != 0 {
				t.Errorf("%s of another client to %s: %q", network, to, found)
			}
		}
	}
}
