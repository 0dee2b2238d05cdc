package conntrack

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// Frontend is an address, protocol and port that clients connect to.
type Frontend struct {
	Addr     netip.Addr // the VIP; the zero Addr for a node port
	Family   nft.Family
	Protocol nft.Protocol
	Port     uint16
	Last     uint16 // not 0: the last port of a range that begins with Port
}

func (f Frontend) compare(o Frontend) int {
	return cmp.Or(
		cmp.Compare(f.Family, o.Family), cmp.Compare(f.Protocol, o.Protocol),
		f.Addr.Compare(o.Addr), cmp.Compare(f.Port, o.Port), cmp.Compare(f.Last, o.Last))
}

// FrontendsOf returns the frontends of a Service port.
func FrontendsOf(p *nft.ServicePort) []Frontend {
	list := make([]Frontend, len(p.Frontends))
	for i := range p.Frontends {
		list[i] = Frontend{p.Frontends[i].Addr, p.Family, p.Protocol, p.Frontends[i].Port, p.Frontends[i].Last}
	}
	return list
}

// Ranges has those frontends that are port ranges, by address. The zero value is ready to use.
type Ranges map[netip.Addr][]Frontend

// Add adds a frontend, if it is a port range.
func (r *Ranges) Add(fe Frontend) {
	if fe.Last == 0 || slices.Contains((*r)[fe.Addr], fe) {
		return
	}
	if *r == nil {
		*r = Ranges{}
	}
	(*r)[fe.Addr] = append((*r)[fe.Addr], fe)
}

// Drop removes a frontend.
func (r Ranges) Drop(fe Frontend) {
	if len(r[fe.Addr]) == 0 {
		return
	}
	if r[fe.Addr] = slices.DeleteFunc(r[fe.Addr], func(o Frontend) bool { return o == fe }); len(r[fe.Addr]) == 0 {
		delete(r, fe.Addr)
	}
}

// At returns the value for the frontend that serves to, a client's destination with a single port. It tries exact ports first, then ranges,
// then node ports, if the address is one of nodePorts, on which they answer. ranges has the port ranges among the keys of the map.
func At[V any](of map[Frontend]V, to Frontend, ranges Ranges, nodePorts map[netip.Addr]bool) (v V, ok bool) {
	if v, ok = of[to]; ok {
		return v, ok
	}
	for _, r := range ranges[to.Addr] {
		if r.Protocol == to.Protocol && r.Port <= to.Port && to.Port <= r.Last {
			v, ok = of[r]
			return v, ok
		}
	}
	if !nodePorts[to.Addr] {
		return v, false
	}
	to.Addr = netip.Addr{}
	v, ok = of[to]
	return v, ok
}

// atFrontend returns the value in of for the frontend that the client of an entry connected to, as At does.
func atFrontend[V any](of map[Frontend]V, e *entry, nodePorts map[netip.Addr]bool, ranges Ranges) (v V, ok bool) {
	return At(of, Frontend{Addr: e.to.Addr(), Family: e.family, Protocol: e.protocol, Port: e.to.Port()}, ranges, nodePorts)
}

// addressSet returns a list of addresses as a set.
func addressSet(list []netip.Addr) map[netip.Addr]bool {
	set := make(map[netip.Addr]bool, len(list))
	for _, addr := range list {
		set[addr] = true
	}
	return set
}

// Port is a Service port in one family, with the endpoints and clients whose connections are kept.
type Port struct {
	Family    nft.Family
	Protocol  nft.Protocol
	Frontends []Frontend
	// Keep are the endpoints whose connections continue, sorted: those that get new
	// ones, and those that no longer do and still serve.
	Keep  []netip.AddrPort
	Drain Drain
	// Ended are endpoints whose TCP connections end at once, sorted; none of them is in Keep.
	Ended []netip.AddrPort
	// Sources has, for each of Frontends, the clients that may connect; nil: all clients to all of
	// them.
	Sources []sources
	Egress  nft.Egress
}

