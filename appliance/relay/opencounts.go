package relay

import (
	"net/netip"
	"sync"
)

// openCounts counts the open connections, and clients of UDP, to the endpoints of ports. Ports of one ID and
// protocol, as those of both pools of a Service port and those that server names lead to, count together.
type openCounts struct {
	mu sync.Mutex
	of map[countKey]map[netip.AddrPort]int // without zeros
}

type countKey struct{ id, protocol string }

func newOpenCounts() *openCounts {
	return &openCounts{of: map[countKey]map[netip.AddrPort]int{}}
}

// add counts a connection.
func (o *openCounts) add(k countKey, endpoint netip.AddrPort) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of[k] == nil {
		o.of[k] = map[netip.AddrPort]int{}
	}
	o.of[k][endpoint]++
}

// done takes a connection out that was counted.
func (o *openCounts) done(k countKey, endpoint netip.AddrPort) {
	o.mu.Lock()
	defer o.mu.Unlock()
	of := o.of[k]
	if n := of[endpoint]; n > 1 {
		of[endpoint] = n - 1
	} else {
		delete(of, endpoint)
	}
	if len(of) == 0 {
		delete(o.of, k)
	}
}

// counts returns the open connections of endpoints, in their order.
func (o *openCounts) counts(k countKey, endpoints []netip.AddrPort) []int {
	list := make([]int, len(endpoints))
	o.mu.Lock()
	defer o.mu.Unlock()
	of := o.of[k]
	for i := range endpoints {
		list[i] = of[endpoints[i]]
	}
	return list
}
