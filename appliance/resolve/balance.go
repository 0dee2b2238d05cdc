package resolve

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Balances maps the names of load balancing algorithms, as used in annotations and settings, to the algorithms.
var Balances = map[string]nft.Balance{
	object.BalanceRandom:          nft.Random,
	object.BalanceMaglev:          nft.Maglev,
	object.BalanceRoundRobin:      nft.RoundRobin,
	object.BalanceSourceHash:      nft.SourceHash,
	object.BalanceDestinationHash: nft.DestinationHash,
	object.BalanceLeastConnection: nft.LeastConnection,
}

// ParsedBalance returns the algorithm for the value of an annotation. The value must be valid.
func ParsedBalance(value string) nft.Balance {
	name, _ := object.ParseBalance(value)
	return Balances[name]
}

// BalanceName returns the name of an algorithm in annotations and settings, "" if there is no such algorithm.
func BalanceName(b nft.Balance) string {
	for name, is := range Balances {
		if is == b {
			return name
		}
	}
	return ""
}

// readBalance returns the load balancing algorithm of the Service. It also reads the weights in its annotation into r.weights.
func (r *resolver) readBalance() nft.Balance {
	annotations := r.Service.Metadata.Annotations
	if value, given := annotations[object.AnnotationWeights]; given {
		list, err := object.ParseWeights(value)
		if err != nil {
			r.warnValue(object.AnnotationWeights, reasonUnknownValue, "%v: the annotation is left out of account", err)
		}
		r.weights = make(map[netip.Addr]uint16, len(list))
		for _, w := range list {
			r.weights[w.Addr] = w.Weight
		}
	}
	key := object.AnnotationBalance
	value, given := annotations[key]
	if !given {
		key = object.AnnotationCiliumBalance
		value, given = annotations[key]
	}
	if !given {
		return r.facts.Balance
	}
	name, err := object.ParseBalance(value)
	if err != nil {
		r.warnValue(key, reasonUnknownValue, "%v; until then it is %s", err, BalanceName(r.facts.Balance))
		return r.facts.Balance
	}
	r.balanceNamed = true
	balance := Balances[name]
	if r.affinity() > 0 && (balance == nft.Maglev || balance == nft.SourceHash) {
		r.warn(r.ref, "spec.sessionAffinity", "StickyTwice",
			"with %s a client that is known is recalled, and a new one is hashed: sessionAffinity None leaves only the hash, which needs no memory", BalanceName(balance))
	}
	return balance
}

// slowStart returns the value of svcctl.io/slow-start: the time over which the share of a new endpoint rises to its full weight. 0 means at once.
func (r *resolver) slowStart(balance nft.Balance) time.Duration {
	over, ok := parsed(r, object.AnnotationSlowStart, object.ParseSlowStart, "new endpoints get their whole share at once")
	if ok && balance == nft.DestinationHash {
		r.warnNoEffect(object.AnnotationSlowStart, "has no effect with destination-hash, which has no weights")
		return 0
	}
	return over
}

// warnUnbalanced warns about svcctl annotations that have no effect on a Service without VIPs. These are all except annotations for its endpoints and
// the relay (see relaysNothing). others are prefixes of further annotations to warn about. why is the reason for the message.
func (r *resolver) warnUnbalanced(why string, others ...string) {
	for _, key := range slices.Sorted(maps.Keys(r.Service.Metadata.Annotations)) {
		if key == object.AnnotationEject && r.Service.Headless() {
			continue // readEject names the check that does it
		}
		if annotation.Balances(key) && !strings.HasPrefix(key, health.AnnotationCheck) && key != health.AnnotationOut ||
			slices.ContainsFunc(others, func(other string) bool { return strings.HasPrefix(key, other) }) {
			r.warn(r.ref, annotation.Field(key), "NotServed", "%s: the annotation has no effect", why)
		}
	}
}

// checkOut warns about addresses in svcctl.io/out that belong to no endpoint of the Service.
func (r *resolver) checkOut(endpoints map[portKey][]endpoint) {
	if len(r.taken) == 0 {
		return // mostly
	}
	left := maps.Clone(r.taken)
	for _, list := range endpoints {
		for i := range list {
			delete(left, list[i].addr.Addr())
		}
	}
	for _, addr := range sortedOnce(slices.Collect(maps.Keys(left))) {
		r.warn(r.ref, annotation.Field(health.AnnotationOut), "OutOfNobody", "%s is no endpoint of the Service, so taking it out has no effect", addr)
	}
}

