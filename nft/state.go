package nft

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// State is the input of the Compiler: the box and its Services.
type State struct {
	Box      Box
	Services map[string][]ServicePort // by Service, "namespace/name"
}

// Box holds the facts and the configuration that all Services share.
type Box struct {
	// NodePortAddresses are the box's addresses on which node ports answer.
	// VIPs may be among them: a VIP never answers node ports.
	NodePortAddresses []netip.Addr
	// ServiceRanges are the prefixes cluster IPs come from.
	ServiceRanges []netip.Prefix
	// Owned are the ranges of addresses that are for Services alone: no other host answers there.
	// A packet to an address of theirs that no Service has is dropped: the box would send it
	// by its default route to a router that may send it back. No network of the box is in them,
	// or the box would be cut off it.
	Owned []Range
	// InternalSources are the prefixes of clients that count as inside.
	InternalSources []netip.Prefix
	// InsideSources are the prefixes of clients that reach frontends with InsideOnly, besides
	// InternalSources and the interfaces that are Inside.
	InsideSources []netip.Prefix
	// EgressFrom are the prefixes that the sources of Egress are in. Between hosts in them, and to InternalSources, a source
	// keeps its address.
	EgressFrom []netip.Prefix
	// Interfaces are the box's interfaces, to detect a packet that leaves where it came in.
	Interfaces []Interface
	// LocalAddresses lists all addresses of the box: an endpoint among them is the box itself, and
	// its connections never pass postrouting.
	LocalAddresses []netip.Addr
	// MasqueradeOnLink masquerades clients of an endpoint's own segment, whose
	// replies would bypass the box (--snat auto).
	MasqueradeOnLink bool
	// Ping is the answer of a VIP to an echo request.
	Ping Ping
	// Fast is the flowtable; nil: no Service is fast. Whether it is nil does not change as long as a Compiler lives.
	Fast *Flowtable
	// Counters has the kernel count connections and refusals. It is the same for as long as a
	// Compiler lives.
	Counters bool
	// SettleFrom is the number of VIP frontends from which on changed ones get their `goto` later, see unsettled.go; 0: 4096.
	SettleFrom int
}

// hasInternalSources reports whether any client counts as inside in a family. If none does,
// none counts as outside for SNATOutside either.
func (b *Box) hasInternalSources(f Family) bool {
	return slices.ContainsFunc(b.InternalSources, func(p netip.Prefix) bool { return FamilyOf(p.Addr()) == f })
}

// IsInside reports whether a client counts as inside: it is an internal source, or the box itself.
func (b *Box) IsInside(client netip.Addr) bool {
	return slices.Contains(b.LocalAddresses, client) ||
		slices.ContainsFunc(b.InternalSources, func(p netip.Prefix) bool { return p.Contains(client) })
}

