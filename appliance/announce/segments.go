package announce

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/neighbor"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/task"
)

// segments holds the links of the box, the ports on which addresses are announced by ARP and NDP, and the states of addresses on the ports.
type segments struct {
	log   *slog.Logger
	tasks *errgroup.Group
	mark  func(netip.Addr) // called for each address that changed its state on a port
	may   func() bool      // reports whether this box answers; nil means always

	links      []node.Link
	ports      map[int]*port // by interface index
	states     map[netip.Addr]map[int]neighbor.Status
	known      map[netip.Addr]bool // announced by earlier ports, and not placed on a port since
	unreported map[netip.Addr]bool // placed without a probe, with no state reported by a port yet
	changed    chan int            // interface indexes of ports with changed states
	ended      chan ended          // ports that failed
	retry      <-chan time.Time
	wrong      map[int]string         // the reasons why interfaces have no port, by index
	past       wire.AnnouncerCounters // sums of the counters of closed ports
}

// port is a link on which addresses are announced by ARP and NDP.
type port struct {
	*neighbor.Port
	link  node.Link
	addrs map[netip.Addr]bool
	stop  context.CancelFunc
	mark  chan struct{} // signals that states of addresses on the port changed
	// contested holds the addresses that another host answers for as well, with the MAC address of that host.
	contested map[netip.Addr]neighbor.MAC
	// unanswered holds the addresses for which no host answers, although another box is active in the election.
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

// announces reports whether an address is in state Announced on any port.
func (s *segments) announces(addr netip.Addr) bool {
	for _, status := range s.states[addr] {
		if status.State == neighbor.Announced {
			return true
		}
	}
	return false
}

// keeps reports whether the next process should announce an address without a probe: it is announced now, or the previous process announced it and no
// port has reported a state since. A process that is killed right after its start thus passes on the addresses of the previous process.
func (s *segments) keeps(addr netip.Addr) bool {
	return s.known[addr] || s.unreported[addr] || s.announces(addr)
}

// counters returns the sums of the counters of all ports, closed ones included.
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

// open opens a port on a link, and runs it.
func (s *segments) open(ctx context.Context, l node.Link, ranges []Range) error {
	prefixes := make([]netip.Prefix, 0, len(ranges))
	for _, r := range ranges {
		prefixes = append(prefixes, r.prefix())
	}
	p := &port{link: l, addrs: map[netip.Addr]bool{}, contested: map[netip.Addr]neighbor.MAC{}, unanswered: map[netip.Addr]bool{}, mark: make(chan struct{}, 1)}
	var err error
	p.Port, err = neighbor.Open(&net.Interface{Index: l.Index, Name: l.Name, HardwareAddr: l.MAC}, prefixes, s.log, func() { task.Wake(p.mark) }, s.may)
	if err != nil {
		return err
	}
	ctx, p.stop = context.WithCancel(ctx)
	s.ports[l.Index] = p
	delete(s.wrong, l.Index)
	s.tasks.Go(func() error {
		err := p.Run(ctx)
		p.Close()
		task.Send(ctx, s.ended, ended{l.Index, p, err})
		return nil
	})
	s.tasks.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-p.mark:
			}
			if !task.Send(ctx, s.changed, l.Index) {
				return nil
			}
		}
	})
	s.log.Info("announcing on an interface", "interface", l.Name, "mac", l.MAC.String())
	return nil
}

// failed records why a port could not be opened, and reports whether that reason is new. It schedules a retry, except for missing
// privileges, which a running process does not gain.
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

// problems returns the reasons why links have no port, ordered by interface index.
func (s *segments) problems() (all []string) {
	for _, index := range slices.Sorted(maps.Keys(s.wrong)) {
		all = append(all, s.wrong[index])
	}
	return all
}

// silent returns a problem for each link with a port and without a carrier, ordered by interface index.
func (s *segments) silent() (all []string) {
	for _, index := range slices.Sorted(maps.Keys(s.ports)) {
		if l := s.ports[index].link; !l.Carrier {
			all = append(all, fmt.Sprintf("the adverts of this box are not received on %s: it has no carrier; look at the cable, the port of the switch, and the other end", l.Name))
		}
	}
	return all
}

// disputes returns a problem for each link on which another host answers for addresses of this box as well, ordered by interface index.
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

// unanswered returns a problem for each address that master, the active box of the election, advertises while no host answers for it.
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

// keepKnown adds the announced addresses to known, so that ports opened later announce them without a probe.
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

// collect copies the changed states of a port's addresses to s.states, and marks the addresses for the report.
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

