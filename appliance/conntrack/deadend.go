package conntrack

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

// A TCP connection whose time is over has to be reset, and the kernel cannot be told to
// do so for one that it forwards. Only to delete its entry would make a new connection
// of its next packet: from the client it would be balanced to an endpoint that has never
// heard of it and resets it, or be dropped where a policy has no answer; from the
// endpoint it would reach the client without translation, and be a stranger's.
//
// So two entries take the place of the one that is deleted, one for each end. They
// translate what that end sends to the box itself, whose TCP has no such connection and
// answers with the reset (RFC 9293, section 3.5.2). The answer goes back through the
// entry, so it comes from where that end expects its peer, with the sequence number that
// it takes; and with it the entry goes, for that is what a reset does to an entry that
// has seen no other reply.

// deadEndPort is the port of the box in entries that are dead ends: the one port that no socket can
// have, so no connection has it.
const deadEndPort = 0

// deadEndLife is the timeout of a dead end: longer than the two hours after which the endpoint
// sends keep-alives (RFC 9293, section 3.8.4).
const deadEndLife = 2*time.Hour + 15*time.Minute

// resettersOf chooses among the addresses of the box the one of each family that dead ends lead to.
func resettersOf(local []netip.Addr) map[nft.Family]netip.Addr {
	chosen := map[nft.Family]netip.Addr{}
	for _, addr := range local {
		if f := nft.FamilyOf(addr); !chosen[f].IsValid() && addr.IsGlobalUnicast() {
			chosen[f] = addr
		}
	}
	return chosen
}

// isDeadEnd reports whether the entry is the client's half of a dead end.
func (e *entry) isDeadEnd() bool {
	return e.protocol == nft.TCP && e.replyFrom.Port() == deadEndPort
}

// deadEnds writes the two messages that make a dead end of a connection whose entry was
// deleted. box is an address of the box. Either fails when the connection's next packet
// came first, or when an entry is in the way that has the same addresses and ports.
func (w *writer) deadEnds(e *entry, box netip.Addr, sequence uint32) {
	client, endpoint := e.directions()
	w.deadEnd(e, client[0], client[1], box, ports{deadEndPort, deadEndPort}, sequence)
	// Many connections may come from one port of an endpoint: each needs a port of
	// the box for itself. The kernel takes the client's if it can.
	w.deadEnd(e, endpoint[0], endpoint[1], box, ports{1, 65535}, sequence+1)
}

// deadEndMessages counts the messages that deadEnds writes.
const deadEndMessages = 2

type ports struct{ first, last uint16 }

func (w *writer) deadEnd(e *entry, from, to netip.AddrPort, box netip.Addr, at ports, sequence uint32) {
	w.begin(messageNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL, sequence, familyNumber(e.family))
	w.tuple(ctaTupleOrig, e.protocol, from, to)
	w.tuple(ctaTupleReply, e.protocol, to, from)
	w.nest(ctaNATDst, func() {
		w.addr(ctaNATIPv4Min, ctaNATIPv6Min, box)
		w.addr(ctaNATIPv4Max, ctaNATIPv6Max, box)
		w.nest(ctaNATProto, func() {
			w.Uint16(ctaNATPortMin, at.first)
			w.Uint16(ctaNATPortMax, at.last)
		})
	})
	// Only confirmed, as every entry is: one without a reply is deleted by the first
	// reset, and makes room when the table is full.
	const liberal = 0x08 // IP_CT_TCP_FLAG_BE_LIBERAL: any sequence number will do
	w.Uint32(ctaStatus, statusConfirmed)
	w.nest(ctaProtoInfo, func() {
		w.nest(ctaProtoInfoTCP, func() {
			w.attribute(ctaTCPState, byte(tcpEstablished))
			w.attribute(ctaTCPFlagsOriginal, liberal, liberal)
			w.attribute(ctaTCPFlagsReply, liberal, liberal)
		})
	})
	w.Uint32(ctaTimeout, min(e.timeout, uint32(deadEndLife/time.Second)))
	if e.zone != nil {
		w.attribute(ctaZone, e.zone...)
	}
	w.End()
}