// weight returns the weight of an endpoint from the Service's annotation or, if that does not name it, from its EndpointSlice.
func (r *resolver) weight(addr netip.Addr, s *object.EndpointSlice) uint16 {
	if w, given := r.weights[addr]; given {
		return w
	}
	return s.Metadata.WeightOf()
}

// checkWeights warns about weights that have no effect.
func (r *resolver) checkWeights(balance nft.Balance, endpoints map[portKey][]endpoint) {
	known, weighted := map[netip.Addr]bool{}, false
	if len(r.weights) > 0 || balance == nft.DestinationHash {
		for _, list := range endpoints {
			for i := range list {
				known[list[i].addr.Addr()] = true
				weighted = weighted || list[i].weight > 1
			}
		}
	}
	var strangers []netip.Addr
	for addr := range r.weights {
		if !known[addr] {
			strangers = append(strangers, addr)
		}
	}
	for _, addr := range sortedOnce(strangers) {
		r.warn(r.ref, annotation.Field(object.AnnotationWeights), "WeightOfNobody", "%s is no endpoint of the Service, so its weight has no effect", addr)
	}
	if balance == nft.DestinationHash && (weighted || r.backends != nil) {
		r.warn(r.ref, annotation.Field(object.AnnotationBalance), "WeightsUnused",
			"destination-hash gives each address of the Service one endpoint, whatever the weights and shares are; only 0 counts")
	}
}

// balance sets the algorithm of a port, the weights of its endpoints, and the fraction of connections to refuse.
func (r *resolver) balance(port int, p *nft.ServicePort, balance nft.Balance, all []endpoint, backends []backend) {
	p.Balance = balance
	var weights map[netip.AddrPort]uint16
	for i := range all {
		if e := &all[i]; e.weight > 1 && balance != nft.DestinationHash {
			if weights == nil {
				weights = map[netip.AddrPort]uint16{}
			}
			weights[e.addr] = e.weight
		}
	}
	for pool := range p.Pools {
		if p.Weights[pool] = weights; len(backends) > 0 && len(p.Pools[pool]) > 0 && balance != nft.DestinationHash {
			var list []nft.Backend
			if p.Weights[pool], p.Refused[pool], list = divide(backends, nft.Pool(pool)); balance == nft.Maglev || balance == nft.SourceHash {
				p.Backends[pool] = list
			}
		}
	}
	for pool, endpoints := range p.Pools {
		if !p.FitsTable(nft.Pool(pool)) && (p.Weights[pool] != nil || p.Refused[pool] > 0 || balance != nft.Random && balance != nft.DestinationHash) {
			r.warn(r.ref, fmt.Sprintf("spec.ports[%d]", port), "TooManyEndpoints",
				"%d endpoints are more than the %d that weights, shares, hashes, round robin and least connection reach: new connections go to all of them alike", len(endpoints), nft.MaxTableEndpoints)
			p.Balance, p.Weights, p.Refused, p.Backends = nft.Random, [nft.NumPools]map[netip.AddrPort]uint16{}, [nft.NumPools]uint16{}, [nft.NumPools][]nft.Backend{}
			return
		}
	}
}

// isBetter reports whether e takes precedence over than when two objects name the same endpoint. The better state takes precedence, then the lower
// tier, then the larger weight.
func (e *endpoint) isBetter(than *endpoint) bool {
	switch {
	case e.state != than.state:
		return e.state > than.state
	case e.priority != than.priority:
		return e.priority < than.priority
	}
	return e.weight > than.weight
}

// everywhere returns the endpoints for the traffic policy Cluster (nft.PoolCluster).
func (r *resolver) everywhere(all []endpoint) []netip.AddrPort {
	near := func(*endpoint) bool { return true }
	isReady := func(e *endpoint) bool { return e.state == ready }
	tier, some := lowestTier(all, isReady)
	if some {
		near = r.topology(inTier(all, tier))
	}
	if picked := pick(all, func(e *endpoint) bool { return isReady(e) && e.takesNew(tier) && near(e) }); len(picked) > 0 {
		return picked
	}
	return lowest(all, func(e *endpoint) bool { return e.state == draining })
}

// onBox returns the endpoints for the traffic policy Local (nft.PoolLocal).
func onBox(all []endpoint) []netip.AddrPort {
	if picked := lowest(all, func(e *endpoint) bool { return e.state == ready && e.local }); len(picked) > 0 {
		return picked
	}
	return lowest(all, func(e *endpoint) bool { return e.state == draining && e.local })
}

