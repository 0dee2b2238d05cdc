package conntrack

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft/nfnetlink"
)

// Messages of ctnetlink and their attributes (linux/netfilter/nfnetlink_conntrack.h).
const (
	subsystem     = unix.NFNL_SUBSYS_CTNETLINK << 8
	messageNew    = subsystem
	messageGet    = subsystem | 1
	messageDelete = subsystem | 2
	messageStats  = subsystem | 5 // kernel 3.6

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaTimeout    = 7
	ctaCountersTo = 9  // what the client sent, if net.netfilter.nf_conntrack_acct is set
	ctaCountersFr = 10 // what the endpoint sent
	ctaID         = 12
	ctaNATDst     = 13
	ctaZone       = 18
	ctaTimestamp  = 20 // if net.netfilter.nf_conntrack_timestamp is set
	ctaFilter     = 25 // kernel 5.8; older ones pass over it
	ctaStatusMask = 26 // younger than the filter; older kernels pass over it

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

// The multicast groups of entries that are new, and that are gone.
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
)

// Which parts of the original tuple a dump is filtered by (the kernel's
// net/netfilter/nf_internals.h).
const (
	filterIPDst   = 1 << 1
	filterProto   = 1 << 3
	filterDstPort = 1 << 5
)

// writer builds messages one behind the other.
type writer struct{ nfnetlink.Writer }

// begin starts a message; End completes it.
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

// nest writes an attribute that holds others.
func (w *writer) nest(kind uint16, inner func()) {
	start := w.Nest(kind)
	inner()
	w.EndNest(start)
}
