package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// The tests of this file are about packets that conntrack calls invalid: they belong to
// no connection, or lie outside of its window, so nothing translates them.

// strays sends segments of which at least one lies outside of any window: their sequence
// numbers are half of all numbers apart.
func strays(from *netlab.Host, source, to netip.AddrPort) {
	for _, seq := range []uint32{1 << 30, 3 << 30} {
		from.SendTCP(netlab.TCPHeader{From: source, To: to, Seq: seq, Ack: seq, Flags: netlab.TCPAck})
	}
}

// followed asks for something that comes behind all that was sent before: when it is
// answered, the others have come where they were going.
func (b *box) followed(t *testing.T, from *netlab.Host, to netip.AddrPort) {
	t.Helper()
	answers(t, from, "tcp", to)
}

// What comes for a Service's address leaves the box by no route, and the box answers
// nothing in its name.
func TestInvalid_packets_to_a_vip(t *testing.T) {
	b := policies(t, nil, l1r1)
	for _, f := range families { // one VIP on an interface, as announcing it does
		b.GW1.AddAddr("lo", f.lb(4)+f.pick("/32", "/128"))
	}
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, to := range append(f.externals(), f.cluster()) { // node ports are the box's own addresses
			c, err := b.EXT.Dial(to, patiently)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			router, client := b.RTR.Capture("box"), b.EXT.Capture("eth0")
			strays(b.EXT, c.Local, to)
			b.EXT.SendTCP(netlab.TCPHeader{From: netip.AddrPortFrom(f.of(b.EXT), 40999), To: to, Flags: netlab.TCPSyn | netlab.TCPAck})
			b.followed(t, b.EXT, to)
			if back := router.Packets(func(p netlab.Packet) bool { return !p.Outgoing && p.To == to }); len(back) != 0 {
				t.Errorf("packets for %s left the box again: %v", to, back)
			}
			if resets := client.Packets(func(p netlab.Packet) bool { return !p.Outgoing && p.From == to && p.TCPFlags&netlab.TCPRst != 0 }); len(resets) != 0 {
				t.Errorf("resets in the name of %s: %v", to, resets)
			}
			if err := c.Echo("still here", patiently); err != nil {
				t.Errorf("the connection to %s: %v", to, err)
			}
		}
	})
}

// What an endpoint sends to its client comes with the VIP's address or not at all.
func TestInvalid_packets_of_an_endpoint(t *testing.T) {
	b := policies(t, nil, l1)
	b.each(t, func(t *testing.T, b *box, f family) {
		endpoint := f.on(80, b.L1)[0]
		for client, to := range map[*netlab.Host]netip.AddrPort{b.IN: f.cluster(), b.EXT: f.balancer()} {
			c, err := client.Dial(to, patiently)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			atClient, atEndpoint := client.Capture("eth0"), b.L1.Capture("eth0")
			strays(b.L1, endpoint, c.Reply.Client)
			b.followed(t, client, to)
			if came := atClient.Packets(func(p netlab.Packet) bool { return !p.Outgoing && p.From == endpoint }); len(came) != 0 {
				t.Errorf("%s got packets of the endpoint's own address: %v", client.Name, came)
			}
			isReset := func(p netlab.Packet) bool {
				return !p.Outgoing && p.From == c.Reply.Client && p.To == endpoint && p.TCPFlags&netlab.TCPRst != 0
			}
			if resets := atEndpoint.Packets(isReset); len(resets) != 0 {
				t.Errorf("the endpoint got resets for what was not understood: %v", resets)
			}
			if err := c.Echo("still here", patiently); err != nil {
				t.Errorf("the connection of %s: %v", client.Name, err)
			}
		}
	})
}

// What is no connection of a Service's is none of our business: a handshake of which the
// box sees one direction alone goes through it.
func TestInvalid_packets_of_others(t *testing.T) {
	b := policies(t, nil, l1)
	b.each(t, func(t *testing.T, b *box, f family) {
		client := netip.AddrPortFrom(f.of(b.IN), 40998)
		seen := b.IN.Capture("eth0")
		sent := 0
		for _, from := range []*netlab.Host{b.L1, b.L2, b.R1} {
			b.hostSends(f, from, client, netlab.TCPSyn|netlab.TCPAck)
			sent++
		}
		b.followed(t, b.IN, f.cluster())
		came := seen.Packets(func(p netlab.Packet) bool { return !p.Outgoing && p.To == client })
		if len(came) != sent {
			t.Errorf("%d of %d packets came through: %v", len(came), sent, fmt.Sprint(came))
		}
	})
}

func (b *box) hostSends(f family, from *netlab.Host, to netip.AddrPort, flags uint8) {
	from.SendTCP(netlab.TCPHeader{From: netip.AddrPortFrom(f.of(from), 80), To: to, Seq: 1, Ack: 1, Flags: flags})
}
