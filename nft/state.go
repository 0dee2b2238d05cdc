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
	Services map[string][]ServicePort // Service ports, by "namespace/name" of the Service
}

// Box holds the state and the configuration of the host that all Services share.
type Box struct {
	// NodePortAddresses are the box's addresses on which node ports answer. VIPs in this list are ignored, because a VIP never answers node ports.
	NodePortAddresses []netip.Addr
	// ServiceRanges are the prefixes from which cluster IPs are allocated.
	ServiceRanges []netip.Prefix
	// Owned are the ranges of addresses reserved for Services: no other host uses them. A packet to an address in them without a Service is dropped,
	// because the box would forward it by its default route to a router that may send it back. They must not include a network of the box, which
	// would cut off the box.
	Owned []Range
	// InternalSources are the prefixes of clients that count as inside.
	InternalSources []netip.Prefix
	// InsideSources are additional prefixes of clients that may connect to frontends with InsideOnly, besides InternalSources and clients on
	// interfaces with Inside.
	InsideSources []netip.Prefix
	// EgressFrom are the prefixes of the endpoints that may be Egress sources. To destinations in EgressFrom and InternalSources, a source keeps its
	// address.
	EgressFrom []netip.Prefix
	// Interfaces are the box's interfaces. They are needed to detect packets that leave by the interface on which they arrived.
	Interfaces []Interface
	// LocalAddresses lists all addresses of the box. An endpoint with one of them is the box itself, and connections to it never pass postrouting.
	LocalAddresses []netip.Addr
	// MasqueradeOnLink masquerades clients in the same network segment as the endpoint, because the endpoint's replies would bypass the box (--snat
	// auto).
	MasqueradeOnLink bool
	// Ping is the answer of a VIP to an echo request.
	Ping Ping
	// Fast is the flowtable of the fast path; nil if no Service may use it. Whether it is nil must not change during the life of a Compiler.
	Fast *Flowtable
	// Counters makes the kernel count connections and refusals. It must not change during the life of a Compiler.
	Counters bool
	// SettleFrom is the number of VIP frontends from which on a changed frontend gets its `goto` element later (see unsettled.go); 0 means 4096.
	SettleFrom int
}

// hasInternalSources reports whether InternalSources has a prefix of a family. If it has none, SNATOutside masquerades no client of the family.
func (b *Box) hasInternalSources(f Family) bool {
	return slices.ContainsFunc(b.InternalSources, func(p netip.Prefix) bool { return FamilyOf(p.Addr()) == f })
}

// IsInside reports whether a client counts as inside: it is an internal source, or the box itself.
func (b *Box) IsInside(client netip.Addr) bool {
	return slices.Contains(b.LocalAddresses, client) ||
		slices.ContainsFunc(b.InternalSources, func(p netip.Prefix) bool { return p.Contains(client) })
}

