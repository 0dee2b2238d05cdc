package netlab

import (
	"net/netip"
	"testing"
)

// pair is two hosts on one segment, of which the second one serves.
func pair(t *testing.T) (client, server *Host, to netip.AddrPort) {
	t.Helper()
	l := New(t)
	client, server = l.Host("client"), l.Host("server")
	l.Segment("lan").Attach(client, "eth0", "10.1.0.1/24").Attach(server, "eth0", "10.1.0.2/24")
	server.Serve("udp", 80)
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
	server.Serve("tcp", 80)
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
