package conntrack

import "time"

// Drain is the policy for connections to an endpoint that is gone. The zero value follows
// Kubernetes: those of TCP live on, all others are forgotten at once.
type Drain struct {
	On bool
	// Timeout bounds the life of a connection after its endpoint went.
	Timeout time.Duration
}
