package conntrack

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// exactPorts has the exact ports at the addresses of port ranges. A connection to one of these does not
// belong to the range, whichever endpoint it has.
type exactPorts struct {
	ranges map[netip.Addr]map[Frontend]string   // with the Service that has it
	exact  map[netip.Addr]map[Frontend]struct{} // at the same addresses
}

// isOtherPort reports whether an entry is of an exact port within the range.
func (f *Flows) isOtherPort(e *entry) bool {
	_, is := f.ExactPorts[Frontend{Addr: e.to.Addr(), Family: e.family, Protocol: e.protocol, Port: e.to.Port()}]
	return is
}

// drop takes the frontends of ports away.
func (b *exactPorts) drop(ports []Port) {
	if len(b.ranges) == 0 {
		return
	}
	for i := range ports {
		for _, fe := range ports[i].Frontends {
			if fe.Last == 0 {
				delete(b.exact[fe.Addr], fe)
				continue
			}
			delete(b.ranges[fe.Addr], fe)
			if len(b.ranges[fe.Addr]) == 0 {
				delete(b.ranges, fe.Addr)
				delete(b.exact, fe.Addr)
			}
		}
	}
}

// add adds the frontends of ports of a Service. all are those of all Services, which are gone through
// when an address gets its first range.
func (b *exactPorts) add(service string, ports []Port, all map[string][]Port) {
	for i := range ports {
		for _, fe := range ports[i].Frontends {
			if fe.Last == 0 {
				if exact := b.exact[fe.Addr]; exact != nil {
					exact[fe] = struct{}{}
				}
				continue
			}
			if b.ranges[fe.Addr] == nil {
				b.begin(fe.Addr, all)
			}
			b.ranges[fe.Addr][fe] = service
		}
	}
}

func (b *exactPorts) begin(addr netip.Addr, all map[string][]Port) {
	if b.ranges == nil {
		b.ranges, b.exact = map[netip.Addr]map[Frontend]string{}, map[netip.Addr]map[Frontend]struct{}{}
	}
	b.ranges[addr], b.exact[addr] = map[Frontend]string{}, map[Frontend]struct{}{}
	for _, ports := range all {
		for i := range ports {
			for _, fe := range ports[i].Frontends {
				if fe.Addr == addr && fe.Last == 0 {
					b.exact[addr][fe] = struct{}{}
				}
			}
		}
	}
}

// of are the exact ports beside a range, nil beside anything else.
func (b *exactPorts) of(fe Frontend) map[Frontend]struct{} {
	if fe.Last == 0 {
		return nil
	}
	return maps.Clone(b.exact[fe.Addr])
}

// follow updates the ranges for exact ports that came or went at their addresses. was has the previous
// ports of the Services that changed.
func (l *ChangeTracker) follow(was map[string][]Port, changes map[string][]Port) {
	for _, ports := range was {
		l.exactPorts.drop(ports)
	}
	for name := range changes {
		l.exactPorts.add(name, l.services[name], l.services)
	}
	if len(l.exactPorts.ranges) == 0 {
		return
	}
	for _, of := range []map[string][]Port{was, changes} {
		for _, ports := range of {
			for i := range ports {
				for _, fe := range ports[i].Frontends {
					for r, service := range l.exactPorts.ranges[fe.Addr] {
						l.noteRange(r, service)
					}
				}
			}
		}
	}
}

// noteRange notes a range again, for its drains.
func (l *ChangeTracker) noteRange(fe Frontend, service string) {
	if _, noted := l.work[fe]; noted {
		return
	}
	for i := range l.services[service] {
		p := &l.services[service][i]
		for j := range p.Frontends {
			if flows := p.flows(j); p.Frontends[j] == fe && flows.concerned() {
				l.note(flows)
			}
		}
	}
}

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
