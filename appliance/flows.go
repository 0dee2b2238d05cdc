package appliance

import (
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/resolve"
)

// connections cleans the connection tracking table up after a change. It works in the
// background and never keeps the loop waiting.
type connections interface {
	Expect(conntrack.Work)    // before the change is committed
	Reconcile(conntrack.Work) // after it
	Err() error               // why stale connections may live on
}

// untracked stands in where the connection tracking table cannot be reached.
type untracked struct{ err error }

func (u untracked) Expect(conntrack.Work)    {}
func (u untracked) Reconcile(conntrack.Work) {}
func (u untracked) Err() error               { return u.err }

// flowProblems says that stale connections may live on, if they may.
func (l *loop) flowProblems() []resolve.Problem {
	err := l.flows.Err()
	if err == nil {
		return nil
	}
	return []resolve.Problem{{
		Reason:  "StaleConnections",
		Message: "connections to endpoints that are gone may live on: " + err.Error(),
		Warning: true,
	}}
}

// numbers are the numbers of a cleaner for those who watch the appliance.
func numbers(s conntrack.Stats) metrics.Connections {
	return metrics.Connections{
		Looks: s.Looks, Entries: s.Entries, Forgotten: s.Forgotten,
		Reset: s.Reset, Failures: s.Failures, Draining: s.Draining,
	}
}
