package nft

import "slices"

// The dispatch maps count: each element has a counter of the first packets of connections that it
// decided about, of both directions none but the first, for these are NAT chains. Its verdict says
// what was counted (Refuses). What no element decides about is counted by named counters, in rules
// that only refused packets reach.

// The reasons for which packets are refused or dropped are the names of counters.
const (
	RefusedNoEndpoint   = "no-endpoint"        // a frontend whose Service has no endpoint for the client
	RefusedNoSuchPort   = "no-such-port"       // a port of a VIP that no Service has
	RefusedNotAllocated = "not-allocated"      // an address of a service range that no Service has
	RefusedSourceRange  = "source-range"       // a client that the frontend's source ranges leave out
	RefusedInsideOnly   = "inside-only"        // a client outside, of what only clients inside reach
	RefusedRate         = "rate-limit"         // more new connections than a Service's limit
	RefusedClientRate   = "client-rate-limit"  // more new connections than a client's limit
	RefusedClientConns  = "client-connections" // more open connections than a client's limit
	RefusedStray        = "stray"              // a packet of no connection, to or from a Service
)

// Refusals are the names of the counters, sorted.
var Refusals = []string{
	RefusedClientConns, RefusedClientRate, RefusedInsideOnly, RefusedNoEndpoint, RefusedNoSuchPort, RefusedNotAllocated, RefusedRate, RefusedSourceRange, RefusedStray,
}

// ofLimits are the names of the counters that are there while something is limited.
var ofLimits = []string{RefusedClientConns, RefusedClientRate, RefusedRate}

// reasons maps the chains that refuse to their reasons.
var reasons = map[string]string{chainRefuse: RefusedNoEndpoint, chainRefusePort: RefusedNoSuchPort, chainRefuseClient: RefusedClientConns}

// IsDispatch reports whether a map holds the verdicts of frontends.
func IsDispatch(set string) bool {
	switch set {
	case setLimited, setLimitedOutside, setNPLimited, setNPLimitedOutside, setPortRanges, setServices, setInsideServices, setOutsideServices, setNodePorts, setInsideNodePorts, setOutsideNodePorts:
		return true
	}
	return false
}

// on is the definition of a set on a box.
func (s Set) on(box *Box) Set {
	s.Counted = box.Counters && IsDispatch(s.Name)
	return s
}

// counted is a rule's last statements, with a counter before them if the box counts.
func (b *Box) counted(reason string, then ...Statement) []Statement {
	if !b.Counters {
		return then
	}
	return append([]Statement{Counter{reason}}, then...)
}

// setCounters keeps the counters that rules name. A table that is there has all of them, but for those of
// limits, which come with the first limit.
func (t *tableState) setCounters(box *Box) {
	t.counters = nil
	if t.exists && box.Counters {
		t.counters = Refusals
		if t.limits == 0 {
			t.counters = slices.DeleteFunc(slices.Clone(Refusals), func(name string) bool { return slices.Contains(ofLimits, name) })
		}
	}
}
