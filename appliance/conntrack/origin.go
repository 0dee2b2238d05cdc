package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// Origins finds what clients sent to before their packets were redirected, in the connection tracking
// table of this network namespace: one lookup for each question, however large the table. Its methods
// may be called concurrently.
type Origins struct {
	mu     sync.Mutex
	socket *socket // nil: not open
}

// errNoEntry means that the connection is not in the table.
var errNoEntry = errors.New("the connection is not tracked")

// Of returns what a client sent to whose packets arrive at a socket of this host: that socket itself
// when nothing redirected them.
func (o *Origins) Of(protocol nft.Protocol, at, client netip.AddrPort) (netip.AddrPort, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.socket == nil {
		s, err := dial(0)
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("open the connection tracking table: %w", err)
		}
		o.socket = s
	}
	to, err := o.socket.origin(protocol, at, client)
	if err != nil && !errors.Is(err, errNoEntry) {
		_ = o.socket.Close() // the next question has a new one
		o.socket = nil
	}
	return to, err
}

// origin asks for the entry whose replies go from at to the client.
func (s *socket) origin(protocol nft.Protocol, at, client netip.AddrPort) (to netip.AddrPort, err error) {
	var w writer
	sequence := s.Sequence(1)
	w.begin(messageGet, 0, sequence, familyNumber(nft.FamilyOf(at.Addr())))
	w.tuple(ctaTupleReply, protocol, at, client)
	w.End()
	if err := s.Send(w.Buf); err != nil {
		return to, err
	}
	datagram, err := s.Receive()
	if errors.Is(err, nfnetlink.ErrNoMessage) {
		return to, errNoEntry
	}
	if err != nil {
		return to, err
	}
	for m := range nfnetlink.Messages(datagram) {
		switch errno := m.Errno(); {
		case m.Sequence != sequence:
		case m.Kind == unix.NLMSG_ERROR && errno == unix.ENOENT:
			return to, errNoEntry
		case m.Kind == unix.NLMSG_ERROR && errno != 0:
			return to, errno
		case m.Kind == messageNew:
			var e entry
			if e.decode(m.Body) {
				return e.to, nil
			}
		}
	}
	return to, errNoEntry
}
