package conntrack

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
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
	Last     uint16 // last port of a range that begins with Port; 0 for a single port
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

// Index holds a value for each of some frontends. Its maps change only by Set and Delete.
type Index[V any] struct {
	Of     map[Frontend]V
	Ranges map[netip.Addr][]Frontend // the frontends that are port ranges, by address
}

// NewIndex returns an Index without frontends. size is how many are expected.
func NewIndex[V any](size int) Index[V] {
	return Index[V]{make(map[Frontend]V, size), map[netip.Addr][]Frontend{}}
}

// Set sets the value of a frontend.
func (x *Index[V]) Set(fe Frontend, v V) {
	if _, has := x.Of[fe]; fe.Last != 0 && !has {
		x.Ranges[fe.Addr] = append(x.Ranges[fe.Addr], fe)
	}
	x.Of[fe] = v
}

// Delete removes a frontend.
func (x *Index[V]) Delete(fe Frontend) {
	delete(x.Of, fe)
	if of := x.Ranges[fe.Addr]; len(of) > 0 {
		if x.Ranges[fe.Addr] = slices.DeleteFunc(of, func(o Frontend) bool { return o == fe }); len(x.Ranges[fe.Addr]) == 0 {
			delete(x.Ranges, fe.Addr)
		}
	}
}

// At returns the value of the frontend that serves `to`, the destination of a client. It tries the exact port first, then port ranges, and then node
// ports if the address is in nodePorts.
func (x *Index[V]) At(to Frontend, nodePorts map[netip.Addr]bool) (v V, ok bool) {
	if v, ok = x.Of[to]; ok {
		return v, ok
	}
	for _, r := range x.Ranges[to.Addr] {
		if r.Protocol == to.Protocol && r.Port <= to.Port && to.Port <= r.Last {
			v, ok = x.Of[r]
			return v, ok
		}
	}
	if !nodePorts[to.Addr] {
		return v, false
	}
	to.Addr = netip.Addr{}
	v, ok = x.Of[to]
	return v, ok
}

// of is At for the destination of the client's packets in an entry.
func (x *Index[V]) of(e *entry, nodePorts map[netip.Addr]bool) (v V, ok bool) {
	return x.At(Frontend{Addr: e.to.Addr(), Family: e.family, Protocol: e.protocol, Port: e.to.Port()}, nodePorts)
}

// addressSet converts a list of addresses to a set.
func addressSet(list []netip.Addr) map[netip.Addr]bool {
	set := make(map[netip.Addr]bool, len(list))
	for _, addr := range list {
		set[addr] = true
	}
	return set
}

// Port is a Service port of one family, with the endpoints and clients that keep their connections.
type Port struct {
	Family    nft.Family
	Protocol  nft.Protocol
	Frontends []Frontend
	// Keep lists the endpoints that keep their connections, sorted: those that get new connections, and those that get no new ones but still
	// serve.
	Keep  []netip.AddrPort
	Drain Drain
	// Ended lists the endpoints on which TCP connections are ended at once, sorted. None of them is in Keep.
	Ended []netip.AddrPort
	// Sources holds the clients that may connect, for each of Frontends. nil means that all clients may connect to all frontends.
	Sources []sources
	Egress  nft.Egress
}

// flows returns the rules for the connections of the frontend with the given index.
func (p *Port) flows(frontend int) Flows {
	flows := Flows{Frontend: p.Frontends[frontend], Keep: p.Keep, Drain: p.Drain, Ended: p.Ended}
	if p.Sources != nil {
		flows.Sources = p.Sources[frontend]
	}
	return flows
}

