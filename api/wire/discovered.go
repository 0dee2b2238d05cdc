package wire

import "time"

// Discovered is the report of `svcctl discover` on a provider of endpoints, in the annotation svcctl.io/endpoints-state of its
// Lease.
type Discovered struct {
	Kind     string            `json:"kind"`     // dns, consul, nomad, docker, targets
	Services int               `json:"services"` // that take endpoints from the provider
	States   []DiscoveredState `json:"states,omitempty"`
}

// The states of questions to providers. A question without a problem has none.
const (
	DiscoveredUnread = "unread" // no answer since the start: stored endpoints stay
	DiscoveredStale  = "stale"  // no answer any more: the endpoints of the last one stay
	DiscoveredEmpty  = "empty"  // the answer is empty
	DiscoveredHeld   = "held"   // the answer is empty, as are most others: the endpoints stay until that is confirmed
	DiscoveredBad    = "bad"    // a part of the answer cannot be used
)

// DiscoveredState is the state of one or several questions.
type DiscoveredState struct {
	State    string    `json:"state"`
	Why      string    `json:"why,omitempty"`
	Since    time.Time `json:"since"`
	Services int       `json:"services"`
	// Of has the questions, as in svcctl.io/endpoints-from without the provider; empty: all.
	Of []string `json:"of,omitempty"`
}