// inServiceRange reports whether an address is in ServiceRanges. It returns false for the zero Addr.
func (b *Box) inServiceRange(a netip.Addr) bool {
	return slices.ContainsFunc(b.ServiceRanges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Ping selects when a VIP answers ICMP echo requests.
type Ping uint8

const (
	PingWhenReady Ping = iota // answer while a Service at the VIP has an endpoint, otherwise host unreachable
	PingAlways
	PingNever // no answer
)

// Interface is a network interface with its connected prefixes.
type Interface struct {
	Index    uint32
	Name     string
	Prefixes []netip.Prefix // masked
	Inside   bool           // clients on this interface may connect to frontends with InsideOnly
}

// ServicePort is one port of one Service in one family: its frontends and the pools of endpoints behind them. It has more than 15 fields: they are
// all that the ruleset needs of a Service.
type ServicePort struct {
	ID              string // "namespace/name/port", used in the names of its maps and chains
	Family          Family
	Protocol        Protocol
	AffinityOptions AffinityOptions // options of the session affinity that Affinity enables
	// Balance chooses the endpoint of a new connection, in the kernel or in the port's relay. The ruleset of a port with a relay does not depend on
	// Balance, Weights and Refused.
	Balance Balance
	// Fast lets packets of established connections bypass rules and routing (flowtable). Slow is the reason, for display, why a port is not Fast; the
	// ruleset does not depend on it.
	Fast bool
	// RelayAlone sends clients to Relay even if the port has no endpoints, because the relay has other endpoints for them.
	RelayAlone bool
	// Refused is the weight of new connections that are refused, relative to the weights of the endpoints of each pool. It has no effect with
	// DestinationHash.
	Refused  [NumPools]uint16
	Affinity time.Duration // how long a client is remembered; 0 means no session affinity
	// Frontends are the addresses, ports and node ports that clients connect to.
	Frontends []Frontend
	// Pools holds the endpoints of each pool, without duplicates.
	Pools [NumPools][]netip.AddrPort
	// Weights holds the weights of endpoints in each pool, from 1 to 65535. An endpoint that is not in the map has weight 1.
	Weights [NumPools]map[netip.AddrPort]uint16
	// Backends, if not nil, divide the slots of a hash table among groups of endpoints. Weights and Refused must be consistent with them.
	Backends [NumPools][]Backend
	// Tables, if not nil, hold the endpoint in each slot of a pool's table, the zero AddrPort for an empty slot, and replace the table computed from
	// Balance and Weights. They were recovered from the kernel, or computed from open connections. Their length is one of tableSizes.
	Tables [NumPools][]netip.AddrPort
	// Starting lists new endpoints in slow start, with a growing weight. The ruleset does not depend on it.
	Starting []netip.AddrPort
	// Serving lists all endpoints that still serve connections, including those that no pool uses for new connections. The ruleset does not depend on
	// it, but the handling of open connections does.
	Serving []netip.AddrPort
	// Idle is the time, in whole seconds, after which conntrack drops an idle TCP or UDP connection; 0 means that the host's timeouts apply.
	Idle time.Duration
	Slow string // the reason why the port is not Fast
	// Limits bounds new and open connections.
	Limits Limits
	// Relay, if valid, is the listener on the box to which clients of a pool are sent while the pool has endpoints, or always with RelayAlone. The
	// relay connects to the endpoints.
	Relay [NumPools]netip.AddrPort
	// Egress is the source NAT of connections that endpoints of the Service open. At most one port of a Service has it in each family.
	Egress Egress
}

// Backend is a group of endpoints that share a part of a port's new connections. Weights are relative within the group.
type Backend struct {
	Name    string
	Share   uint32
	Weights map[netip.AddrPort]uint32
}

// AffinityOptions configures session affinity: which clients are treated as one, for which ports, and when the timeout restarts.
type AffinityOptions struct {
	// PrefixLen is the number of leading bits by which client addresses are compared: all clients in a prefix are treated as one. 0 compares all
	// bits.
	PrefixLen uint8
	// WholeService shares a client's endpoint among all ports of the Service with this option: each port sends the client to the same address, if
	// that is one of the port's endpoints.
	WholeService bool
	// Refresh restarts the affinity timeout on every reply of an endpoint, not only on the first reply of a connection.
	Refresh bool
}

// Relayed reports whether the port's clients are sent to a relay on the box.
func (p *ServicePort) Relayed() bool { return p.Relay[PoolCluster].IsValid() }

// SplitID splits the ID of a port into the Service, "namespace/name", and the name of the port, which is "" for a port without a name.
func SplitID(id string) (service, port string) {
	_, rest, _ := strings.Cut(id, "/")
	name, port, _ := strings.Cut(rest, "/")
	return id[:len(id)-len(rest)+len(name)], port
}

// Takes reports whether clients of a pool are accepted: the pool has endpoints, or a relay that needs none.
func (p *ServicePort) Takes(pool Pool) bool {
	return len(p.Pools[pool]) > 0 || p.RelayAlone && p.Relay[pool].IsValid()
}

// targets returns the destinations of a pool's clients in the kernel: the relay if the pool has one and accepts clients (Takes), otherwise the
// endpoints.
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

// Frontend is an address and port, or a node port, at which clients connect to a Service port.
type Frontend struct {
	Addr netip.Addr // the VIP; the zero Addr for a node port
	Port uint16     // the Service's port, or the node port
	// Last, if not 0, is the last port of a range that begins with Port. The address of a range is not HostOwned. DNAT keeps the port, so the
	// endpoints in Pools have port 0. The frontends of a Service port are either all ranges or all single ports; a Service port with ranges has no
	// Affinity, Idle or Relay.
	Last uint16
	// Internal is the route for internal sources and the box itself; External is the route for all other clients.
	Internal, External Route
	SNAT               SNAT
	// HostOwned means that the address belongs to the host, so that the Service gets only this port of it.
	HostOwned bool
	// Kind is the origin of the address. The ruleset does not depend on it, but it decides which Service gets a contested address.
	Kind FrontendKind
	// NamedPortsOnly means that Services get only the ports of their frontends at the address: packets to other ports, and pings, are not touched.
	// HostOwned implies it.
	NamedPortsOnly bool
	// Sources, if not nil, are the only prefixes that may connect. If it is empty but not nil, no client may connect.
	Sources []netip.Prefix
	// InsideOnly restricts the frontend to the box itself, internal sources and inside sources. Packets of other clients are dropped; at an address
	// this includes packets to other ports, and pings. All frontends of an address have the same value.
	InsideOnly bool
	// Sets, if not nil, are the source sets of clients that may or may not connect.
	Sets *SourceSets
	// Adopt takes over TCP connections in mid-stream when the first packet comes from an endpoint (see rule.go). It requires a single address and
	// port, and a Service port with a hash as Balance.
	Adopt bool
}

// Text returns what clients connect to: "192.0.2.10:80", "192.0.2.10:7000-7009", or ":30080" for a node port.
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

// FrontendKind is the origin of a frontend's address.
type FrontendKind uint8

const (
	ClusterIP FrontendKind = iota
	LoadBalancerIP
	ExternalIP
	NodePort // any address of the box
)

// wholeAddress reports whether the whole address of the frontend is dedicated to Services, so that packets to its other ports are refused.
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

// SNAT selects which clients of a frontend are masqueraded. Hairpin connections are always masqueraded.
type SNAT uint8

const (
	SNATNever   SNAT = iota // no client
	SNATOutside             // clients that are not in the internal sources
	SNATSelf                // clients on the box itself
	SNATAlways              // all clients
)

// Limits are the limits of a Service port. The zero value of a field means no limit.
type Limits struct {
	Rate, ClientRate  Rate
	ClientConnections uint32
	// ClientRatePrefix and ClientConnectionsPrefix are the prefix lengths by which clients are grouped for these limits: all clients in a prefix are
	// counted as one. 0 counts each address.
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
	// RoundRobin picks the endpoints in turn, by weight.
	RoundRobin
	// LeastConnection picks an endpoint at random from ServicePort.Tables, which the caller computes from the open connections.
	LeastConnection
	// DestinationHash sends all clients of a frontend to one endpoint, chosen by a hash of the frontend's address. Weights have no effect.
	DestinationHash
)

// SourceSet is a named, immutable set of client prefixes. It is one interval set in each table in which frontends refer to it, however many those
// are.
type SourceSet struct {
	Name string
	// Version orders SourceSets with the same name. The set with the highest version among those that frontends refer to is used for all frontends.
	Version uint64
	ranges  map[Family][]Range // in order, disjoint and not adjacent
}

// NewSourceSet returns a SourceSet of prefixes in any order. Overlapping prefixes are merged, because the kernel refuses overlapping ranges.
func NewSourceSet(name string, version uint64, prefixes []netip.Prefix) *SourceSet {
	s := &SourceSet{Name: name, Version: version, ranges: map[Family][]Range{}}
	for _, f := range Families {
		s.ranges[f] = slices.Clip(mergePrefixes(prefixes, f))
	}
	return s
}

// Len returns the number of ranges of a family, which is the number of elements of its interval set.
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

// HasPort reports whether port is the frontend's port, or in its range of ports.
func (fe *Frontend) HasPort(port uint16) bool {
	return port == fe.Port || fe.IsRange() && fe.Port <= port && port <= fe.Last
}

// EndpointText returns an endpoint as address and port. An endpoint of a range of ports, which has port 0, is returned as the address alone.
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
