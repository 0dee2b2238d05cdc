package wire

// The kinds of a Pool.
const (
	PoolClusterIP    = "clusterIP"
	PoolNodePort     = "nodePort" // node ports and health-check node ports
	PoolLoadBalancer = "loadBalancer"
)

// Allocations are the ranges that Services get addresses and ports from, and who holds
// what: the answer of /svcctl/v1/alloc.
type Allocations struct {
	Pools []Pool `json:"pools"`
	// Disagreements are where what is held, and what the Services say, are not the same.
	Disagreements []Disagreement `json:"disagreements"`
}

// Pool is one range.
type Pool struct {
	Kind   string `json:"kind"`             // clusterIP, nodePort or loadBalancer
	Family string `json:"family,omitempty"` // IPv4 or IPv6; left out for ports
	Range  string `json:"range"`            // 10.96.0.0/16, 30000-32767, 198.51.100.0-198.51.100.9
	// Size is how many values can be given, Used how many of them are held, of node ports
	// on any protocol. A /64 has more than every JSON reader keeps exactly.
	Size uint64 `json:"size"`
	Used uint64 `json:"used"`
	// Holders are in the order of their values, those outside of the range too, which were
	// given before it was changed.
	Holders []Holder `json:"holders"`
}

// Holder is who holds a value.
type Holder struct {
	Value    string   `json:"value"`    // 10.96.0.10, TCP 30080
	Services []string `json:"services"` // default/web; several share a load balancer IP
	// Outside says that the value is not in the range.
	Outside bool `json:"outside,omitempty"`
}

// Disagreement is a value that is held by a Service which does not have it, or that a
// Service has and does not hold.
type Disagreement struct {
	Kind     string `json:"kind"` // as that of a Pool
	Value    string `json:"value"`
	Service  string `json:"service"`
	Problem  string `json:"problem"`
	Repaired bool   `json:"repaired,omitempty"`
}