// flows returns the rules for the connections of one frontend of the port, by its index.
func (p *Port) flows(frontend int) Flows {
	flows := Flows{Frontend: p.Frontends[frontend], Keep: p.Keep, Drain: p.Drain, Ended: p.Ended}
	if p.Sources != nil {
		flows.Sources = p.Sources[frontend]
	}
	return flows
}

// PortOf returns the Port of a resolved Service port. serving are endpoints that keep their connections although they are in none of its
// pools: those with the condition serving of discovery/v1, terminating ones included, and those that topology or a traffic policy leaves
// out.
func PortOf(p *nft.ServicePort, serving []netip.AddrPort, drain Drain) Port {
	port := Port{Family: p.Family, Protocol: p.Protocol, Drain: drain, Frontends: FrontendsOf(p), Egress: p.Egress}
	for i := range p.Frontends {
		from := sourcesOf(&p.Frontends[i], p.Family == nft.IPv4)
		if from != nil && port.Sources == nil {
			port.Sources = make([]sources, len(p.Frontends))
		}
		if from != nil {
			port.Sources[i] = from
		}
	}
	keep := append(p.Pools[:len(p.Pools):len(p.Pools)], serving)
	for pool := range p.Relay {
		if p.Relay[pool].IsValid() && p.Takes(nft.Pool(pool)) {
			keep = append(keep, p.Relay[pool:pool+1])
		}
	}
	port.Keep = union(keep)
	return port
}

// union returns the sorted elements of all lists without duplicates. It returns the longest list itself if that contains all, which is the
// usual case.
func union(lists [][]netip.AddrPort) []netip.AddrPort {
	longest := slices.MaxFunc(lists, func(a, b []netip.AddrPort) int { return cmp.Compare(len(a), len(b)) })
	adds := func(list []netip.AddrPort) bool { return len(list) > 0 && !slices.Equal(list, longest) }
	if !slices.ContainsFunc(lists, adds) && slices.IsSortedFunc(longest, netip.AddrPort.Compare) {
		return longest // mostly
	}
	if all := slices.Compact(slices.SortedFunc(slices.Values(slices.Concat(lists...)), netip.AddrPort.Compare)); !slices.Equal(all, longest) {
		return all
	}
	return longest
}

func contains(sorted []netip.AddrPort, a netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(sorted, a, netip.AddrPort.Compare)
	return found
}

// Flows has the rules by which connections of a frontend stay, drain or are deleted.
type Flows struct {
	Frontend Frontend
	Keep     []netip.AddrPort // in order: connections to any other endpoint are stale
	Drain    Drain            // how long a stale connection may live
	Ended    []netip.AddrPort // in order: stale TCP connections to these may not live at all
	Sources  sources          // the clients that may connect: connections of others are stale
	// Gone is set when no Service has the frontend any more. Connections to it that were never translated are then left alone.
	Gone bool
	// ExactPorts has, for a range, the single ports within it that are served by themselves: their connections do not belong to the range.
	ExactPorts map[Frontend]struct{}
	// Look is set when some connection may be stale. Without it the Flows only correct
	// pending drains.
	Look bool
}

// concerned reports whether connections of the frontend can be stale at all. Those of TCP are kept unless they are drained or ended.
func (f *Flows) concerned() bool {
	return f.Frontend.Protocol != nft.TCP || f.Drain.On || len(f.Ended) > 0
}

// Work has the frontends and egress sources whose connections a change affects.
type Work struct {
	// NodePorts are the addresses on which node ports answer, Local those of the box.
	NodePorts, Local []netip.Addr
	Flows            []Flows
	Departed         map[leaver]Departed
	// Begun has the frontends to which clients may have begun connections before rules led these to a Service: all, with true, if the
	// rules were missing and have been restored, else the new ones of TCP. Flows has those of other protocols.
	Begun map[Frontend]bool
}

// sources are the clients that may connect: those that at least one admission admits; nil: all.
type sources []admission

// admission has the clients that may connect to a frontend, from nft.Frontend.
type admission struct {
	// ranges are in order and none within another; ranged is set when there are any in either family: other clients may not connect then.
	ranges      []netip.Prefix
	ranged      bool
	allow, deny []*nft.SourceSet
}

