package record

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strconv"

	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
)

// RevisionShift turns seconds of the clock into a first revision: a counter would have to make a million changes a second to outrun
// the clock.
const RevisionShift = 20

// Since is the age of a Service and of its requests, in revisions, which are never used twice:
// whole seconds cannot order what came within one.
type Since struct {
	Created uint64 // the revision of its creation
	// Asked has the ports and ranges on load balancer IPs and external IPs that the Service requested
	// after its creation, as "TCP 203.0.113.1:80" and "UDP 203.0.113.1:10000-20000".
	Asked map[string]uint64
}

// Of is the revision at which the Service first asked for a port on a load balancer IP or an
// external IP. For everything else it is the revision of its creation.
func (s Since) Of(protocol string, at netip.AddrPort) uint64 {
	if s.Asked != nil && at.Addr().IsValid() {
		return s.of(askKey(protocol, at))
	}
	return s.Created
}

// OfRange is the same of a range of ports, which begins with that of at.
func (s Since) OfRange(protocol string, at netip.AddrPort, last uint16) uint64 {
	return s.of(rangeKey(protocol, at, last))
}

func (s Since) of(key string) uint64 {
	if revision, is := s.Asked[key]; is {
		return revision
	}
	return s.Created
}

func askKey(protocol string, at netip.AddrPort) string { return protocol + " " + at.String() }

func rangeKey(protocol string, at netip.AddrPort, last uint16) string {
	return askKey(protocol, at) + "-" + strconv.Itoa(int(last))
}

// Since is the age of a record. A record without a revision of creation has its creation time, as revisions are made of it.
func (r *Record) Since() Since {
	created := r.Created
	if at := CreatedAt(r.Object); created == 0 && !at.IsZero() {
		created = uint64(max(0, at.Unix())) << RevisionShift
	}
	return Since{created, r.Asked}
}

// SinceNow returns the age of a version that takes the place of another one (nil: of none) at a revision.
func SinceNow(before *Record, next object.Object, revision uint64) Since {
	if before == nil {
		return Since{Created: revision}
	}
	was := before.Since()
	now := Since{Created: was.Created}
	svc, isService := next.(*object.Service)
	if !isService {
		return now
	}
	had := map[string]bool{}
	for _, key := range asks(before.Object.(*object.Service)) {
		had[key] = true
	}
	for _, key := range asks(svc) {
		at := revision
		if had[key] {
			at = was.of(key)
		}
		if at == now.Created {
			continue
		}
		if now.Asked == nil {
			now.Asked = map[string]uint64{}
		}
		now.Asked[key] = at
	}
	return now
}

// asks returns the keys of the ports and ranges that a Service asks for on load balancer IPs and external IPs.
func asks(svc *object.Service) (keys []string) {
	addrs := index.ExternalIPs(svc)
	for _, ingress := range svc.Status.LoadBalancer.Ingress {
		if addr, err := netip.ParseAddr(ingress.IP); err == nil {
			addrs = append(addrs, addr)
		}
	}
	for _, addr := range addrs {
		for _, port := range svc.Spec.Ports {
			keys = append(keys, askKey(port.Protocol, netip.AddrPortFrom(addr, uint16(port.Port))))
		}
		for _, r := range svc.PortRanges() {
			keys = append(keys, rangeKey(r.Protocol, netip.AddrPortFrom(addr, r.First), r.Last))
		}
	}
	return keys
}

// SortByAge puts the oldest objects first, those of one age in the order of their names, and
// last those that are not there yet.
func SortByAge[T any](all []T, of func(T) (object.Ref, *Record)) {
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
			keyed[i].since = r.Since().Created
		}
	}
	slices.SortFunc(keyed, func(a, b aged) int {
		return cmp.Or(cmp.Compare(a.since, b.since), CompareRefs(a.ref, b.ref))
	})
	for i := range keyed {
		all[i] = keyed[i].one
	}
}
