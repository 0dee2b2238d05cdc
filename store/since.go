package store

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strconv"

	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
)

// Since is the age of a Service and of its requests, in revisions, which are never used twice:
// whole seconds cannot order what came within one.
type Since struct {
	Created uint64 // the revision of its creation
	// asked has the ports and ranges on load balancer IPs and external IPs that the Service asked for
	// later than at its creation, as "TCP 203.0.113.1:80" and "UDP 203.0.113.1:10000-20000".
	asked map[string]uint64
}

// Of is the revision at which the Service first asked for a port on a load balancer IP or an
// external IP. For everything else it is the revision of its creation.
func (s Since) Of(protocol string, at netip.AddrPort) uint64 {
	if s.asked != nil && at.Addr().IsValid() {
		return s.of(askKey(protocol, at))
	}
	return s.Created
}

// OfRange is the same of a range of ports, which begins with that of at.
func (s Since) OfRange(protocol string, at netip.AddrPort, last uint16) uint64 {
	return s.of(rangeKey(protocol, at, last))
}

func (s Since) of(key string) uint64 {
	if revision, is := s.asked[key]; is {
		return revision
	}
	return s.Created
}

func askKey(protocol string, at netip.AddrPort) string { return protocol + " " + at.String() }

func rangeKey(protocol string, at netip.AddrPort, last uint16) string {
	return askKey(protocol, at) + "-" + strconv.Itoa(int(last))
}

// since is the age of a record. One that was written before revisions of creation were kept
// has the creation time, as revisions are made of it.
func (r *record) since() Since {
	created := r.created
	if at := createdAt(r.object); created == 0 && !at.IsZero() {
		created = uint64(max(0, at.Unix())) << revisionShift
	}
	return Since{created, r.asked}
}

// asks goes through the keys of the ports and ranges that a Service asks for on load balancer IPs
// and external IPs.
func asks(svc *object.Service) func(yield func(key string) bool) {
	ranges := svc.PortRanges()
	return func(yield func(string) bool) {
		addrs := index.ExternalIPs(svc)
		for _, ingress := range svc.Status.LoadBalancer.Ingress {
			if addr, err := netip.ParseAddr(ingress.IP); err == nil {
				addrs = append(addrs, addr)
			}
		}
		for _, addr := range addrs {
			for _, port := range portsOf(svc) {
				if !yield(askKey(port.Protocol, netip.AddrPortFrom(addr, port.Number))) {
					return
				}
			}
			for _, r := range ranges {
				if !yield(rangeKey(r.Protocol, netip.AddrPortFrom(addr, r.First), r.Last)) {
					return
				}
			}
		}
	}
}

// sortByAge puts the oldest objects first, those of one age in the order of their names, and
// last those that are not there yet.
func sortByAge[T any](all []T, of func(T) (object.Ref, *record)) {
	type aged struct {
		since uint64 // the revision of its creation
		ref   object.Ref
		one   T
	}
	keyed := make([]aged, len(all))
	for i, one := range all {
		ref, r := of(one)
		keyed[i] = aged{math.MaxUint64, ref, one}
		if r != nil {
			keyed[i].since = r.since().Created
		}
	}
	slices.SortFunc(keyed, func(a, b aged) int {
		if a.since != b.since {
			return cmp.Compare(a.since, b.since)
		}
		return compareRefs(a.ref, b.ref)
	})
	for i := range keyed {
		all[i] = keyed[i].one
	}
}