// PortOf returns the Port of a resolved Service port. serving lists endpoints that keep their connections although they are in none of its
// pools: those with the condition serving of discovery/v1, which may be terminating, or excluded by topology or a traffic policy.
func PortOf(p *nft.ServicePort, serving []netip.AddrPort, drain Drain) Port {
	port := Port{Family: p.Family, Protocol: p.Protocol, Drain: drain, Frontends: FrontendsOf(p), Egress: p.Egress}
	for i := range p.Frontends {
		from := sourcesOf(&p.Frontends[i], p.Family)
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

// union returns the sorted elements of all lists without duplicates. In the usual case that one list contains all elements, it returns that
// list itself.
func union(lists [][]netip.AddrPort) []netip.AddrPort {
	longest := slices.MaxFunc(lists, func(a, b []netip.AddrPort) int { return cmp.Compare(len(a), len(b)) })
	adds := func(list []netip.AddrPort) bool { return len(list) > 0 && !slices.Equal(list, longest) }
	if !slices.ContainsFunc(lists, adds) && slices.IsSortedFunc(longest, netip.AddrPort.Compare) {
		return longest // mostly
	}
	all := slices.Concat(lists...)
	slices.SortFunc(all, netip.AddrPort.Compare)
	if all = slices.Compact(all); !slices.Equal(all, longest) {
		return all
	}
	return longest
}

func contains(sorted []netip.AddrPort, a netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(sorted, a, netip.AddrPort.Compare)
	return found
}

// Flows holds the rules by which connections of a frontend are kept, drained or deleted.
type Flows struct {
	Frontend Frontend
	Keep     []netip.AddrPort // sorted; connections to any other endpoint are stale
	Drain    Drain            // how long a stale connection may continue
	Ended    []netip.AddrPort // sorted; stale TCP connections to these endpoints are ended at once
	Sources  sources          // the clients that may connect; connections of other clients are stale
	// Gone is set when the frontend belongs to no Service anymore. Connections to it that were never translated are then kept.
	Gone bool
	// ExactPorts holds, for a port range, the single ports within it that are frontends of their own. Connections to them do not belong to the
	// range.
	ExactPorts map[Frontend]struct{}
	// Look is set if connections may be stale, so that a scan is needed. Otherwise the Flows only update pending drains.
	Look bool
}

// concerned reports whether connections of the frontend can become stale. TCP connections are kept unless they are drained or ended.
func (f *Flows) concerned() bool {
	return f.Frontend.Protocol != nft.TCP || f.Drain.On || len(f.Ended) > 0
}

// Work holds the frontends and egress sources with connections that a change affects.
type Work struct {
	// NodePorts are the addresses on which node ports answer, Local all addresses of the box.
	NodePorts, Local []netip.Addr
	Flows            []Flows
	Departed         map[leaver]Departed
	// Begun holds the frontends that may have connections which predate their rules. If the rules were missing and have been restored, these
	// are all frontends, with the value true; otherwise the new TCP frontends, with false. Flows covers new frontends of other protocols.
	Begun map[Frontend]bool
}

// sources are the clients that may connect: those accepted by at least one admission. nil accepts all clients.
type sources []admission

// admission describes the clients that may connect to a frontend, from nft.Frontend.
type admission struct {
	// ranges are sorted, and none lies within another. ranged is set if the frontend has ranges in any family, so that clients outside of them
	// are refused.
	ranges      []netip.Prefix
	ranged      bool
	allow, deny []*nft.SourceSet
}

// sourcesOf returns the clients of one family that may connect to a frontend; nil means all.
func sourcesOf(fe *nft.Frontend, family nft.Family) sources {
	if fe.Sources == nil && fe.Sets == nil {
		return nil
	}
	a := admission{ranges: nft.MergedPrefixes(fe.Sources, family), ranged: fe.Sources != nil}
	if fe.Sets != nil {
		a.allow, a.deny = fe.Sets.Allow, fe.Sets.Deny
	}
	return sources{a}
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

// equal reports whether s and o have the same ranges and sets. If it returns false, they may still admit the same clients.
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

// exactPorts holds the single-port frontends at the addresses of port ranges. A connection to such a port does not belong to the range,
// whatever its endpoint.
type exactPorts struct {
	ranges map[netip.Addr]map[Frontend]string   // port ranges, with the name of their Service
	exact  map[netip.Addr]map[Frontend]struct{} // single ports at the same addresses
}

// isOtherPort reports whether an entry belongs to a single-port frontend within the range, and thus not to the range.
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

// of returns the single-port frontends at the address of a range; nil if fe is a single port itself.
func (b *exactPorts) of(fe Frontend) map[Frontend]struct{} {
	if fe.Last == 0 {
		return nil
	}
	return maps.Clone(b.exact[fe.Addr])
}

// follow calls noteRange for each range at an address with changed ports. `was` holds the previous ports of the changed Services, `changes` the new
// ones.
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

// noteRange adds the Flows of a port range to the next Take, because the exact ports within the range may have changed.
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
// network namespace. The time of a lookup does not depend on the size of the table. Its methods may be called concurrently.
type Origins struct {
	mu     sync.Mutex
	socket *socket // nil while not open
}

// errNoEntry means that the table has no entry for the connection.
var errNoEntry = errors.New("the connection is not tracked")

// Of returns the original destination of a connection from client to the local address `at`. It returns `at` if the connection was not redirected.
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

// origin returns the original destination of the connection with replies from `at` to client, or errNoEntry if the table has no entry for it.
func (s *socket) origin(protocol nft.Protocol, at, client netip.AddrPort) (to netip.AddrPort, err error) {
	var w writer
	w.begin(messageGet, 0, s.Sequence(1), familyNumber(nft.FamilyOf(at.Addr())))
	w.tuple(ctaTupleReply, protocol, at, client)
	w.End()
	err = s.Ask(w.Buf, func(messages iter.Seq[nfnetlink.Message]) error {
		for m := range messages {
			var e entry
			if m.Kind == messageNew && e.decode(m.Body) {
				to = e.to
			}
		}
		return nil
	})
	if errors.Is(err, unix.ENOENT) || err == nil && !to.IsValid() {
		return to, errNoEntry
	}
	return to, err
}
