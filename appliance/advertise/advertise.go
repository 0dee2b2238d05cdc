package advertise

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Objects holds the objects of MetalLB's kinds and those that they refer to. Lists are sorted by namespace
// and name.
type Objects struct {
	Pools       []*object.IPAddressPool
	L2          []*object.L2Advertisement
	BGP         []*object.BGPAdvertisement
	Communities []*object.Community
	Profiles    []*object.BFDProfile
	Peers       []*object.BGPPeer
	Secrets     []*object.Secret
	Namespaces  []*object.Namespace
	// Node has the labels of this box.
	Node map[string]string
}

// Box has the part of the configuration that is about pools.
type Box struct {
	Pools         []alloc.Pool // of flags
	ServiceRanges []netip.Prefix
	NodeName      string
}

// Plan has the pools and announcements of this box.
type Plan struct {
	// Pools has the pools of flags and of objects, the preferred ones first.
	Pools []alloc.Pool
	// Config is for the announcer.
	Config   wire.AnnounceConfig
	Problems []resolve.Problem

	l2  []advertisement
	bgp []advertisement
}

// advertisement is an L2Advertisement or a BGPAdvertisement, with the addresses that it is about.
type advertisement struct {
	name       string
	pools      map[string]bool // by name
	services   []object.LabelSelector
	interfaces []string
	always     bool // also while no Service is served
}

// ReasonConfiguration is the Reason of problems of these kinds.
const ReasonConfiguration = "BadConfiguration"

// planner makes a Plan.
type planner struct {
	*Plan
	objects *Objects
	box     *Box
	ranges  map[string][]alloc.Pool      // of the pools in use, by name; none is empty
	labels  map[string]map[string]string // likewise
	peers   map[string][]string          // in use, by namespace
}

// Compile makes a Plan of all objects.
func Compile(objects *Objects, box *Box) *Plan {
	p := &planner{
		Plan: &Plan{}, objects: objects, box: box,
		labels: map[string]map[string]string{}, ranges: map[string][]alloc.Pool{}, peers: map[string][]string{},
	}
	p.makePools()
	for _, peer := range objects.Peers {
		p.addPeer(peer)
	}
	for _, a := range objects.L2 {
		p.addL2(a)
	}
	for _, a := range objects.BGP {
		p.addBGP(a)
	}
	slices.Sort(p.Config.Interfaces)
	p.Config.Interfaces = slices.Compact(p.Config.Interfaces)
	return p.Plan
}

// refuse adds a problem for a part of an object that is not served, warn one for a part without effect.
func (p *planner) refuse(o object.Object, field, format string, args ...any) {
	p.Problems = append(p.Problems, resolve.Problem{Object: object.RefOf(o), Field: field, Reason: ReasonConfiguration, Message: fmt.Sprintf(format, args...)})
}

func (p *planner) warn(o object.Object, field, format string, args ...any) {
	p.refuse(o, field, format, args...)
	p.Problems[len(p.Problems)-1].Warning = true
}

// here reports whether node selectors mean this box.
func (p *planner) here(selectors []object.LabelSelector) bool {
	return object.MatchesAny(selectors, p.objects.Node)
}

// selected are the pools that an advertisement is about.
func (p *planner) selected(o object.Object, names []string, selectors []object.LabelSelector) map[string]bool {
	namespace := o.GetMeta().Namespace
	pools := map[string]bool{}
	for i, name := range names {
		if key := namespace + "/" + name; p.ranges[key] != nil {
			pools[key] = true
			continue
		}
		next := ""
		for other := range p.ranges {
			if strings.HasSuffix(other, "/"+name) {
				next = fmt.Sprintf("; one of the namespace %s is: objects count in their namespace, so put both into the same", strings.TrimSuffix(other, "/"+name))
			}
		}
		p.warn(o, fmt.Sprintf("spec.ipAddressPools[%d]", i), "there is no IPAddressPool %s in use in the namespace %s: nothing is announced for that name%s", name, namespace, next)
	}
	if len(names) > 0 && len(selectors) == 0 {
		return pools
	}
	for key := range p.ranges {
		if strings.HasPrefix(key, namespace+"/") && object.MatchesAny(selectors, p.labels[key]) {
			pools[key] = true
		}
	}
	return pools
}

