package conntrack

import (
	"net/netip"
	"slices"

	"svcctl.io/svcctl/nft"
)

// query is a part of the connection tracking table. The kernel may give more than what
// was asked for: see (*netlinkTable).clean.
type query struct {
	family   nft.Family
	protocol nft.Protocol
	port     uint16     // that clients sent to; 0: any
	addr     netip.Addr // that clients sent to; the zero Addr: any
	// unanswered leaves out what got a packet in reply.
	unanswered bool
}

// maxQueries bounds the queries for single ports; for more of them whole protocols are queried. For
// each query the kernel walks its whole table at one go, with softirqs of that CPU held back: 45 ms
// with 200,000 entries (measured on 6.18; 10 ms of it for a table of 262,144 buckets with nothing
// in it). To read and judge as many entries takes 380 ms, a fraction of a millisecond at a time.
const maxQueries = 4

// has reports whether an entry is of the part that is asked for. Kernels without filters give others too,
// and each query gives all of them.
func (q *query) has(e *entry) bool {
	return q.family == e.family && q.protocol == e.protocol && (q.port == 0 || q.port == e.to.Port()) &&
		(!q.addr.IsValid() || q.addr == e.to.Addr()) && !(q.unanswered && e.answered)
}

// single is the port of a frontend that has one, 0 of a range.
func (f *Frontend) single() uint16 {
	if f.Last != 0 {
		return 0
	}
	return f.Port
}

// queriesFor covers the frontends with as few queries as are worth it.
func queriesFor(items []*item) []query {
	ports := map[query]netip.Addr{} // with the address all frontends of the port have, if they have one
	for _, it := range items {
		fe := it.flows.Frontend
		q := query{family: fe.Family, protocol: fe.Protocol, port: fe.single()}
		if addr, known := ports[q]; known && addr != fe.Addr {
			ports[q] = netip.Addr{}
		} else {
			ports[q] = fe.Addr
		}
	}
	queries := make([]query, 0, min(len(ports), maxQueries))
	for q, addr := range ports {
		if len(ports) > maxQueries {
			q.port, addr = 0, netip.Addr{}
		}
		q.addr = addr
		if !slices.Contains(queries, q) {
			queries = append(queries, q)
		}
	}
	return queries
}

// queriesOf covers frontends of any port each, or else whole protocols. No entry is of two of them.
func queriesOf[V any](frontends map[Frontend]V, unanswered bool) (queries []query) {
	whole, single := map[query]bool{}, map[query]bool{}
	for fe := range frontends {
		whole[query{family: fe.Family, protocol: fe.Protocol, unanswered: unanswered}] = true
		single[query{family: fe.Family, protocol: fe.Protocol, port: fe.single(), unanswered: unanswered}] = true
	}
	if len(single) <= maxQueries {
		whole = single
	}
	for q := range whole {
		if q.port == 0 || !whole[query{family: q.family, protocol: q.protocol, unanswered: unanswered}] {
			queries = append(queries, q)
		}
	}
	return queries
}
