package conntrack

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// socket is a netlink socket to ctnetlink.
type socket struct{ *nfnetlink.Socket }

// dial opens a socket in the network namespace of the file descriptor (0: the current
// one).
func dial(netns int) (*socket, error) {
	s, err := nfnetlink.Dial(nfnetlink.Options{NetNS: netns})
	if err != nil {
		return nil, err
	}
	return &socket{s}, nil
}

// count asks for the number of entries in this network namespace, those included that are
// not complete yet. Walking an empty table takes the kernel milliseconds, this does not.
func (s *socket) count() (entries uint32, err error) {
	var w writer
	sequence := s.Sequence(1)
	w.begin(messageStats, 0, sequence, unix.AF_UNSPEC)
	w.End()
	if err := s.Send(w.Buf); err != nil {
		return 0, err
	}
	datagram, err := s.Receive()
	if err != nil {
		return 0, err
	}
	for m := range nfnetlink.Messages(datagram) {
		switch {
		case m.Sequence != sequence:
		case m.Kind == unix.NLMSG_ERROR && m.Errno() != 0:
			return 0, m.Errno()
		case m.Kind == messageStats:
			for kind, value := range m.Attributes() {
				if kind == ctaStatsEntries && len(value) == 4 {
					return binary.BigEndian.Uint32(value), nil
				}
			}
		}
	}
	return 0, errors.New("the kernel does not report how many entries there are")
}

// dump asks for the entries that match the query and hands each datagram of the answer
// to take.
func (s *socket) dump(q query, take func(datagram []byte, sequence uint32) error) error {
	return s.request(familyNumber(q.family), func(w *writer) { w.filter(q) }, take)
}

// dumpAll asks for all entries. Nothing is filtered: for a filter that matches little the kernel
// walks its table at one go, with softirqs held back.
func (s *socket) dumpAll(take func(datagram []byte, sequence uint32) error) error {
	return s.request(unix.AF_UNSPEC, func(*writer) {}, take)
}

// request asks for a dump and reads its answer.
func (s *socket) request(family uint8, filter func(*writer), take func(datagram []byte, sequence uint32) error) error {
	var w writer
	sequence := s.Sequence(1)
	w.begin(messageGet, unix.NLM_F_DUMP, sequence, family)
	filter(&w)
	w.End()
	if err := s.Send(w.Buf); err != nil {
		return err
	}
	for {
		datagram, err := s.Receive()
		if err != nil {
			return err // also when it is quiet: a dump has an end mark
		}
		for m := range nfnetlink.Messages(datagram) {
			if m.Sequence == sequence && (m.Kind == unix.NLMSG_DONE || m.Kind == unix.NLMSG_ERROR) {
				if errno := m.Errno(); errno != 0 {
					return errno
				}
				return take(datagram, sequence)
			}
		}
		if err := take(datagram, sequence); err != nil {
			return err
		}
	}
}

// filter has the kernel leave out what cannot match (since 5.8). It compares the ports
// of TCP and UDP alone, and asked for an address of IPv6 it gives the entries that have
// another one: so of IPv6 no address is asked for.
func (w *writer) filter(q query) {
	flags := uint32(filterProto)
	nobody := netip.IPv4Unspecified()
	if q.family == nft.IPv6 {
		nobody = netip.IPv6Unspecified()
	}
	to := nobody
	if q.addr.Is4() {
		flags, to = flags|filterIPDst, q.addr
	}
	if q.port != 0 {
		flags |= filterDstPort
	}
	if q.unanswered {
		w.Uint32(ctaStatus, 0)
		w.Uint32(ctaStatusMask, statusSeenReply)
	}
	w.tuple(ctaTupleOrig, q.protocol, netip.AddrPortFrom(nobody, 0), netip.AddrPortFrom(to, q.port))
	w.nest(ctaFilter, func() {
		w.attribute(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, flags)...)
	})
}

func familyNumber(f nft.Family) uint8 {
	if f == nft.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}
