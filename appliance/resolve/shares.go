package resolve

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// ReasonShareRefused is about a part of a port's connections that is refused, as its backend has no usable endpoint.
const ReasonShareRefused = "ShareRefused"

// backend is a group of endpoints that has a share of a port's connections, in one family.
type backend struct {
	name  string // "": slices without a share
	share uint32
	named bool // slices have endpoints, whether they can be used or not
	// all are its endpoints in any state, and pools the usable ones.
	all   []endpoint
	pools [nft.NumPools][]netip.AddrPort
}

// shares are what endpoints of a Service get more or less than others by.
type shares struct {
	weights  map[netip.Addr]uint16 // of the Service's annotation, by address
	backends map[portKey][]backend // nil: no slice has a share
	judged   string                // the backend whose endpoints are judged, for messages
}

// readShares reads the backends of all ports, in the order of their names; none if no slice has a share.
func (r *resolver) readShares() {
	if !slices.ContainsFunc(r.Slices, func(s *object.EndpointSlice) bool {
		_, has := s.Metadata.Annotations[object.AnnotationShare]
		return has
	}) {
		return
	}
	r.backends = map[portKey][]backend{}
	for _, s := range r.Slices {
		given := s.Metadata.ShareOf()
		family, served := map[string]nft.Family{object.IPv4: nft.IPv4, object.IPv6: nft.IPv6}[s.AddressType]
		for i := range s.Ports {
			name, proto, ok := matches(&s.Ports[i])
			if !ok || !served {
				continue
			}
			key := portKey{name, proto, family}
			list := r.backends[key]
			at, known := slices.BinarySearchFunc(list, given.Backend, func(b backend, name string) int { return cmp.Compare(b.name, name) })
			if !known {
				list = slices.Insert(list, at, backend{name: given.Backend})
			}
			list[at].share, list[at].named = max(list[at].share, given.Share), list[at].named || len(s.Endpoints) > 0
			r.backends[key] = list
		}
	}
}

// byBackend divides the endpoints of a port, which collect has sorted.
func byBackend(all []endpoint) iter.Seq[[]endpoint] {
	return func(yield func([]endpoint) bool) {
		for len(all) > 0 {
			n := slices.IndexFunc(all, func(e endpoint) bool { return e.backend != all[0].backend })
			if n < 0 {
				n = len(all)
			}
			if !yield(all[:n:n]) {
				return
			}
			all = all[n:]
		}
	}
}

// selectShares picks the endpoints of each backend, as selectEndpoints does those of a port, and joins them.
func (r *resolver) selectShares(backends []backend, all []endpoint) (sel selection) {
	for i := range backends {
		b := &backends[i]
		for part := range byBackend(all) {
			if part[0].backend == b.name {
				b.all = part
			}
		}
		of := r.selectEndpoints(b.all)
		b.pools = of.pools
		for pool := range sel.pools {
			sel.pools[pool] = append(sel.pools[pool], of.pools[pool]...)
		}
		sel.serving = append(sel.serving, of.serving...)
		sel.noLocal = cmp.Or(sel.noLocal, of.noLocal)
	}
	for _, list := range []*[]netip.AddrPort{&sel.pools[nft.PoolCluster], &sel.pools[nft.PoolLocal], &sel.serving} {
		slices.SortFunc(*list, netip.AddrPort.Compare)
		*list = slices.Clip(slices.Compact(*list))
	}
	return sel
}

// maxParts bounds the parts that a share is divided into, so that sums fit into 64 bits.
const maxParts = 1 << 20

// divide gives each endpoint of a pool its part of the share of its backend, by weight, and a backend without an endpoint
// there its share to refused. Parts are numbers up to 65535, the smallest ones that have the same proportions. It also returns
// the backends with their shares as they are.
func divide(backends []backend, pool nft.Pool) (weights map[netip.AddrPort]uint16, refused uint16, list []nft.Backend) {
	sums, parts := make([]uint64, len(backends)), uint64(1)
	for i, b := range backends {
		of := make(map[netip.AddrPort]uint32, len(b.pools[pool]))
		for _, ap := range b.pools[pool] {
			at, _ := slices.BinarySearchFunc(b.all, ap, func(e endpoint, ap netip.AddrPort) int { return e.addr.Compare(ap) })
			of[ap] = uint32(b.all[at].weight)
			sums[i] += uint64(b.all[at].weight)
		}
		if list = append(list, nft.Backend{Name: b.name, Share: b.share, Weights: of}); sums[i] > 0 {
			parts = min(maxParts, parts/gcd(parts, sums[i])*sums[i])
		}
	}
	left, of := uint64(0), map[netip.AddrPort]uint64{}
	for i, b := range list {
		if sums[i] == 0 {
			left += uint64(b.Share) * parts
		}
		for ap, weight := range b.Weights {
			of[ap] += max(1, uint64(b.Share)*uint64(weight)*parts/sums[i])
		}
	}
	divisor, most := left, left
	for _, n := range of {
		divisor, most = gcd(divisor, n), max(most, n)
	}
	scaled := func(n uint64) uint16 {
		if n == 0 || most/divisor <= math.MaxUint16 {
			return uint16(n / max(1, divisor))
		}
		return uint16(max(1, n*math.MaxUint16/most))
	}
	for ap, n := range of {
		if w := scaled(n); w != 1 {
			if weights == nil {
				weights = make(map[netip.AddrPort]uint16, len(of))
			}
			weights[ap] = w
		}
	}
	return weights, scaled(left), list
}

// once leaves out what a list has already.
func once[T comparable](list []T) []T {
	seen := make(map[T]bool, len(list))
	return slices.DeleteFunc(list, func(v T) bool {
		was := seen[v]
		seen[v] = true
		return was
	})
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// reportShares reports the backends of a port whose shares are refused while others serve.
func (r *resolver) reportShares(index int, p *nft.ServicePort, backends []backend) {
	for pool, where := range [nft.NumPools]string{nft.PoolLocal: " on this box"} {
		if len(p.Pools[pool]) == 0 || p.Refused[pool] == 0 || nft.Pool(pool) == nft.PoolLocal && r.limitedToLocal() == "" {
			continue
		}
		var names []string
		var refused, sum float64
		for _, b := range backends {
			if sum += float64(b.share); b.share > 0 && len(b.pools[pool]) == 0 {
				refused += float64(b.share)
				names = append(names, cmp.Or(b.name, "without a share"))
			}
		}
		of, over := "backend %s has", ""
		if len(names) > 1 {
			of = "backends %s have"
		}
		if len(r.Service.Spec.ClusterIPs) > 1 {
			over = " over " + p.Family.Name()
		}
		r.refuse(fmt.Sprintf("spec.ports[%d]", index), ReasonShareRefused, "%s%s: %s of new connections are refused: "+of+" no usable endpoint%s",
			r.portText(index), over, percent(refused/sum), First(names, maxNamed), where)
		return // those of this box are among those of all
	}
}

// percent formats a part of 1.
func percent(part float64) string {
	if part < 0.0005 {
		return "less than 0.1 %"
	}
	return strings.TrimSuffix(strconv.FormatFloat(100*part, 'f', 1, 64), ".0") + " %"
}