// syncSegments opens and closes ports to match the links and the configured interfaces, and places all addresses on them.
func (a *announcer) syncSegments(ctx context.Context) error {
	links := selectLinks(a.segments.links, a.l2(), a.answerable())
	var macs []neighbor.MAC
	mine, follows := map[string]bool{}, false
	for _, l := range a.segments.links {
		follows = follows || has(&l, a.cfg.Follow)
		if l.MAC != nil {
			mine[l.MAC.String()] = true
			macs = append(macs, neighbor.MAC(l.MAC))
		}
	}
	for index, p := range a.segments.ports {
		l, still := links[index]
		if !still || l.Name != p.link.Name || !slices.Equal(l.MAC, p.link.MAC) {
			a.segments.stop(index)
			continue
		}
		back := l.Carrier && !p.link.Carrier
		p.link = l
		p.SetMine(macs)
		if back {
			p.Refresh()
		}
	}
	maps.DeleteFunc(a.segments.wrong, func(index int, _ string) bool { _, still := links[index]; return !still })
	if a.cfg.Follow.IsValid() {
		a.setPassive(!follows)
	}
	for index, l := range links {
		if a.segments.ports[index] != nil || len(a.ranges) == 0 {
			continue
		}
		if err := a.segments.open(ctx, l, a.answerable()); errors.Is(err, fs.ErrPermission) && len(a.cfg.L2) > 0 {
			return err
		} else if err != nil {
			if a.segments.failed(&l, err) {
				a.reports.soon()
			}
			continue
		}
		a.reports.everything() // of addresses on it
		a.segments.ports[index].SetMine(macs)
		if a.election != nil || a.cfg.Follow.IsValid() {
			a.segments.ports[index].SetPassive(a.passive)
		}
	}
	if a.election != nil {
		a.evaluate()
		if err := a.election.setLinks(ctx, links, mine); err != nil {
			return err
		}
	}
	for _, p := range a.segments.ports {
		for addr := range p.addrs {
			if !a.isWanted(addr) {
				a.place(addr)
			}
		}
	}
	for addr := range a.wanted {
		a.place(addr)
	}
	for _, addr := range a.cfg.Gateways {
		a.place(addr)
	}
	return nil
}

// isGateway reports whether an address is one of Config.Gateways. This box answers for them as soon as serve has sent its ranges, since the
// rules of serve are in force then.
func (a *announcer) isGateway(addr netip.Addr) bool { return slices.Contains(a.cfg.Gateways, addr) }

// answerable returns the ranges of all addresses that this box may answer for: those of serve, and the gateways.
func (a *announcer) answerable() []Range {
	if len(a.cfg.Gateways) == 0 || len(a.ranges) == 0 {
		return a.ranges
	}
	all := slices.Clone(a.ranges)
	for _, addr := range a.cfg.Gateways {
		all = append(all, Range{addr, addr})
	}
	return all
}

// advertised yields the addresses to list in VRRP adverts: wanted addresses and gateways.
func (a *announcer) advertised() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for addr := range a.wanted {
			if !yield(addr) {
				return
			}
		}
		slices.Values(a.cfg.Gateways)(yield)
	}
}

// gatewayProblems returns a problem for each gateway that no port answers for.
func (a *announcer) gatewayProblems() (problems []string) {
	if len(a.ranges) == 0 {
		return nil
	}
	for _, addr := range a.cfg.Gateways {
		answered := slices.ContainsFunc(slices.Collect(maps.Values(a.segments.ports)), func(p *port) bool { return p.addrs[addr] })
		onHost := slices.ContainsFunc(a.segments.links, func(l node.Link) bool { return has(&l, addr) })
		switch {
		case answered:
		case onHost:
			problems = append(problems, fmt.Sprintf("the gateway %s does not move with the election: an interface of this box has it, and the kernel answers; take it off the interface", addr))
		default:
			problems = append(problems, fmt.Sprintf("the gateway %s is not answered: it lies in no network of the interfaces of --l2; name the interface, or give it an address of that network", addr))
		}
	}
	return problems
}

// place adds an address to the ports that should announce it, and removes it from the others. A passive port, which exists only with an
// election, holds the address but does not answer.
func (a *announcer) place(addr netip.Addr) {
	where, wanted := a.wanted[addr]
	if a.isGateway(addr) {
		where, wanted = ad{Flags: true}, len(a.ranges) > 0
	}
	wanted = wanted && (!a.drained || a.election != nil || a.cfg.Follow.IsValid())
	for _, p := range a.segments.ports {
		want := wanted && where.on(p.link.Name, a.cfg.L2) && onLink(addr, &p.link) && !hostAnswers(addr, &p.link, a.segments.links)
		switch {
		case want && !p.addrs[addr]:
			p.addrs[addr] = true
			p.Add(addr, a.segments.known[addr])
			if a.segments.known[addr] {
				a.segments.unreported[addr] = true
			}
		case !want && p.addrs[addr]:
			delete(p.addrs, addr)
			p.Remove(addr)
		}
	}
	if a.segments.links != nil || !wanted { // before, there is no port to place it on
		delete(a.segments.known, addr) // the next port probes it
	}
}