// lowest returns the usable endpoints in the lowest tier that has any.
func lowest(all []endpoint, usable func(*endpoint) bool) []netip.AddrPort {
	tier, some := lowestTier(all, usable)
	if !some {
		return nil
	}
	return pick(all, func(e *endpoint) bool { return usable(e) && e.takesNew(tier) })
}

func lowestTier(all []endpoint, usable func(*endpoint) bool) (tier uint8, some bool) {
	for i := range all {
		if e := &all[i]; usable(e) && e.weight > 0 && (!some || e.priority < tier) {
			tier, some = e.priority, true
		}
	}
	return tier, some
}

// takesNew reports whether an endpoint gets new connections when tier is the tier in use.
func (e *endpoint) takesNew(tier uint8) bool { return e.weight > 0 && e.priority == tier }

// inTier returns the endpoints that get new connections when tier is the tier in use. If every endpoint does, it returns all without copying it.
func inTier(all []endpoint, tier uint8) []endpoint {
	out := func(e endpoint) bool { return !e.takesNew(tier) }
	if !slices.ContainsFunc(all, out) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), out)
}

// defaultAffinitySeconds is the default of spec.sessionAffinityConfig.clientIP.timeoutSeconds (core/v1 DefaultClientIPServiceAffinitySeconds).
const defaultAffinitySeconds = 10800

func (r *resolver) affinity() time.Duration {
	if r.Service.Spec.SessionAffinity != object.AffinityClientIP {
		return 0
	}
	seconds := int32(defaultAffinitySeconds)
	if c := r.Service.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	return time.Duration(seconds) * time.Second
}

// affinityOptions returns the options in the affinity annotations by family, nil if there are none.
func (r *resolver) affinityOptions() map[nft.Family]nft.AffinityOptions {
	annotations := r.Service.Metadata.Annotations
	var s nft.AffinityOptions
	v4, v6 := uint8(32), uint8(128)
	given := false
	for _, key := range []string{object.AnnotationAffinityScope, object.AnnotationAffinityRefresh, object.AnnotationAffinityPrefix} {
		value, is := annotations[key]
		if !is {
			continue
		}
		given = true
		var err error
		switch {
		case r.affinity() == 0:
			r.warn(r.ref, annotation.Field(key), reasonNoEffect, "has no effect: the Service has no session affinity; write spec.sessionAffinity: ClientIP")
		case r.relayed.Asked():
			r.warn(r.ref, annotation.Field(key), reasonNoEffect, "has no effect on ports that are relayed")
		}
		switch {
		case key == object.AnnotationAffinityPrefix:
			if v4, v6, err = object.ParseAffinityPrefix(value); err != nil {
				r.warnValue(key, reasonUnknownValue, "%v: each address is a client", err)
			}
		case key == object.AnnotationAffinityScope && value == object.AffinityScopeService:
			s.WholeService = true
		case key == object.AnnotationAffinityRefresh && value == object.AffinityRefreshPackets:
			s.Refresh = true
		case value != object.AffinityScopePort && value != object.AffinityRefreshConnections:
			r.warnValue(key, reasonUnknownValue, "%q is not known: it is as without the annotation", value)
		}
	}
	if !given || r.affinity() == 0 {
		return nil // mostly
	}
	of := map[nft.Family]nft.AffinityOptions{nft.IPv4: s, nft.IPv6: s}
	for family, bits := range map[nft.Family]uint8{nft.IPv4: v4, nft.IPv6: v6} {
		if int(bits) < 8*family.AddrLen() {
			s.PrefixLen = bits
			of[family] = s
		}
	}
	return of
}

