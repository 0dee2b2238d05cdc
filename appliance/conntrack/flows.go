package conntrack

import (
	"cmp"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/nft"
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

// FrontendsOf are the frontends of a Service port.
func FrontendsOf(p *nft.ServicePort) []Frontend {
	list := make([]Frontend, len(p.Frontends))
	for i := range p.Frontends {
		list[i] = Frontend{p.Frontends[i].Addr, p.Family, p.Protocol, p.Frontends[i].Port, p.Frontends[i].Last}
	}
	return list
}

// Ranges are the frontends that are ranges, by address. The zero value is ready to use.
type Ranges map[netip.Addr][]Frontend

// Add adds a frontend, if it is a range.
func (r *Ranges) Add(fe Frontend) {
	if fe.Last == 0 || slices.Contains((*r)[fe.Addr], fe) {
		return
	}
	if *r == nil {
		*r = Ranges{}
	}
	(*r)[fe.Addr] = append((*r)[fe.Addr], fe)
}

// Drop takes a frontend away.
func (r Ranges) Drop(fe Frontend) {
	if fe.Last == 0 {
		return
	}
	left := slices.DeleteFunc(r[fe.Addr], func(o Frontend) bool { return o == fe })
	if len(left) == 0 {
		delete(r, fe.Addr)
		return
	}
	r[fe.Addr] = left
}

// rangesOf are the ranges among the keys of a map.
func rangesOf[V any](of map[Frontend]V) (ranges Ranges) {
	for fe := range of {
		ranges.Add(fe)
	}
	return ranges
}

// At looks up the frontend of a client's destination, a single port at an address. ranges are those of the map, and
// nodePorts the addresses on which node ports answer: exact ports go first, then ranges.
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

// atFrontend is At for an entry's client.
func atFrontend[V any](of map[Frontend]V, e *entry, nodePorts map[netip.Addr]bool, ranges Ranges) (v V, ok bool) {
	return At(of, Frontend{Addr: e.to.Addr(), Family: e.family, Protocol: e.protocol, Port: e.to.Port()}, ranges, nodePorts)
}

// addressSet makes a set of addresses.
func addressSet(list []netip.Addr) map[netip.Addr]bool {
	set := make(map[netip.Addr]bool, len(list))
	for _, addr := range list {
		set[addr] = true
	}
	return set
}

// Port is a port of a Service, in one family, as its connections see it.
type Port struct {
	Family    nft.Family
	Protocol  nft.Protocol
	Frontends []Frontend
	// Keep are the endpoints whose connections go on, in order: those that get new
	// ones and those that do not any more and still serve.
	Keep  []netip.AddrPort
	Drain Drain
	// Ended are endpoints whose TCP connections end at once, in order; none of them is in Keep.
	Ended []netip.AddrPort
	// Sources has, for each of Frontends, the clients that may connect; nil: all clients to all of
	// them.
	Sources []sources
	Egress  nft.Egress
}

// flows returns the rules for the connections of one frontend of the port.
func (p *Port) flows(frontend int) Flows {
	flows := Flows{Frontend: p.Frontends[frontend], Keep: p.Keep, Drain: p.Drain, Ended: p.Ended}
	if p.Sources != nil {
		flows.Sources = p.Sources[frontend]
	}
	return flows
}

// PortOf is the Port of a resolved Service port. serving are the endpoints that may keep
// their connections besides those in its pools: discovery/v1 conditions serving, be they
// terminating, and those that topology or a traffic policy passes over.
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

// union returns the elements of all lists, sorted and once. It returns the longest list itself when that
// one has them all, as with most Services.
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
	// Gone: no Service has the frontend any more. A connection to it that was never
	// translated is none of ours then.
	Gone bool
	// ExactPorts are, of a range, the exact ports within it that are served: connections to them are
	// none of the range's.
	ExactPorts map[Frontend]struct{}
	// Look is set when some connection may be stale. Without it the Flows only correct
	// pending drains.
	Look bool
}

// concerned reports whether connections of the frontend can be stale at all: those of TCP
// are left alone unless they are drained or ended.
func (f *Flows) concerned() bool {
	return f.Frontend.Protocol != nft.TCP || f.Drain.On || len(f.Ended) > 0
}

// Work lists the frontends whose connections a change affects.
type Work struct {
	// NodePorts are the addresses on which node ports answer, Local those of the box.
	NodePorts, Local []netip.Addr
	Flows            []Flows
	Departed         map[leaver]Departed
	// Restored has all frontends if the rules were missing and have been restored; else it is
	// empty.
	Restored map[Frontend]struct{}
}