// Auto in Config.L2 stands for all links with an address of the ranges in one of their networks.
const Auto = "auto"

// Range is a range of addresses; both ends belong to it.
type Range struct{ First, Last netip.Addr }

// parseRange parses "192.0.2.16-192.0.2.31".
func parseRange(text string) (r Range, err error) {
	first, last, _ := strings.Cut(text, "-")
	if r.First, err = netip.ParseAddr(first); err == nil {
		r.Last, err = netip.ParseAddr(last)
	}
	if err == nil && (r.First.BitLen() != r.Last.BitLen() || r.Last.Less(r.First)) {
		err = fmt.Errorf("%q is no range", text)
	}
	return r, err
}

func (r Range) contains(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// prefix returns the longest prefix that contains the whole range.
func (r Range) prefix() netip.Prefix {
	for bits := r.First.BitLen(); ; bits-- {
		if p := netip.PrefixFrom(r.First, bits).Masked(); p.Contains(r.Last) {
			return p
		}
	}
}

// selectLinks returns the links to announce on, by interface index. Only Ethernet links count: those that l2 names, or with Auto those with
// an address of the ranges in one of their networks.
func selectLinks(links []node.Link, l2 []string, ranges []Range) map[int]node.Link {
	all := map[int]node.Link{}
	for _, l := range links {
		if l.MAC != nil && (slices.Contains(l2, l.Name) || slices.Contains(l2, Auto) && slices.ContainsFunc(ranges, func(r Range) bool { return r.overlaps(&l) })) {
			all[l.Index] = l
		}
	}
	return all
}

// overlaps reports whether an address of the range lies in a network of a link.
func (r Range) overlaps(l *node.Link) bool {
	return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool {
		return !p.IsSingleIP() && (p.Contains(r.First) || p.Contains(r.Last) || r.contains(p.Addr()))
	})
}

// missing returns a problem for each interface in l2 that does not exist or is no Ethernet.
func missing(links []node.Link, l2 []string) (problems []string) {
	for _, name := range l2 {
		i := slices.IndexFunc(links, func(l node.Link) bool { return l.Name == name })
		switch {
		case name == Auto:
		case i < 0:
			problems = append(problems, fmt.Sprintf("nothing is announced on %s: there is no such interface, or it is down%s; it is used as soon as it is up: bring it up, or name another one with --l2 or in the L2Advertisement", name, thatAreUp(links)))
		case links[i].MAC == nil:
			problems = append(problems, fmt.Sprintf("nothing is announced on %s: it is no Ethernet; name another interface with --l2 or in the L2Advertisement", name))
		}
	}
	return problems
}

// thatAreUp returns the names of the Ethernet links, to append to a sentence, as in " (up are eth0, eth1)"; "" if there are none.
func thatAreUp(links []node.Link) string {
	var names []string
	for _, l := range links {
		if l.MAC != nil {
			names = append(names, l.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " (up are " + strings.Join(names, ", ") + ")"
}

// onLink reports whether hosts on a link send ARP or NDP queries for an address: it lies in one of the link's networks, and is not the
// address of the network itself or, in IPv4, its broadcast address.
func onLink(a netip.Addr, l *node.Link) bool {
	return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool {
		if !p.Contains(a) || p.IsSingleIP() || p.Addr().IsLinkLocalUnicast() {
			return false
		}
		if a.BitLen()-p.Bits() < 2 { // RFC 3021, RFC 6164
			return true
		}
		network := p.Masked()
		last := a.Is4() && !network.Contains(a.Next())
		return a != network.Addr() && !last
	})
}

// has reports whether an interface has an address.
func has(l *node.Link, a netip.Addr) bool {
	return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
}

// hostAnswers reports whether the kernel answers for an address on a link: because the link has the address, or, in IPv4, any link
// (arp_ignore is 0 by default).
func hostAnswers(a netip.Addr, on *node.Link, links []node.Link) bool {
	return slices.ContainsFunc(links, func(l node.Link) bool { return (a.Is4() || l.Index == on.Index) && has(&l, a) })
}
