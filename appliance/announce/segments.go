package announce

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/neighbor"
	"svcctl.io/svcctl/appliance/node"
)

// segments has the interfaces of the box, and the states of addresses on them.
type segments struct {
	log   *slog.Logger
	tasks *errgroup.Group
	mark  func(netip.Addr) // called for each address that changed its state on a port
	may   func() bool      // whether this box answers; nil: always

	links      []node.Link
	ports      map[int]*port // by index of the interface
	states     map[netip.Addr]map[int]neighbor.Status
	known      map[netip.Addr]bool // announced by ports before these, and not placed since
	unreported map[netip.Addr]bool // placed as known, without a state from a port yet
	changed    chan int            // indexes of ports whose states changed
	ended      chan ended          // ports that ended by themselves
	retry      <-chan time.Time
	wrong      map[int]string         // the reasons why interfaces have no port, by index
	past       wire.AnnouncerCounters // of closed ports
}

// port is an interface that addresses are announced on.
type port struct {
	*neighbor.Port
	link  node.Link
	addrs map[netip.Addr]bool
	stop  context.CancelFunc
	mark  chan struct{} // its states changed
	// contested are the addresses that another host has as well, with that host.
	contested map[netip.Addr]neighbor.MAC
	// unanswered are the addresses that the active box of an election should answer for, and nobody does.
	unanswered map[netip.Addr]bool
}

type ended struct {
	index int
	p     *port
	err   error
}

func newSegments(log *slog.Logger, tasks *errgroup.Group, mark func(netip.Addr)) *segments {
	return &segments{
		log: log, tasks: tasks, mark: mark, ports: map[int]*port{}, states: map[netip.Addr]map[int]neighbor.Status{}, known: map[netip.Addr]bool{}, unreported: map[netip.Addr]bool{}, wrong: map[int]string{},
		changed: make(chan int, 1), ended: make(chan ended),
	}
}

// announces reports whether an address is announced on any interface.
func (s *segments) announces(addr netip.Addr) bool {
	for _, status := range s.states[addr] {
		if status.State == neighbor.Announced {
			return true
		}
	}
	return false
}

// keeps reports whether a restart should announce an address without a probe: one that is announced, or was by the process
// before and has no state from a port yet. A process that is killed at once leaves the file as it found it.
func (s *segments) keeps(addr netip.Addr) bool {
	return s.known[addr] || s.unreported[addr] || s.announces(addr)
}

// counters returns the sums over all ports, also closed ones.
func (s *segments) counters() wire.AnnouncerCounters {
	sum := s.past
	for _, p := range s.ports {
		sum = plus(sum, p.Counters())
	}
	return sum
}

func plus(sum wire.AnnouncerCounters, c neighbor.Counters) wire.AnnouncerCounters {
	return wire.AnnouncerCounters{Answers: sum.Answers + c.Answers, Announcements: sum.Announcements + c.Announcements, Conflicts: sum.Conflicts + c.Conflicts}
}

// open starts to announce on a link.
func (s *segments) open(ctx context.Context, l node.Link, ranges []Range) error {
	prefixes := make([]netip.Prefix, 0, len(ranges))
	for _, r := range ranges {
		prefixes = append(prefixes, r.prefix())
	}
	p := &port{link: l, addrs: map[netip.Addr]bool{}, contested: map[netip.Addr]neighbor.MAC{}, unanswered: map[netip.Addr]bool{}, mark: make(chan struct{}, 1)}
	var err error
	p.Port, err = neighbor.Open(&net.Interface{Index: l.Index, Name: l.Name, HardwareAddr: l.MAC}, prefixes, s.log, func() { signal(p.mark) }, s.may)
	if err != nil {
		return err
	}
	ctx, p.stop = context.WithCancel(ctx)
	s.ports[l.Index] = p
	delete(s.wrong, l.Index)
	s.tasks.Go(func() error {
		err := p.Run(ctx)
		p.Close()
		select {
		case s.ended <- ended{l.Index, p, err}:
		case <-ctx.Done():
		}
		return nil
	})
	s.tasks.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-p.mark:
			}
			select {
			case <-ctx.Done():
				return nil
			case s.changed <- l.Index:
			}
		}
	})
	s.log.Info("announcing on an interface", "interface", l.Name, "mac", l.MAC.String())
	return nil
}

// failed records the error of open, which is retried unless rights are missing: a running process gets none. It reports
// whether problems has another result.
func (s *segments) failed(l *node.Link, err error) (changed bool) {
	why := fmt.Sprintf("nothing is announced on %s for now: %v", l.Name, err)
	if errors.Is(err, fs.ErrPermission) {
		why += "; give the announcer CAP_NET_RAW, or remove the L2Advertisement"
	} else {
		later(&s.retry, retryPorts)
	}
	if s.wrong[l.Index] == why {
		return false
	}
	s.log.Warn("nothing is announced on an interface for now", "interface", l.Name, "err", err)
	s.wrong[l.Index] = why
	return true
}

