package oracle

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// World has all inputs that decide the fate of a packet. Its objects are as stored:
// defaulted, with cluster IPs, node ports and load balancer IPs.
type World struct {
	Box       Box
	Services  []*object.Service
	Slices    []*object.EndpointSlice
	Endpoints []*object.Endpoints
	// Gateways have TCPRoutes and UDPRoutes, of one second if they have no time, and ReferenceGrants for these.
	Gateways []*object.Gateway
	Routes   []object.Object
	Grants   []*object.ReferenceGrant
	// Down are the servers that do not answer checks.
	Down map[netip.AddrPort]bool
	// Programs listen on the host, since before there were Services.
	Programs []Program

	holder *World // that of Hold, whose copies hold nothing
	held   []frontend
}

// Hold works out once what all packets have in common. The World may not be changed any more; copies of it may.
func (w *World) Hold() { w.held, w.holder = w.frontends(), w }

// Box describes the appliance's host and flags. It has more than 15 fields: one for each flag.
type Box struct {
	NodeName, Zone string
	Interfaces     []Interface
	Gateways       []netip.Addr
	Primary        []netip.Addr // the address of each family that the default route uses

	ServiceRanges     []netip.Prefix
	InternalSources   []netip.Prefix // --cluster-cidr
	ExternalIPRanges  []netip.Prefix // --external-ip-range
	Pools             []netip.Prefix // --load-balancer-pool
	InternalPools     []netip.Prefix // --load-balancer-internal-pool
	InsideSources     []netip.Prefix // --load-balancer-internal-from CIDR
	InsideInterfaces  []string       // --load-balancer-internal-from INTERFACE
	ClusterIPsInside  bool           // --cluster-ip-clients internal
	NodePortPrimary   bool           // --nodeport-addresses primary
	NodePortAddresses []netip.Prefix // --nodeport-addresses CIDR,...

	NodelessRemote       bool // --nodeless-endpoints remote
	SNATNever            bool // --snat never
	MasqueradeAll        bool // --masquerade-all
	SourceRangesApplyAll bool // --source-ranges-apply all
	Ping                 PingPolicy
	SourceSets           map[string][]netip.Prefix // --source-set
	EgressFrom           []netip.Prefix            // --egress-from
}

// Interface is a network interface of the host, with its addresses and prefix lengths.
type Interface struct {
	Name      string
	Addresses []netip.Prefix
}

// PingPolicy is --vip-ping.
type PingPolicy string

const (
	PingWhenReady PingPolicy = "when-ready"
	PingAlways    PingPolicy = "always"
	PingNever     PingPolicy = "never"
)

// Protocol is the protocol of a packet: one of a Service's, or an ICMP echo request.
type Protocol string

const (
	TCP  Protocol = object.ProtocolTCP
	UDP  Protocol = object.ProtocolUDP
	SCTP Protocol = object.ProtocolSCTP
	Ping Protocol = "ping"
)

// Packet is the first packet of a connection. Ports are ignored for ICMPEcho.
type Packet struct {
	Interface string // where it arrives; empty: the box itself sends it
	Protocol  Protocol
	From, To  netip.AddrPort
}

// String returns "TCP 203.0.113.2:40000 -> 172.30.0.1:80 from ext0".
func (p Packet) String() string {
	from := "from " + p.Interface
	if p.bySelf() {
		from = "by the box itself"
	}
	if p.Protocol == Ping {
		return fmt.Sprintf("ping %v -> %v %s", p.From.Addr(), p.To.Addr(), from)
	}
	return fmt.Sprintf("%s %v -> %v %s", p.Protocol, p.From, p.To, from)
}

func (p Packet) bySelf() bool { return p.Interface == "" }

// Kind is the fate of a packet.
type Kind string

const (
	Delivered   Kind = "delivered"   // to an endpoint of a Service
	Refused     Kind = "refused"     // TCP: reset; UDP and SCTP: ICMP port unreachable
	Unreachable Kind = "unreachable" // ICMP host unreachable, to a ping
	Dropped     Kind = "dropped"     // no answer at all
	Answered    Kind = "answered"    // the VIP answers a ping
	Untouched   Kind = "untouched"   // what the host or its routes do without Services
)

// Source is the client's address that the endpoint sees.
type Source string

const (
	Plain        Source = "plain"       // the client's own
	Masqueraded  Source = "masqueraded" // one of the box's
	EitherSource Source = "either source"
)

// Outcome is a possible fate of a packet.
type Outcome struct {
	Kind   Kind
	To     netip.AddrPort // of Delivered
	Source Source         // of Delivered
	Idle   time.Duration  // of Delivered: after how much silence the connection is forgotten; 0: as the host says
	// Hashed is set with Delivered when a hash chooses one of the outcomes, the same each time
	// (behaviors 221 and 228).
	Hashed bool
	// Range is set when the frontend is a range of ports (behavior 389).
	Range bool
}

// String returns "delivered to 10.180.0.1:8080, plain".
func (o Outcome) String() string {
	if o.Kind == Delivered {
		return fmt.Sprintf("delivered to %v, %s", o.To, o.Source)
	}
	return string(o.Kind)
}

// Allows reports whether the observed outcome conforms to this one.
func (o Outcome) Allows(observed Outcome) bool {
	observed.Idle = o.Idle // it does not show in a packet
	observed.Hashed, observed.Range = o.Hashed, o.Range
	if o.Source == EitherSource {
		observed.Source = EitherSource
	}
	return o == observed
}

// Manifest returns a file with the Services, without their status, and the slices and Endpoints of a world.
func (w *World) Manifest() string {
	var b strings.Builder
	add := func(o object.Object) {
		text, err := json.Marshal(o)
		if err != nil {
			panic(err) // our own types: a bug
		}
		fmt.Fprintf(&b, "---\n%s\n", text)
	}
	for _, o := range w.Services {
		service := object.DeepCopy(o)
		service.Status, service.Metadata.CreationTimestamp = object.ServiceStatus{}, nil
		add(service)
	}
	for _, o := range w.Slices {
		add(o)
	}
	for _, o := range w.Endpoints {
		add(o)
	}
	for _, o := range w.Gateways {
		add(o)
	}
	for _, o := range w.Routes {
		add(o)
	}
	for _, o := range w.Grants {
		add(o)
	}
	return b.String()
}