// always reads when an advertisement announces.
func (p *planner) always(o object.Object) bool {
	switch value := o.GetMeta().Annotations[annotation.Announce]; value {
	case "", "when-ready":
		return false
	case "always":
		return true
	default:
		p.warn(o, annotation.Field(annotation.Announce), "%q is neither when-ready nor always: it is taken as when-ready", value)
		return false
	}
}

func (p *planner) addL2(a *object.L2Advertisement) {
	if len(a.Spec.PreferredNodeSelectors) > 0 {
		p.warn(a, "spec.preferredNodeSelectors", "it has no effect: which box answers is decided by the election, with --priority of `svcctl announce`")
	}
	if !p.here(a.Spec.NodeSelectors) {
		return
	}
	interfaces := a.Spec.Interfaces
	if len(interfaces) == 0 {
		interfaces = []string{"*"}
	}
	p.Config.Interfaces = append(p.Config.Interfaces, interfaces...)
	p.l2 = append(p.l2, advertisement{
		pools: p.selected(a, a.Spec.IPAddressPools, a.Spec.IPAddressPoolSelectors), services: a.Spec.ServiceSelectors, interfaces: interfaces, always: p.always(a),
	})
}

func (p *planner) addBGP(a *object.BGPAdvertisement) {
	if !p.here(a.Spec.NodeSelectors) {
		return
	}
	name := keyOf(a)
	made := wire.Advertisement{Name: name, Length4: 32, Length6: 128, LocalPref: uint32(a.Spec.LocalPref), Peers: p.toldPeers(a)}
	if a.Spec.AggregationLength != nil {
		made.Length4 = int(*a.Spec.AggregationLength)
	}
	if a.Spec.AggregationLengthV6 != nil {
		made.Length6 = int(*a.Spec.AggregationLengthV6)
	}
	for i, text := range a.Spec.Communities {
		values, err := p.community(a.Metadata.Namespace, text)
		if err != nil {
			p.refuse(a, fmt.Sprintf("spec.communities[%d]", i), "%v: the routes are announced without it", err)
			continue
		}
		if len(values) == 2 {
			made.Communities = append(made.Communities, values[0]<<16|values[1])
		} else {
			made.Large = append(made.Large, [3]uint32(values))
		}
	}
	number := func(key string, most uint64) uint64 {
		text := a.Metadata.Annotations[key]
		n, err := strconv.ParseUint(text, 10, 32)
		if text != "" && (err != nil || n > most) {
			p.warn(a, annotation.Field(key), "%q is no number up to %d: it has no effect", text, most)
			return 0
		}
		return n
	}
	made.MED, made.Prepend = uint32(number(annotation.MED, 1<<32-1)), int(number(annotation.Prepend, 10))
	pools := p.selected(a, a.Spec.IPAddressPools, a.Spec.IPAddressPoolSelectors)
	for pool := range pools {
		for _, r := range p.ranges[pool] {
			if !fits(r, made.Length4, made.Length6) {
				p.refuse(a, "spec.aggregationLength", "prefixes of that length are larger than %s of the pool %s, and would lead addresses here that are not of the pool: the pool is not announced by it; choose a longer prefix", r, pool)
				delete(pools, pool)
				break
			}
		}
	}
	if told := made.Peers; made.LocalPref != 0 && len(told) > 0 && !slices.ContainsFunc(p.Config.Peers, func(c wire.PeerConfig) bool { return slices.Contains(told, c.Name) && mayBeInternal(&c) }) {
		p.warn(a, "spec.localPref", "it has no effect: BGP sends it to routers of the same AS alone, and %s is of another; use svcctl.io/med or svcctl.io/prepend", strings.Join(told, ", "))
	}
	p.Config.Advertisements = append(p.Config.Advertisements, made)
	p.bgp = append(p.bgp, advertisement{name: name, pools: pools, services: a.Spec.ServiceSelectors, always: p.always(a)})
}

