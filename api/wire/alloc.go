package wire

// The kinds of a Pool.
const (
	PoolClusterIP    = "clusterIP"
	PoolNodePort     = "nodePort" // node ports and health-check node ports
	PoolLoadBalancer = "loadBalancer"
)

// Allocations are the ranges of addresses and ports with the holders of their values: the
// answer to /svcctl/v1/alloc.
type Allocations struct {
	Pools []Pool `json:"pools"`
	// Disagreements are the differences between allocations and Services.
	Disagreements []Disagreement `json:"disagreements"`
}

// Pool is one range.
type Pool struct {
	Kind   string `json:"kind"`             // clusterIP, nodePort or loadBalancer
	Family string `json:"family,omitempty"` // IPv4 or IPv6; left out for ports
	Range  string `json:"range"`            // 10.96.0.0/16, 30000-32767, 198.51.100.0-198.51.100.9
	// Name names the IPAddressPool, as metallb-system/lan; left out for ranges of flags.
	Name string `json:"name,omitempty"`
	// Internal means that its addresses are reached from inside only.
	Internal bool `json:"internal,omitempty"`
	// Size is the number of values in the range, and Used the number allocated, node
	// ports on any protocol. A /64 has more than every JSON reader keeps exactly.
	Size uint64 `json:"size"`
	Used uint64 `json:"used"`
	// Holders are sorted by value. They include those outside the range, allocated before
	// the range was changed.
	Holders []Holder `json:"holders"`
}

// Holder is the Service that holds a value.
type Holder struct {
	Value    string   `json:"value"`    // 10.96.0.10, TCP 30080
	Services []string `json:"services"` // default/web; several share a load balancer IP
	// Outside means that the value is not in the range.
	Outside bool `json:"outside,omitempty"`
}

// Disagreement is a value that is allocated to a Service which does not have it, or that
// a Service has without an allocation.
type Disagreement struct {
	Kind     string `json:"kind"` // as that of a Pool
	Value    string `json:"value"`
	Service  string `json:"service"`
	Problem  string `json:"problem"`
	Repaired bool   `json:"repaired,omitempty"`
}
