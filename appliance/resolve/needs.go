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
	NeedListener     NeedKind = iota // the relay listener at At for Protocol
	NeedReturnRoutes                 // routes by which replies of endpoints to client addresses return to this box, for Family
	NeedKeyPair                      // the Secret Name ("namespace/name") with tls.crt and tls.key
	NeedAuthority                    // the Secret Name ("namespace/name") with ca.crt
	NeedSourceSet                    // the source set Name
	NeedPlan                         // any other change that requires Service Name to be planned again
	NeedHostPort                     // that no program of the host listens on At (Family, Protocol); the zero Addr means a node port
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

// AnyListener is a need of each Service with relayed ports, in addition to its own listeners. It changes when the addresses of the relay listeners
// do.
var AnyListener = Need{Kind: NeedListener}

// Plans returns a NeedPlan for each of services ("namespace/name"). Reporting these needs as changed makes the reconcile loop plan the Services
// again.
func Plans(services ...string) []Need {
	needs := make([]Need, len(services))
	for i, key := range services {
		needs[i] = Need{Kind: NeedPlan, Name: key}
	}
	return needs
}

// State is the state of a Need. The zero State means that the need is met, or, for a source set, that it is not configured.
type State struct {
	// Missing is set when the Service cannot use what it needs.
	Missing bool
	// Serves is set when the Service works with what it has although there is a problem (Wrong): the last valid version of a Secret, which has not expired.
	Serves bool
	// Wrong describes the problem with the needed object, and how to fix it; "" if there is none.
	Wrong string
	// Soon is the warning that a certificate expires soon, and what to do about it; "" if it does not.
	Soon string
	// Set is the content of a source set, nil if it was never read successfully.
	Set *nft.SourceSet
}

// Demand lists what a Service needs but Input.Observed does not contain.
type Demand struct {
	Needs   []Need
	Targets []*health.Target
	Limited []Limited
	// Adopted is set when the plan depends on what the kernel served before this process.
	Adopted bool
}

// Limited lists the endpoints of a port that have a connection limit.
type Limited struct {
	Port      Port
	Frontends []netip.AddrPort
	Endpoints []netip.AddrPort // port 0 stands for all ports of the address
}

// Fullness reports whether an endpoint has reached the connection limit of its Service. Until its connections are counted (Counted), Full is set if
// the kernel served the frontend without this endpoint.
type Fullness struct{ Full, Counted bool }

// Frontend is an address and port that clients connect to; the zero Addr stands for a node port.
type Frontend struct {
	Family   nft.Family
	Protocol nft.Protocol
	At       netip.AddrPort
}

// Observed holds the states of a Service's needs. A need without an entry has the zero State.
type Observed struct {
	States map[Need]State
	// Verdicts holds the health check results. Lookup is fastest if they are in the order of the endpoints.
	Verdicts []Verdict
	Full     map[Port]map[netip.AddrPort]Fullness
	// Dead holds the endpoints that failed for clients and then did not accept a connection from this host either.
	Dead map[netip.AddrPort]health.Dead
	// Adopted holds the ports that the kernel served before this process started, by frontend; nil after the first plan.
	Adopted map[Frontend]*nft.ServicePort
	differs bool
}

// Verdict is the health check result of an endpoint. Known is false if there is no result yet.
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

// Judge adds health check results of endpoints.
func (o *Observed) Judge(verdicts ...Verdict) {
	o.Verdicts = append(o.Verdicts, verdicts...)
	o.differs = o.differs || slices.ContainsFunc(verdicts, func(v Verdict) bool { return v.Known })
}

// Count sets whether an endpoint of a port has reached its connection limit.
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

// Differs reports whether a state other than the zero State was added since the last call, so that the Service must be resolved again. It resets this
// flag.
func (o *Observed) Differs() bool {
	differs := o.differs
	o.differs = false
	return differs
}

// First joins names with commas. If there are more than the number most, it appends the number of names left out: "a, b and 3 more".
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