// fits reports whether the prefixes of a length that have addresses of a range lie in it as a whole.
func fits(r alloc.Pool, length4, length6 int) bool {
	length := length4
	if r.First.Is6() {
		length = length6
	}
	if length == r.First.BitLen() {
		return true
	}
	first := netip.PrefixFrom(r.First, length).Masked()
	_, end, err := object.ParseAddressRange(netip.PrefixFrom(r.Last, length).Masked().String())
	return err == nil && first.Addr() == r.First && end == r.Last
}

// mayBeInternal reports whether a peer is of our AS.
func mayBeInternal(c *wire.PeerConfig) bool {
	return c.Dynamic == "internal" || c.Dynamic == "" && c.RemoteAS == c.LocalAS
}

// toldPeers are the peers that an advertisement is for.
func (p *planner) toldPeers(a *object.BGPAdvertisement) []string {
	all := p.peers[a.Metadata.Namespace]
	if len(a.Spec.Peers) == 0 {
		return all
	}
	var told []string
	for i, name := range a.Spec.Peers {
		if slices.Contains(all, name) {
			told = append(told, name)
			continue
		}
		known := slices.ContainsFunc(p.objects.Peers, func(o *object.BGPPeer) bool {
			return o.Metadata.Namespace == a.Metadata.Namespace && o.Metadata.Name == name
		})
		if !known {
			p.warn(a, fmt.Sprintf("spec.peers[%d]", i), "there is no BGPPeer %s in the namespace %s", name, a.Metadata.Namespace)
		}
	}
	return told
}

// Advertised are the interfaces and the BGPAdvertisements by which an address of a Service is announced; ready
// reports whether clients are served. flags reports that the flags of the announcer say it.
func (p *Plan) Advertised(addr netip.Addr, labels map[string]string, ready bool) (flags bool, interfaces, via []string) {
	i := slices.IndexFunc(p.Pools, func(pool alloc.Pool) bool { return pool.Contains(addr) })
	if i < 0 {
		return false, nil, nil
	}
	pool := p.Pools[i].Name
	if pool == "" {
		return ready, nil, nil
	}
	means := func(a *advertisement) bool {
		return a.pools[pool] && object.MatchesAny(a.services, labels) && (ready || a.always)
	}
	for i := range p.l2 {
		if means(&p.l2[i]) {
			interfaces = append(interfaces, p.l2[i].interfaces...)
		}
	}
	for i := range p.bgp {
		if means(&p.bgp[i]) {
			via = append(via, p.bgp[i].name)
		}
	}
	slices.Sort(interfaces)
	return false, slices.Compact(interfaces), via
}

// keyOf is "namespace/name".
func keyOf(o object.Object) string { return o.GetMeta().Namespace + "/" + o.GetMeta().Name }

// compareRank orders pools: those for certain Services, then those of flags, then the others; each by priority, of which 0 is the last.
func compareRank(a, b alloc.Pool) int {
	rank := func(p alloc.Pool) (class, priority int) {
		switch audience := p.For; {
		case audience == nil && p.Name == "":
			return 1, 0
		case audience == nil:
			return 2, math.MaxInt
		default:
			if priority = audience.Priority; priority == 0 {
				priority = math.MaxInt
			}
			if audience.Namespaces == nil && len(audience.Selectors) == 0 {
				class = 2
			}
			return class, priority
		}
	}
	classA, priorityA := rank(a)
	classB, priorityB := rank(b)
	return cmp.Or(cmp.Compare(classA, classB), cmp.Compare(priorityA, priorityB))
}