// sourcesOf returns the clients that may connect to a frontend; nil: all.
func sourcesOf(fe *nft.Frontend, is4 bool) sources {
	if fe.Sources == nil && fe.Sets == nil {
		return nil
	}
	a := admission{ranges: tidyPrefixes(fe.Sources, is4), ranged: fe.Sources != nil}
	if fe.Sets != nil {
		a.allow, a.deny = fe.Sets.Allow, fe.Sets.Deny
	}
	return sources{a}
}

// tidyPrefixes returns the prefixes of a family that lie in no other prefix, sorted.
func tidyPrefixes(prefixes []netip.Prefix, is4 bool) []netip.Prefix {
	all := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.Addr().Is4() == is4 {
			all = append(all, p.Masked())
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	kept := all[:0]
	for _, p := range all {
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// admit reports whether a client may connect.
func (s sources) admit(client netip.Addr) bool {
	return s == nil || slices.ContainsFunc(s, func(a admission) bool { return a.admit(client) })
}

func (a *admission) admit(client netip.Addr) bool {
	has := func(s *nft.SourceSet) bool { return s.Contains(client) }
	switch {
	case slices.ContainsFunc(a.deny, has):
		return false
	case !a.ranged && len(a.allow) == 0, slices.ContainsFunc(a.allow, has):
		return true
	}
	// Of prefixes that do not overlap, only the last one that starts at or before an address can
	// contain it.
	i, found := slices.BinarySearchFunc(a.ranges, client, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return found || i > 0 && a.ranges[i-1].Contains(client)
}

// equal reports whether two sources have the same ranges and sets. Different ones may still admit the same clients.
func (s sources) equal(o sources) bool {
	return (s == nil) == (o == nil) && slices.EqualFunc(s, o, func(a, b admission) bool {
		return a.ranged == b.ranged && slices.Equal(a.ranges, b.ranges) && slices.Equal(a.allow, b.allow) && slices.Equal(a.deny, b.deny)
	})
}

// mergeSources returns sources that admit every client which s or o admits.
func (s sources) mergeSources(o sources) sources {
	if s == nil || o == nil {
		return nil
	}
	if s.equal(o) {
		return s
	}
	return slices.Concat(s, o)
}

// exactPorts has the single ports at the addresses of port ranges. A connection to one of these does not belong to the range, whatever its
// endpoint.
type exactPorts struct {
	ranges map[netip.Addr]map[Frontend]string   // with the Service that has it
	exact  map[netip.Addr]map[Frontend]struct{} // at the same addresses
}

// isOtherPort reports whether an entry is of a single port within the range, and so not of the range.
func (f *Flows) isOtherPort(e *entry) bool {
	_, is := f.ExactPorts[Frontend{Addr: e.to.Addr(), Family: e.family, Protocol: e.protocol, Port: e.to.Port()}]
	return is
}

// drop removes the frontends of ports.
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

// add adds the frontends of the ports of a Service. all has the ports of all Services, which are searched when an address gets its first
// range.
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

// of returns the single ports at the address of a range; nil for a frontend that is no range.
func (b *exactPorts) of(fe Frontend) map[Frontend]struct{} {
	if fe.Last == 0 {
		return nil
	}
	return maps.Clone(b.exact[fe.Addr])
}

// follow records ranges again whose exact ports changed. was has the previous ports of the Services that changed.
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

// noteRange adds the Flows of a Service's range of ports to those that the next Take returns, as the exact ports within the range have
// changed.
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

// Origins looks up the original destinations of connections that were redirected to this host, in the connection tracking table of this
// network namespace. A lookup takes the same time however large the table. Its methods may be called concurrently.
type Origins struct {
	mu     sync.Mutex
	socket *socket // nil: not open
}

// errNoEntry means that the table has no entry for the connection.
var errNoEntry = errors.New("the connection is not tracked")

// Of returns the original destination of a client whose packets arrive at the local address at: at itself when nothing redirected them.
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

// origin returns the original destination of the entry whose replies go from at to the client.
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
