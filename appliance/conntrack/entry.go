package conntrack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// entry is a decoded conntrack entry. It has more than 15 fields: one pass decodes all attributes in use into one reused value.
type entry struct {
	family    nft.Family
	protocol  nft.Protocol
	from, to  netip.AddrPort // source and destination of the client's packets
	replyFrom netip.AddrPort // source of the replies: the endpoint
	replyTo   netip.AddrPort // destination of the replies: the client as the endpoint sees it
	state     tcpState       // TCP only
	answered  bool           // a reply was seen (status SEEN_REPLY)
	assured   bool           // status ASSURED: not evicted when the table is full
	fast      bool           // a flowtable forwards its packets
	left      bool           // only the source is translated: an outgoing connection of the egress source from
	adopted   bool           // left is set, and from counts as the endpoint of an adopted TCP connection
	timeout   uint32         // seconds until it expires, unless a packet arrives
	in, out   uint64         // bytes from the client and from its peer, if counted
	counted   bool
	began     uint64 // Unix time in nanoseconds; 0 if unknown
	ended     uint64

	// Attributes that identify the entry in the kernel. The id differs from that of a newer entry with the same addresses.
	tuple, zone, id []byte
	zoned           bool // the zone applies to only one direction
}

// tcpState is the state of a TCP connection, enum tcp_conntrack of linux/netfilter/nf_conntrack_tcp.h.
type tcpState uint8

const (
	tcpSynSent     tcpState = 1
	tcpSynReceived tcpState = 2
	tcpEstablished tcpState = 3
	tcpFinWait     tcpState = 4
	tcpCloseWait   tcpState = 5
	tcpLastAck     tcpState = 6
	tcpTimeWait    tcpState = 7
	tcpClose       tcpState = 8
)

// isEstablished reports whether a TCP connection is open in at least one direction (SYN_RECV to CLOSE_WAIT).
func (e *entry) isEstablished() bool {
	return e.protocol == nft.TCP && tcpSynReceived <= e.state && e.state <= tcpCloseWait
}

// isEnding reports whether a TCP connection was closed by both sides, or reset.
func (e *entry) isEnding() bool {
	return e.protocol == nft.TCP && tcpLastAck <= e.state && e.state <= tcpClose
}

// decode decodes an entry from the body of a ctnetlink message. It returns false for invalid entries, and for protocols that Services do
// not use. The entry refers to the memory of the message.
func (e *entry) decode(body []byte) (ok bool) {
	if len(body) < nfnetlink.GenHeaderLen {
		return false
	}
	*e = entry{}
	var original, reply tuple
	var nat uint32
	var offloaded bool
	for kind, value := range nfnetlink.Attributes(body[nfnetlink.GenHeaderLen:]) {
		switch kind {
		case ctaTupleOrig:
			if !original.decode(value) {
				return false
			}
			e.tuple = value
		case ctaTupleReply:
			if !reply.decode(value) {
				return false
			}
		case ctaStatus:
			if len(value) == 4 {
				status := binary.BigEndian.Uint32(value)
				e.answered, e.assured = status&statusSeenReply != 0, status&statusAssured != 0
				nat, offloaded = status&(statusSrcNAT|statusDstNAT), status&statusOffload != 0
			}
		case ctaProtoInfo:
			e.state = tcpState(nfnetlink.Number(nfnetlink.Attribute(nfnetlink.Attribute(value, ctaProtoInfoTCP), ctaTCPState)))
		case ctaTimeout:
			if len(value) == 4 {
				e.timeout = binary.BigEndian.Uint32(value)
			}
		case ctaCountersTo:
			e.in, e.counted = decodeBytes(value), true
		case ctaCountersFr:
			e.out = decodeBytes(value)
		case ctaTimestamp:
			e.began, e.ended = decodeTimes(value)
		case ctaID:
			e.id = value
		case ctaZone:
			e.zone = value
		}
	}
	if e.tuple == nil || !reply.to.IsValid() || len(e.id) != 4 || original.protocol != reply.protocol {
		return false
	}
	e.protocol, e.family = original.protocol, nft.FamilyOf(original.to.Addr())
	e.fast = offloaded
	if offloaded && e.protocol == nft.TCP && e.state == 0 {
		e.state = tcpEstablished // the kernel reports neither state nor timeout (ctnetlink_dump_info)
	}
	e.from, e.to, e.replyFrom, e.replyTo = original.from, original.to, reply.from, reply.to
	e.zoned = original.zoned || reply.zoned
	e.left = nat == statusSrcNAT && e.to == e.replyFrom && !e.isDeadEnd()
	e.adopted = e.left && e.protocol == nft.TCP
	return true
}