// readAdopt returns the value of svcctl.io/adopt: whether TCP connections continue when another box takes over. If they cannot, it returns false and
// warns: the other box would choose another endpoint, or lacks the data of the connections.
func (r *resolver) readAdopt(balance nft.Balance, idle bool) bool {
	field, why := annotation.Field(object.AnnotationAdopt), ""
	wanted, _ := parsed(r, object.AnnotationAdopt, object.ParseBool, "connections end with the box that they began at")
	switch {
	case !wanted:
		return false
	case !slices.ContainsFunc(r.Service.Spec.Ports, func(p object.ServicePort) bool { return p.Protocol == object.ProtocolTCP }):
		why = "the Service has no port of TCP"
	case r.Service.Spec.Type != object.TypeLoadBalancer && len(r.Service.Spec.ExternalIPs) == 0:
		why = "the Service has no load balancer IP and no external IP, and other addresses do not move to another box"
	case r.relayed.Key != "":
		why = fmt.Sprintf("%s has ports relayed, whose connections end with the program", r.relayed.Key)
	case idle:
		why = fmt.Sprintf("with %s only a SYN gets to an endpoint: take one of the two away", AnnotationIdle)
	case r.affinity() > 0:
		why = "session affinity is the memory of one box, and another one may pick another endpoint: write sessionAffinity: None, and svcctl.io/balance: source-hash for the same endpoint each time"
	case byChance(balance):
		why = fmt.Sprintf("with %s another box picks another endpoint: write svcctl.io/balance: maglev, source-hash or destination-hash", BalanceName(balance))
	case r.Service.Spec.ExternalTrafficPolicy != object.PolicyLocal:
		why = "with externalTrafficPolicy Cluster endpoints see this box in place of clients, and answer no other one: write Local"
	default:
		if r.out.EndpointConnections > 0 || r.out.SlowStart > 0 {
			r.warn(r.ref, field, reasonBoxesDiffer, "%s and %s make boxes pick different endpoints for a while: connections that are taken over then may end", object.AnnotationEndpointConnections, object.AnnotationSlowStart)
		}
		if _, ranges := r.Service.Metadata.Annotations[object.AnnotationPortRanges]; ranges {
			r.warn(r.ref, field, reasonNoEffect, "has no effect on ranges of ports where an endpoint speaks first after the takeover")
		}
		return true
	}
	r.warn(r.ref, field, reasonNoEffect, "has no effect: %s", why)
	return false
}

// reasonBoxesDiffer is the Reason of the problem that boxes with the same objects may choose different endpoints.
const reasonBoxesDiffer = "BoxesDiffer"

// adopt sets Adopt of those frontends of a TCP port that are at load balancer IPs and external IPs.
func adopt(p *nft.ServicePort) {
	for i := range p.Frontends {
		fe := &p.Frontends[i]
		external := fe.Kind == nft.LoadBalancerIP || fe.Kind == nft.ExternalIP
		fe.Adopt = p.Protocol == nft.TCP && external && !fe.HostOwned && fe.SNAT != nft.SNATAlways
	}
}

// ReasonShareRefused is the Reason of the problem that a fraction of a port's connections is refused because a backend has no usable endpoint.
const ReasonShareRefused = "ShareRefused"

// backend is a group of endpoints that together get a share of a port's connections, in one IP family. It consists of the EndpointSlices with the
// same backend name in their share annotation.
type backend struct {
	name  string // "" for EndpointSlices without a share
	share uint32
	named bool // its EndpointSlices have endpoints, usable or not
	// all are the endpoints of the backend in any state; pools are the usable ones.
	all   []endpoint
	pools [nft.NumPools][]netip.AddrPort
}

// shares holds the weights of a Service's endpoints, and the shares of its backends.
type shares struct {
	weights  map[netip.Addr]uint16 // from the Service's annotation, by address
	backends map[portKey][]backend // nil if no EndpointSlice has a share
	judged   string                // name of the backend that judge currently processes, for messages
}

// readShares sets r.backends of all ports, sorted by name. If no EndpointSlice has a share, it leaves r.backends nil.
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

// byBackend yields the endpoints of each backend. The slice all must be in the order of collect, which sorts by backend first.
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

// selectShares calls selectEndpoints for each backend, with the endpoints in all that belong to it. It stores these endpoints and their pools in
// backends, and returns the union of all selections.
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

// maxParts is the maximum number of parts into which a share is divided, so that sums fit into 64 bits.
const maxParts = 1 << 20

// divide returns the weights of the endpoints in a pool, so that each backend gets its share of the connections and divides it among its endpoints by
// their own weights. refused is the total weight of the backends without an endpoint in the pool. The weights are the smallest integers in these
// proportions, scaled down to at most 65535; endpoints with weight 1 are left out. list holds all backends with their shares.
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
			parts = min(maxParts, parts/nft.GCD(parts, sums[i])*sums[i])
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
		divisor, most = nft.GCD(divisor, n), max(most, n)
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

// once returns list without repeated values. It modifies list.
func once[T comparable](list []T) []T {
	seen := make(map[T]bool, len(list))
	return slices.DeleteFunc(list, func(v T) bool {
		was := seen[v]
		seen[v] = true
		return was
	})
}

// reportShares reports an error if the share of a backend of a port is refused because the backend has no usable endpoint, while another one has.
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

// percent formats a fraction between 0 and 1 as a percentage.
func percent(part float64) string {
	if part < 0.0005 {
		return "less than 0.1 %"
	}
	return strings.TrimSuffix(strconv.FormatFloat(100*part, 'f', 1, 64), ".0") + " %"
}
