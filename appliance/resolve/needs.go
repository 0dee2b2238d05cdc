package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/nft"
)

// NeedKind is the kind of a Need.
type NeedKind uint8

const (
	NeedListener     NeedKind = iota // a listener for relayed connections, of Protocol at At
	NeedReturnRoutes                 // routes by which answers to clients' own addresses come to this box, of Family
	NeedKeyPair                      // the Secret Name ("namespace/name") with tls.crt and tls.key
	NeedAuthority                    // the Secret Name with ca.crt
	NeedSourceSet                    // the source set Name
	NeedPlan                         // all else that only the plan of the Service Name depends on
	NeedHostPort                     // a port of the host, at which no program listens: of Family, Protocol, At; the zero Addr: a node port
)

// Need is something that a plan depends on besides objects, settings and facts of the host, such as a listener or a source set. Several
// Services may share it. Kind determines which fields are set.
type Need struct {
	Kind     NeedKind
	Protocol nft.Protocol
	Family   nft.Family
	At       netip.AddrPort
	Name     string
}

// AnyListener is a need of each Service with relayed ports, in addition to its own listeners.
var AnyListener = Need{Kind: NeedListener}

// Plans returns the needs whose change makes the loop plan Services, "namespace/name", again.
func Plans(services ...string) []Need {
	needs := make([]Need, len(services))
	for i, key := range services {
		needs[i] = Need{Kind: NeedPlan, Name: key}
	}
	return needs
}

// State is the state of a Need. The zero State means that it is met, or that a source set is not configured.
type State struct {
	// Missing is set when the Service cannot use what it needs. A Secret may be Wrong and usable: its last good version serves.
	Missing bool
	// Wrong is the problem with it, with the next step; "": none.
	Wrong string
	// Soon is the warning that a certificate expires soon, with the next step, "" if it does not.
	Soon string
	// Set is the content of a source set, nil if it was never read.
	Set *nft.SourceSet
}

// Demand has the needs of a Service for which Input.Observed has no state.
type Demand struct {
	Needs   []Need
	Targets []*health.Target
	Limited []Limited
	// Adopted is set when the plan depends on what the kernel served before this process.
	Adopted bool
}

// Limited has the endpoints of a port whose open connections are limited.
type Limited struct {
	Port      Port
	Frontends []netip.AddrPort
	Endpoints []netip.AddrPort // with port 0: the address with all of its ports
}

// Fullness reports whether an endpoint has as many open connections as its Service allows. Before its connections are counted, Full is set
// if the kernel served the frontend without this endpoint.
type Fullness struct{ Full, Counted bool }

// Frontend is an address and port that clients connect to; the zero Addr stands for a node port.
type Frontend struct {
	Family   nft.Family
	Protocol nft.Protocol
	At       netip.AddrPort
}

// Observed has the states of a Service's needs. Those that are not in it have the zero State.
type Observed struct {
	States map[Need]State
	// Verdicts are looked up fastest in the order of the endpoints.
	Verdicts []Verdict
	Full     map[Port]map[netip.AddrPort]Fullness
	// Dead are the endpoints that accept no connection of this host, after clients' connections to them failed.
	Dead map[netip.AddrPort]health.Dead
	// Adopted are the ports that the kernel served before this process; nil after the first plan.
	Adopted map[Frontend]*nft.ServicePort
	differs bool
}

// Verdict is the verdict on a checked endpoint. Known is false if there is none yet.
type Verdict struct {
	Target *health.Target
	health.Verdict
	Known bool
}

// Answer sets the state of a Need.
func (o *Observed) Answer(n Need, s State) {
	if o.States == nil {
		o.States = map[Need]State{}
	}
	o.States[n], o.differs = s, o.differs || s != State{}
}

// Judge adds verdicts on endpoints.
func (o *Observed) Judge(verdicts ...Verdict) {
	o.Verdicts = append(o.Verdicts, verdicts...)
	o.differs = o.differs || slices.ContainsFunc(verdicts, func(v Verdict) bool { return v.Known })
}

// Count sets the Fullness of an endpoint of a port.
func (o *Observed) Count(port Port, endpoint netip.AddrPort, f Fullness) {
	if o.Full == nil {
		o.Full = map[Port]map[netip.AddrPort]Fullness{}
	}
	if o.Full[port] == nil {
		o.Full[port] = map[netip.AddrPort]Fullness{}
	}
	o.Full[port][endpoint], o.differs = f, o.differs || f.Full
}

// Adopt sets the Service ports that the kernel served before this process.
func (o *Observed) Adopt(served map[Frontend]*nft.ServicePort) { o.Adopted, o.differs = served, true }

// Differs reports whether a state other than the zero State was added since the last call, so that the Service must be resolved again.
func (o *Observed) Differs() bool {
	differs := o.differs
	o.differs = false
	return differs
}

// First joins the first so many of names, with the number of the others: "a, b and 3 more".
func First[T any](names []T, most int) string {
	texts := make([]string, min(len(names), most))
	for i := range texts {
		texts[i] = fmt.Sprint(names[i])
	}
	text := strings.Join(texts, ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