// directions returns the source and destination of both directions of an entry, the client's packets first.
func (e *entry) directions() (client, endpoint [2]netip.AddrPort) {
	client, endpoint = [2]netip.AddrPort{e.from, e.to}, [2]netip.AddrPort{e.replyFrom, e.replyTo}
	if e.adopted {
		return endpoint, client
	}
	return client, endpoint
}

// tuple is one direction of a conntrack entry.
type tuple struct {
	protocol nft.Protocol
	from, to netip.AddrPort
	zoned    bool
}

func (t *tuple) decode(b []byte) (ok bool) {
	var from, to netip.Addr
	var fromPort, toPort uint16
	for kind, value := range nfnetlink.Attributes(b) {
		switch kind {
		case ctaTupleIP:
			from, to = decodeAddrs(value)
		case ctaTupleProto:
			t.protocol, fromPort, toPort = decodePorts(value)
		case ctaTupleZone:
			t.zoned = true
		}
	}
	switch t.protocol {
	case nft.TCP, nft.UDP, nft.SCTP:
	default:
		return false
	}
	t.from, t.to = netip.AddrPortFrom(from, fromPort), netip.AddrPortFrom(to, toPort)
	return t.from.IsValid() && t.to.IsValid()
}

func decodeAddrs(b []byte) (from, to netip.Addr) {
	for kind, value := range nfnetlink.Attributes(b) {
		switch addr, _ := netip.AddrFromSlice(value); kind {
		case ctaIPv4Src, ctaIPv6Src:
			from = addr
		case ctaIPv4Dst, ctaIPv6Dst:
			to = addr
		}
	}
	return from, to
}

func decodePorts(b []byte) (protocol nft.Protocol, from, to uint16) {
	for kind, value := range nfnetlink.Attributes(b) {
		switch {
		case kind == ctaProtoNum && len(value) == 1:
			protocol = nft.Protocol(value[0])
		case kind == ctaProtoSrcPort && len(value) == 2:
			from = binary.BigEndian.Uint16(value)
		case kind == ctaProtoDstPort && len(value) == 2:
			to = binary.BigEndian.Uint16(value)
		}
	}
	return protocol, from, to
}

func decodeBytes(b []byte) uint64 { return nfnetlink.Number(nfnetlink.Attribute(b, ctaCountersBytes)) }

func decodeTimes(b []byte) (began, ended uint64) {
	for kind, value := range nfnetlink.Attributes(b) {
		switch kind {
		case ctaTimestampStart:
			began = nfnetlink.Number(value)
		case ctaTimestampStop:
			ended = nfnetlink.Number(value)
		}
	}
	return began, ended
}

// delete appends the message that deletes exactly this entry, identified by its ID, and not a newer entry with the same addresses.
func (w *writer) delete(e *entry, sequence uint32) {
	w.begin(messageDelete, 0, sequence, familyNumber(e.family))
	w.nest(ctaTupleOrig, func() { w.Buf = append(w.Buf, e.tuple...) })
	if e.zone != nil {
		w.attribute(ctaZone, e.zone...)
	}
	w.attribute(ctaID, e.id...)
	w.End()
}