// inServiceRange reports whether an address is one that cluster IPs come from. The zero
// Addr is not.
func (b *Box) inServiceRange(a netip.Addr) bool {
	return slices.ContainsFunc(b.ServiceRanges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Ping selects when a VIP answers ICMP echo requests.
type Ping uint8

const (
	PingWhenReady Ping = iota // while a Service on it has an endpoint; else host unreachable
	PingAlways
	PingNever // no answer
)

// Interface is a network interface with its connected prefixes.
type Interface struct {
	Index    uint32
	Name     string
	Prefixes []netip.Prefix // masked
	Inside   bool           // clients that come by it reach frontends with InsideOnly
}

// ServicePort is one port of one Service in one family: the frontends that it is
// reached by and the pools of endpoints behind them. It has more than 15 fields: they are all that the ruleset needs
// of a Service.
type ServicePort struct {
	ID              string // "namespace/name/port": names its affinity map and chains
	Family          Family
	Protocol        Protocol
	AffinityOptions AffinityOptions // of Affinity
	// Balance chooses the endpoint of a new connection, in the kernel, or in the relay of a port that has one. The
	// ruleset of a relayed port does not depend on it, nor on Weights and Refused.
	Balance Balance
	// Fast lets packets of established connections pass rules and routing by. Slow is the reason, for display, that a port is not Fast; the ruleset
	// does not depend on it.
	Fast bool
	// RelayAlone has clients sent to Relay also while the port has no endpoints: the relay has other endpoints for them.
	RelayAlone bool
	// Refused is the weight of new connections that are refused, beside those of the endpoints of each pool. With
	// DestinationHash it has no effect.
	Refused  [NumPools]uint16
	Affinity time.Duration // 0: none; else how long a client is remembered
	// Frontends are the addresses and node ports.
	Frontends []Frontend
	// Pools are the endpoints each pool holds; an address appears once in a pool.
	Pools [NumPools][]netip.AddrPort
	// Weights has the weights in each pool, 1 to 65535, of endpoints whose weight is not 1. Nil: all are 1.
	Weights [NumPools]map[netip.AddrPort]uint16
	// Backends, where not nil, have slots of their own in the table of a hash. Weights and Refused follow from them.
	Backends [NumPools][]Backend
	// Tables, where not nil, have the endpoint in each slot of a pool's table, the zero AddrPort in an
	// empty one, and replace the table computed from Balance and Weights. They were read back from a
	// kernel, or follow from open connections. The length is one of tableSizes.
	Tables [NumPools][]netip.AddrPort
	// Starting lists new endpoints whose weight grows. The ruleset does not depend on it.
	Starting []netip.AddrPort
	// Serving lists all endpoints that serve, also those that no pool uses for new connections. The
	// ruleset does not depend on it; what happens to open connections does.
	Serving []netip.AddrPort
	// Idle is the silence after which a connection of TCP or UDP is forgotten, in whole seconds; 0:
	// the host's timeouts apply.
	Idle time.Duration
	Slow string // see Fast
	// Limits bounds new and open connections.
	Limits Limits
	// Relay, where it is valid, is the listener on the box that clients of a pool are sent to while the pool has endpoints, or always with
	// RelayAlone. The relay connects to the endpoints.
	Relay [NumPools]netip.AddrPort
	// Egress is the source NAT of connections that endpoints of the Service open. At most one port of a Service has it in each family.
	Egress Egress
}

// Backend is a group of endpoints that together get a share of the new connections of a port, with their weights in it.
type Backend struct {
	Name    string
	Share   uint32
	Weights map[netip.AddrPort]uint32
}

// AffinityOptions configures session affinity: which clients count as one, for which ports, and for how
// long.
type AffinityOptions struct {
	// PrefixLen is the number of leading bits of a client's address that count: all clients of a prefix
	// are one. 0: all bits.
	PrefixLen uint8
	// WholeService shares a client's endpoint among all ports of the Service that set it: each of them sends the
	// client to the same address, if that is an endpoint of the port.
	WholeService bool
	// Refresh has every answer of an endpoint start the time again, not only the first one of a
	// connection.
	Refresh bool
}

// Relayed reports whether the port's clients are sent to listeners on the box.
func (p *ServicePort) Relayed() bool { return p.Relay[PoolCluster].IsValid() }

// SplitID returns the Service of the ID of a port, "namespace/name", and the name of the port, "" if it has none.
func SplitID(id string) (service, port string) {
	_, rest, _ := strings.Cut(id, "/")
	name, port, _ := strings.Cut(rest, "/")
	return id[:len(id)-len(rest)+len(name)], port
}

// Takes reports whether clients of a pool are let in: it has endpoints, or a relay that needs none.
func (p *ServicePort) Takes(pool Pool) bool {
	return len(p.Pools[pool]) > 0 || p.RelayAlone && p.Relay[pool].IsValid()
}

// targets returns the addresses that the kernel sends the clients of a pool to: its endpoints, or
// the relay.
func (p *ServicePort) targets(pool Pool) []netip.AddrPort {
	if !p.Takes(pool) || !p.Relay[pool].IsValid() {
		return p.Pools[pool]
	}
	return p.Relay[pool : pool+1 : pool+1]
}

// Pool names a selection of a Service port's endpoints.
type Pool uint8

const (
	PoolCluster Pool = iota // every usable endpoint
	PoolLocal               // the usable endpoints of this box
	NumPools
)

// Frontend is an address and port, or a node port, that a Service port answers on.
type Frontend struct {
	Addr netip.Addr // the VIP; the zero Addr for a node port
	Port uint16     // the Service's port, or the node port
	// Last, when not 0, is the last port of a range that begins with Port, at an address that is not
	// HostOwned. Clients get the same port of an endpoint: those of the pools have port 0. All
	// frontends of a Service port are ranges, or none is; one of ranges has no Affinity, Idle or Relay.
	Last uint16
	// Internal is the route of internal sources and the box itself, External that of all other clients.
	Internal, External Route
	SNAT               SNAT
	// HostOwned is set when the address belongs to the host: only this port of it is taken.
	HostOwned bool
	// Kind is the source of the address. The ruleset does not depend on it; the decision
	// between Services does.
	Kind FrontendKind
	// NamedPortsOnly limits the Services to the ports of their frontends on the address: packets to other ports, and
	// pings, are left alone. HostOwned implies it.
	NamedPortsOnly bool
	// Sources, when not nil, are the only prefixes that may connect. Empty and not nil: no client
	// may.
	Sources []netip.Prefix
	// InsideOnly restricts the frontend to the box itself, internal sources and inside sources. Other clients get no answer; at an address, neither
	// from its other ports nor to pings. All frontends of an address have the same value.
	InsideOnly bool
	// Sets, when not nil, are named sets of clients that may connect, or may not.
	Sets *SourceSets
	// Adopt takes TCP connections over in mid-stream when an endpoint speaks first, see rule.go. The frontend is a single address and port, of a
	// Service port whose Balance is a hash.
	Adopt bool
}

// Text returns what clients connect to: "192.0.2.10:80", "192.0.2.10:7000-7009", or ":30080" of a node port.
func (fe Frontend) Text() string {
	text := ":" + strconv.Itoa(int(fe.Port))
	if fe.Addr.IsValid() {
		text = netip.AddrPortFrom(fe.Addr, fe.Port).String()
	}
	if fe.IsRange() {
		text += "-" + strconv.Itoa(int(fe.Last))
	}
	return text
}

// FrontendKind is the source of a frontend's address.
type FrontendKind uint8

const (
	ClusterIP FrontendKind = iota
	LoadBalancerIP
	ExternalIP
	NodePort // any address of the box
)

// wholeAddress reports whether everything that is sent to the frontend's address is for
// Services, so that what no frontend takes is refused.
func (fe *Frontend) wholeAddress() bool {
	return fe.Addr.IsValid() && !fe.HostOwned && !fe.NamedPortsOnly
}

// Route is the destination of new connections of a frontend.
type Route struct {
	Pool Pool
	// Fallback is the answer to new connections while the pool is empty.
	Fallback Refusal
}

// Refusal is the answer to a connection without an endpoint.
type Refusal uint8

const (
	Refuse    Refusal = iota // reset or ICMP unreachable
	Blackhole                // no answer
)

// SNAT selects the clients of a frontend that are masqueraded. Hairpin connections always are.
type SNAT uint8

const (
	SNATNever   SNAT = iota // no client
	SNATOutside             // clients that are no internal source
	SNATSelf                // the box itself
	SNATAlways              // everybody
)

// Limits are the limits of a Service port; the zero value of a field: no limit.
type Limits struct {
	Rate, ClientRate  Rate
	ClientConnections uint32
	// ClientRatePrefix and ClientConnectionsPrefix are the numbers of leading bits of a client's address that count for
	// these limits: all clients of a prefix are one. 0: all bits.
	ClientRatePrefix, ClientConnectionsPrefix uint8
}

// Any reports whether there is a limit.
func (l Limits) Any() bool { return l != Limits{} }

// SourceSets are the source sets of a frontend. Clients in a set of Deny may not connect. If Allow
// is not empty, only clients in one of its sets or in Frontend.Sources may.
type SourceSets struct{ Allow, Deny []*SourceSet }

// Balance is the algorithm that chooses the endpoint of a new connection.
type Balance uint8

const (
	// Random draws by weight.
	Random Balance = iota
	// Maglev chooses by a hash of the client's address and port.
	Maglev
	// SourceHash chooses by a hash of the client's address.
	SourceHash
	// RoundRobin gives the endpoints of the Service port turns, by weight.
	RoundRobin
	// LeastConnection draws by weight, from ServicePort.Tables, which the caller makes from the
	// open connections.
	LeastConnection
	// DestinationHash gives each frontend the one endpoint that ranks highest for its
	// address; weights do not count.
	DestinationHash
)

// SourceSet is a named set of client prefixes. It is one interval set in each table of which
// a frontend names it, whatever their number, and is not changed once it is made.
type SourceSet struct {
	Name string
	// Version orders contents of one name: the highest one that a frontend brings is in force for all of them.
	Version uint64
	ranges  map[Family][]Range // in order, disjoint, and no two of them touch
}

// NewSourceSet makes a set of prefixes in any order, which may overlap. The kernel refuses
// ranges that do, so they are merged.
func NewSourceSet(name string, version uint64, prefixes []netip.Prefix) *SourceSet {
	s := &SourceSet{Name: name, Version: version, ranges: map[Family][]Range{}}
	for _, f := range Families {
		s.ranges[f] = slices.Clip(mergePrefixes(prefixes, f))
	}
	return s
}

// Len returns the number of ranges of a family, which are its elements.
func (s *SourceSet) Len(f Family) int { return len(s.ranges[f]) }

// Equal reports whether two sets hold the same addresses.
func (s *SourceSet) Equal(o *SourceSet) bool {
	same := func(f Family) bool { return slices.Equal(s.ranges[f], o.ranges[f]) }
	return same(IPv4) && same(IPv6)
}

// Contains reports whether an address is in the set.
func (s *SourceSet) Contains(a netip.Addr) bool {
	ranges := s.ranges[FamilyOf(a)]
	i, found := slices.BinarySearchFunc(ranges, a, func(r Range, a netip.Addr) int { return r.First.Compare(a) })
	return found || i > 0 && ranges[i-1].Last.Compare(a) >= 0
}

// IsRange reports whether the frontend is a range of ports.
func (fe *Frontend) IsRange() bool { return fe.Last != 0 }

// HasPort reports whether a port is the frontend's, or one of its range.
func (fe *Frontend) HasPort(port uint16) bool {
	return port == fe.Port || fe.IsRange() && fe.Port <= port && port <= fe.Last
}

// EndpointText returns an endpoint as an address and a port; one of a range of ports, which has port 0, as the address alone.
func EndpointText(at netip.AddrPort) string {
	if at.Port() == 0 {
		return at.Addr().String()
	}
	return at.String()
}

// PortText returns the port, "80", or the range, "10000-20000".
func (fe *Frontend) PortText() string {
	text := strconv.Itoa(int(fe.Port))
	if fe.IsRange() {
		text += "-" + strconv.Itoa(int(fe.Last))
	}
	return text
}
