package wire

import "time"

// Discovered is the report of svcctl discover about a provider of endpoints, such as Consul. It is stored in the annotation svcctl.io/endpoints-state
// of the provider's Lease.
type Discovered struct {
	Kind     string            `json:"kind"`     // dns, consul, nomad, docker, targets
	Services int               `json:"services"` // number of Services with endpoints from the provider
	States   []DiscoveredState `json:"states,omitempty"`
}

// The states of queries to providers. A query without a problem has no state.
const (
	DiscoveredUnread = "unread" // no answer since the start: stored endpoints stay
	DiscoveredStale  = "stale"  // no longer answered; the endpoints of the last answer are kept
	DiscoveredEmpty  = "empty"  // the answer is empty
	DiscoveredHeld   = "held"   // the answer is empty, like most others; endpoints are kept until an operator confirms that
	DiscoveredBad    = "bad"    // a part of the answer cannot be used
)

// DiscoveredState is the state of one or more queries to a provider.
type DiscoveredState struct {
	State    string    `json:"state"`
	Why      string    `json:"why,omitempty"`
	Since    time.Time `json:"since"`
	Services int       `json:"services"`
	// Of lists the queries, as written in svcctl.io/endpoints-from but without the provider; empty means all.
	Of []string `json:"of,omitempty"`
}