// tuple appends an attribute of this kind with one direction of a connection.
func (w *writer) tuple(kind uint16, protocol nft.Protocol, from, to netip.AddrPort) {
	w.nest(kind, func() {
		w.nest(ctaTupleIP, func() {
			w.addr(ctaIPv4Src, ctaIPv6Src, from.Addr())
			w.addr(ctaIPv4Dst, ctaIPv6Dst, to.Addr())
		})
		w.nest(ctaTupleProto, func() {
			w.attribute(ctaProtoNum, byte(protocol))
			w.Uint16(ctaProtoSrcPort, from.Port())
			w.Uint16(ctaProtoDstPort, to.Port())
		})
	})
}

// Messages of ctnetlink and their attributes (linux/netfilter/nfnetlink_conntrack.h).
const (
	subsystem     = unix.NFNL_SUBSYS_CTNETLINK << 8
	messageNew    = subsystem
	messageGet    = subsystem | 1
	messageDelete = subsystem | 2
	messageStats  = subsystem | 5 // since Linux 3.6

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaTimeout    = 7
	ctaCountersTo = 9  // counters of the client's packets, if net.netfilter.nf_conntrack_acct is set
	ctaCountersFr = 10 // counters of the endpoint's packets
	ctaID         = 12
	ctaNATDst     = 13
	ctaZone       = 18
	ctaTimestamp  = 20 // if net.netfilter.nf_conntrack_timestamp is set
	ctaFilter     = 25 // since Linux 5.8; ignored by older kernels
	ctaStatusMask = 26 // newer than ctaFilter; ignored by older kernels

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	ctaProtoInfoTCP     = 1
	ctaTCPState         = 1
	ctaTCPFlagsOriginal = 4
	ctaTCPFlagsReply    = 5

	ctaNATIPv4Min = 1
	ctaNATIPv4Max = 2
	ctaNATProto   = 3
	ctaNATIPv6Min = 4
	ctaNATIPv6Max = 5
	ctaNATPortMin = 1
	ctaNATPortMax = 2

	ctaFilterOrigFlags = 1

	ctaStatsEntries = 1

	ctaCountersBytes = 2

	ctaTimestampStart = 1
	ctaTimestampStop  = 2
)

// The multicast groups for new entries, and for deleted ones.
const (
	groupNew     = unix.NFNLGRP_CONNTRACK_NEW
	groupDestroy = unix.NFNLGRP_CONNTRACK_DESTROY
)

// Bits of an entry's status (linux/netfilter/nf_conntrack_common.h).
const (
	statusSeenReply = 1 << 1
	statusAssured   = 1 << 2
	statusConfirmed = 1 << 3
	statusSrcNAT    = 1 << 4
	statusDstNAT    = 1 << 5
	statusOffload   = 1 << 14 // a flowtable forwards its packets
)

// Flags that select the parts of the original tuple that a filtered dump compares (the kernel's net/netfilter/nf_internals.h).
const (
	filterIPDst   = 1 << 1
	filterProto   = 1 << 3
	filterDstPort = 1 << 5
)

// writer appends ctnetlink messages to a buffer.
type writer struct{ nfnetlink.Writer }

// begin starts a message; the caller must complete it with End.
func (w *writer) begin(kind, flags uint16, sequence uint32, family uint8) {
	w.Begin(kind, flags, sequence, family, 0)
}

func (w *writer) attribute(kind uint16, value ...byte) { w.Bytes(kind, value) }

func (w *writer) addr(kind4, kind6 uint16, a netip.Addr) {
	kind := kind6
	if a.Is4() {
		kind = kind4
	}
	w.Bytes(kind, a.AsSlice())
}

// nest appends an attribute that contains the attributes which inner appends.
func (w *writer) nest(kind uint16, inner func()) {
	start := w.Nest(kind)
	inner()
	w.EndNest(start)
}
