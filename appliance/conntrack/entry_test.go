package conntrack

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// body is a message about an entry, without its netlink header, as the kernel writes it.
func body(e *entry) []byte {
	w := writer{}
	w.begin(messageNew, 0, 1, familyNumber(e.family))
	w.tuple(ctaTupleOrig, e.protocol, e.from, e.to)
	w.tuple(ctaTupleReply, e.protocol, e.replyFrom, e.replyTo)
	w.nest(ctaProtoInfo, func() {
		w.nest(ctaProtoInfoTCP, func() { w.attribute(ctaTCPState, byte(e.state)) })
	})
	w.Uint32(ctaTimeout, e.timeout)
	if e.zone != nil {
		w.attribute(ctaZone, e.zone...)
	}
	w.attribute(ctaID, e.id...)
	w.End()
	return w.Buf[nfnetlink.HeaderLen:]
}

func entries() []entry {
	four := sent(tcp(vip, 80), l1)
	four.timeout, four.id, four.zone = 432000, []byte{1, 2, 3, 4}, []byte{0, 7}
	six := entry{
		family: nft.IPv6, protocol: nft.SCTP, from: netip.MustParseAddrPort("[2001:db8:203::2]:40000"),
		to: netip.AddrPortFrom(vip6, 53), replyFrom: netip.MustParseAddrPort("[fd00:10:180::1]:5353"),
		replyTo: netip.MustParseAddrPort("[fd00:10:180::ffff]:40001"), timeout: 3, id: []byte{0, 0, 0, 1},
	}
	return []entry{four, six}
}

func TestDecode(t *testing.T) {
	for _, want := range entries() {
		var got entry
		if !got.decode(body(&want)) {
			t.Fatalf("%+v is taken for no entry", want)
		}
		if got.family != want.family || got.protocol != want.protocol || got.from != want.from || got.to != want.to ||
			got.replyFrom != want.replyFrom || got.replyTo != want.replyTo || got.state != want.state || got.timeout != want.timeout ||
			!slices.Equal(got.zone, want.zone) || !slices.Equal(got.id, want.id) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	icmp := entries()[0]
	icmp.protocol = 1
	if new(entry).decode(body(&icmp)) {
		t.Error("an entry of ICMP is taken for one of a Service")
	}
}

// An entry whose packets a flowtable forwards comes without a TCP state and a timeout: it is established, so a drain resets both of its
// ends, which have time to speak. Without the flowtable an entry without a state is none.
func TestOffloadedIsEstablished(t *testing.T) {
	e := sent(tcp(vip, 80), l1)
	e.id, e.state = []byte{0, 0, 0, 7}, 0
	for status, want := range map[uint32]bool{statusOffload | statusAssured | statusDstNAT: true, statusAssured | statusDstNAT: false} {
		w := writer{nfnetlink.Writer{Buf: append(make([]byte, nfnetlink.HeaderLen), body(&e)...)}}
		w.Uint32(ctaStatus, status)
		var got entry
		if !got.decode(w.Buf[nfnetlink.HeaderLen:]) || got.isEstablished() != want {
			t.Errorf("with status %#x established is %v, want %v", status, got.isEstablished(), want)
		}
		if !want {
			continue
		}
		w = writer{}
		w.deadEnds(&got, host, 1)
		for m := range nfnetlink.Messages(w.Buf) {
			for kind, value := range nfnetlink.Attributes(m.Body[nfnetlink.GenHeaderLen:]) {
				if kind == ctaTimeout && nfnetlink.Number(value) != uint64(deadEndLife/time.Second) {
					t.Errorf("a dead end lives for %d s", nfnetlink.Number(value))
				}
			}
		}
	}
	e.protocol = nft.UDP
	w := writer{nfnetlink.Writer{Buf: append(make([]byte, nfnetlink.HeaderLen), body(&e)...)}}
	w.Uint32(ctaStatus, statusOffload)
	var got entry
	if !got.decode(w.Buf[nfnetlink.HeaderLen:]) || got.state != 0 {
		t.Errorf("a UDP flow has TCP state %d", got.state)
	}
}

// An entry that an endpoint's segment made is seen from its client; one that masquerades is none of a frontend, but for the port
// it was given.
func TestAdopted(t *testing.T) {
	at := netip.AddrPortFrom(vip, 80)
	e := entry{family: nft.IPv4, protocol: nft.TCP, from: l1, to: client, replyFrom: client, replyTo: at, state: tcpEstablished, id: []byte{0, 0, 0, 7}}
	withStatus := func(e *entry, status uint32) []byte {
		w := writer{nfnetlink.Writer{Buf: append(make([]byte, nfnetlink.HeaderLen), body(e)...)}}
		w.Uint32(ctaStatus, status)
		return w.Buf[nfnetlink.HeaderLen:]
	}
	var got entry
	if !got.decode(withStatus(&e, statusConfirmed|statusSrcNAT)) || !got.adopted || got.isThrough() {
		t.Fatalf("it is %+v", got)
	}
	got.in, got.out = 1, 2
	var c Connection
	got.describe(&c)
	if c.Client != client || c.To != at || c.Endpoint != l1 || c.As != client || !c.Open || !c.Adopted || c.In != 2 || c.Out != 1 {
		t.Errorf("it is described as %+v", c)
	}
	var w writer
	w.deadEnds(&got, host, 1)
	var froms []netip.AddrPort
	for m := range nfnetlink.Messages(w.Buf) {
		for kind, value := range nfnetlink.Attributes(m.Body[nfnetlink.GenHeaderLen:]) {
			var half tuple
			if kind == ctaTupleOrig && half.decode(value) {
				froms = append(froms, half.from)
			}
		}
	}
	if !slices.Equal(froms, []netip.AddrPort{client, l1}) {
		t.Errorf("dead ends are for %v, want the client's and the endpoint's", froms)
	}
	for status, e := range map[uint32]entry{statusDstNAT | statusSrcNAT: sent(tcp(vip, 80), l1), statusDstNAT: sent(tcp(vip, 80), l1), statusSeenReply: e} {
		e.id = []byte{0, 0, 0, 7}
		if !got.decode(withStatus(&e, status)) || got.adopted {
			t.Errorf("with status %#x it is %+v", status, got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, e := range entries() {
		f.Add(body(&e))
	}
	f.Add([]byte{2, 0, 0, 0, 4, 0, 1, 0x80})
	a := newSchedule()
	f.Fuzz(func(t *testing.T, b []byte) {
		var e entry
		if !e.decode(b) {
			return
		}
		if !e.to.IsValid() || !e.replyFrom.IsValid() || len(e.id) != 4 {
			t.Fatalf("half an entry: %+v", e)
		}
		a.items.of(&e, a.nodePorts)
		var w writer
		w.delete(&e, 1)
		w.deadEnds(&e, host, 2)
		n := 0
		for range nfnetlink.Messages(w.Buf) {
			n++
		}
		if n != 3 {
			t.Fatalf("%d messages to reset %+v, want %d", n, e, 3)
		}
	})
}