// problems returns the reasons why interfaces have no port, in the order of their indexes.
func (s *segments) problems() (all []string) {
	for _, index := range slices.Sorted(maps.Keys(s.wrong)) {
		all = append(all, s.wrong[index])
	}
	return all
}

// silent returns a problem for each interface without a carrier, in the order of their indexes.
func (s *segments) silent() (all []string) {
	for _, index := range slices.Sorted(maps.Keys(s.ports)) {
		if l := s.ports[index].link; !l.Carrier {
			all = append(all, fmt.Sprintf("the adverts of this box are not received on %s: it has no carrier; look at the cable, the port of the switch, and the other end", l.Name))
		}
	}
	return all
}

// disputes returns a problem for each interface on which another host answers for our addresses, too, in the order of their
// indexes.
func (s *segments) disputes() (all []string) {
	for _, index := range slices.Sorted(maps.Keys(s.ports)) {
		p := s.ports[index]
		addrs := slices.SortedFunc(maps.Keys(p.contested), netip.Addr.Compare)
		if len(addrs) == 0 {
			continue
		}
		what := addrs[0].String()
		if more := len(addrs) - 1; more > 0 {
			what += fmt.Sprintf(" (and %d more)", more)
		}
		all = append(all, fmt.Sprintf("two boxes answer for %s on %s: this one, and the one with the Ethernet address %s; boxes of one election need the same --vrid and have to receive each other's adverts: look with `tcpdump -n -i %s vrrp`",
			what, p.link.Name, p.contested[addrs[0]], p.link.Name))
	}
	return all
}

// unanswered returns a problem for each address that the active box of an election advertises and no host answers for.
func (s *segments) unanswered(master netip.Addr) (all []string) {
	for _, index := range slices.Sorted(maps.Keys(s.ports)) {
		p := s.ports[index]
		for _, addr := range slices.SortedFunc(maps.Keys(p.unanswered), netip.Addr.Compare) {
			all = append(all, fmt.Sprintf("no box answers for %s on %s, and %s advertises that it does: if that is a box of this election, look at `svcctl status` there; if not, it forges adverts: find it with `tcpdump -e -n -i %s vrrp`",
				addr, p.link.Name, master, p.link.Name))
		}
	}
	return all
}

// stop closes a port, and removes the states of its addresses.
func (s *segments) stop(index int) {
	p := s.ports[index]
	s.past = plus(s.past, p.Counters())
	delete(s.ports, index)
	p.stop()
	for addr := range p.addrs {
		delete(s.unreported, addr)
		delete(s.states[addr], index)
		s.mark(addr)
	}
}

// keepKnown has the next ports announce the announced addresses without a probe.
func (s *segments) keepKnown() {
	for addr := range s.states {
		if s.announces(addr) {
			s.known[addr] = true
		}
	}
	maps.Copy(s.known, s.unreported)
}

func (s *segments) stopAll() {
	for index := range s.ports {
		s.stop(index)
	}
}

// collect takes the changed states of a port.
func (s *segments) collect(index int) {
	p := s.ports[index]
	if p == nil {
		return
	}
	now, gone := p.Changed()
	for _, is := range now {
		if s.states[is.Addr] == nil {
			s.states[is.Addr] = map[int]neighbor.Status{}
		}
		before := s.states[is.Addr][index].State
		s.states[is.Addr][index] = is
		delete(s.unreported, is.Addr)
		s.mark(is.Addr)
		if delete(p.unanswered, is.Addr); is.Unanswered {
			p.unanswered[is.Addr] = true
			s.log.Warn("no box answers for an address that the election gave to another box", "address", is.Addr, "interface", p.link.Name)
		}
		if delete(p.contested, is.Addr); is.Contested {
			p.contested[is.Addr] = is.Rival
			s.log.Warn("another host answers for an address that the election gave to this box", "address", is.Addr, "interface", p.link.Name, "mac", is.Rival.String())
		}
		switch {
		case is.State == neighbor.Conflict:
			s.log.Warn("another host has an address: it is not announced", "address", is.Addr, "interface", p.link.Name, "mac", is.Rival.String())
		case is.State == neighbor.Announced && before == neighbor.Conflict:
			s.log.Info("an address is announced again", "address", is.Addr, "interface", p.link.Name)
		}
	}
	for _, addr := range gone {
		delete(p.contested, addr)
		delete(p.unanswered, addr)
		delete(s.unreported, addr)
		delete(s.states[addr], index)
		if len(s.states[addr]) == 0 {
			delete(s.states, addr)
		}
		s.mark(addr)
	}
}
