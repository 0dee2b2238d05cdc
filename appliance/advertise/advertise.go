package advertise

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Objects holds the input of Compile: the objects of MetalLB's kinds, and the Secrets and Namespaces that they refer to. Lists are sorted
// by namespace and name.
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

// Box holds the settings of this box that Compile needs, from flags and its configuration file.
type Box struct {
	Pools         []alloc.Pool // pools from flags
	ServiceRanges []netip.Prefix
	NodeName      string
}

// Plan holds the address pools of this box, and where their addresses are announced.
type Plan struct {
	// Pools holds the pools from flags and from IPAddressPools, in order of preference.
	Pools []alloc.Pool
	// Config is the configuration for the announcer: BGP peers, advertisements and interfaces.
	Config   wire.AnnounceConfig
	Problems []resolve.Problem

	l2  []advertisement
	bgp []advertisement
}

// advertisement is an L2Advertisement or a BGPAdvertisement, with the pools and Services whose addresses it announces.
type advertisement struct {
	name       string
	pools      map[string]bool // keys ("namespace/name") of the selected pools
	services   []object.LabelSelector
	interfaces []string
	always     bool // announce addresses even if the Service has no ready endpoint
}

// ReasonConfiguration is the Reason of all Problems of a Plan.
const ReasonConfiguration = "BadConfiguration"

// planner holds the state of one call of Compile.
type planner struct {
	*Plan
	objects *Objects
	box     *Box
	ranges  map[string][]alloc.Pool      // address ranges of each pool in use, by "namespace/name"; never empty
	labels  map[string]map[string]string // labels of the pools in use, by "namespace/name"
	peers   map[string][]string          // names of the BGPPeers in use, by namespace
}

// Compile computes the Plan of a box from all objects. Objects that cannot be served are left out and reported as Problems of the Plan.
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

// refuse adds a Problem for a field of an object that is not served; warn adds one for a field that is ignored.
func (p *planner) refuse(o object.Object, field, format string, args ...any) {
	p.Problems = append(p.Problems, resolve.Problem{Object: object.RefOf(o), Field: field, Reason: ReasonConfiguration, Message: fmt.Sprintf(format, args...)})
}

func (p *planner) warn(o object.Object, field, format string, args ...any) {
	p.refuse(o, field, format, args...)
	p.Problems[len(p.Problems)-1].Warning = true
}

// here reports whether any of the node selectors matches the labels of this box.
func (p *planner) here(selectors []object.LabelSelector) bool {
	return object.MatchesAny(selectors, p.objects.Node)
}

// selected returns the keys ("namespace/name") of the pools that an advertisement selects, by name or by label. It adds a Problem for a
// name without a pool.
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

// always reports whether an advertisement announces addresses even if their Service has no ready endpoint, according to its annotation. An
// invalid value is a Problem.
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

// fits reports whether the aggregates of a range, prefixes of length4 or length6 bits by its family, contain no address outside of the
// range.
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

// mayBeInternal reports whether a peer can have the AS of this box (an internal peer).
func mayBeInternal(c *wire.PeerConfig) bool {
	return c.Dynamic == "internal" || c.Dynamic == "" && c.RemoteAS == c.LocalAS
}

// toldPeers returns the names of the peers that get the routes of an advertisement: those it lists, or all peers of its namespace.
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

// Advertised returns where an address of a Service is announced: on interfaces, according to L2Advertisements, and via the
// BGPAdvertisements with the returned names. labels are the labels of the Service, and ready reports whether it has ready endpoints. flags
// is set if the address is ready and from a pool that flags configure; the flags of the announcer then determine where it is announced.
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

// keyOf returns "namespace/name" of an object.
func keyOf(o object.Object) string { return o.GetMeta().Namespace + "/" + o.GetMeta().Name }

// compareRank orders pools by preference: first those restricted to certain Services, then those from flags, then all others. Within a
// class, pools are in ascending order of priority number, with 0 last, and of equal numbers by name.
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
	return cmp.Or(cmp.Compare(classA, classB), cmp.Compare(priorityA, priorityB), strings.Compare(a.Name, b.Name))
}

const (
	bgpPort = 179
	// restartTime is the time for which a router keeps routes while a session with enableGracefulRestart is down, as in FRR.
	restartTime = 120 * time.Second
	// Defaults of the fields of a BFDProfile, as in MetalLB.
	bfdInterval   = 300 * time.Millisecond
	bfdMultiplier = 3
	bfdMinTTL     = 254
)

// addPeer adds a BGP session with a peer to the Plan, or a Problem if the peer asks for something unsupported.
func (p *planner) addPeer(o *object.BGPPeer) {
	s := &o.Spec
	if !p.here(s.NodeSelectors) {
		return
	}
	if s.VRF != "" {
		p.refuse(o, "spec.vrf", "the peer gets no session: routes of a VRF are not read here; leave it out, or run `svcctl announce` in that VRF")
		return
	}
	if other := slices.IndexFunc(p.Config.Peers, func(c wire.PeerConfig) bool { return c.Name == o.Metadata.Name }); other >= 0 {
		p.refuse(o, "metadata.name", "another namespace has a BGPPeer of this name, and this one gets no session: give it another name")
		return
	}
	c := wire.PeerConfig{
		Name: o.Metadata.Name, Interface: s.Interface, Source: s.SourceAddress, RouterID: s.RouterID,
		LocalAS: uint32(s.MyASN), RemoteAS: uint32(s.PeerASN), Dynamic: s.DynamicASN, IPv4: true, IPv6: true,
		Connect: durationOf(s.ConnectTime), MultiHop: s.EBGPMultiHop, Password: s.Password,
	}
	if s.LocalASN != 0 {
		c.LocalAS = uint32(s.LocalASN)
	}
	if addr, err := netip.ParseAddr(s.PeerAddress); err == nil {
		port := cmp.Or(uint16(s.PeerPort), bgpPort)
		c.Address = netip.AddrPortFrom(addr, port).String()
		if s.DisableMP {
			c.IPv4, c.IPv6 = addr.Is4(), addr.Is6()
		}
	}
	if s.HoldTime != "" {
		if c.Hold = durationOf(s.HoldTime); c.Hold == 0 {
			c.Hold = -1
		}
		if c.Hold > 0 && c.Hold < 3*time.Second {
			p.refuse(o, "spec.holdTime", "%s is below 3s, which BGP does not allow: the peer gets no session", s.HoldTime)
			return
		}
	}
	if c.Keepalive = durationOf(s.KeepaliveTime); c.Hold > 0 && c.Keepalive >= c.Hold {
		p.warn(o, "spec.keepaliveTime", "%s is not below the hold time %s: a third of that is used", s.KeepaliveTime, s.HoldTime)
		c.Keepalive = 0
	}
	if s.EnableGracefulRestart {
		c.Restart = restartTime
	}
	switch text := o.Metadata.Annotations[annotation.TTLSecurity]; {
	case text == "1" && !s.EBGPMultiHop:
		c.TTLSecurity = 1
	case text != "":
		p.warn(o, annotation.Field(annotation.TTLSecurity), "%q has no effect: only 1 is served, for peers one hop away", text)
	}
	if !p.addSecret(o, &c) || !p.addProfile(o, &c) {
		return
	}
	p.Config.Peers = append(p.Config.Peers, c)
	p.peers[o.Metadata.Namespace] = append(p.peers[o.Metadata.Namespace], c.Name)
}

// durationOf parses a duration that was validated before; 0 for "".
func durationOf(text string) time.Duration {
	d, _ := time.ParseDuration(text)
	return d
}

// addSecret copies the TCP MD5 password of a peer from its Secret to c. It returns false, with a Problem, if that Secret is missing.
func (p *planner) addSecret(o *object.BGPPeer, c *wire.PeerConfig) bool {
	ref := o.Spec.PasswordSecret
	if ref.Name == "" {
		return true
	}
	ref.Namespace = cmp.Or(ref.Namespace, o.Metadata.Namespace)
	for _, secret := range p.objects.Secrets {
		if secret.Metadata.Namespace == ref.Namespace && secret.Metadata.Name == ref.Name && len(secret.Data["password"]) > 0 {
			c.Password = string(secret.Data["password"])
			return true
		}
	}
	p.refuse(o, "spec.passwordSecret", "there is no Secret %s in the namespace %s with a key password: the peer gets no session; create it, as with `kubectl create secret generic`", ref.Name, ref.Namespace)
	return false
}

// addProfile copies the timers of a peer's BFD profile to c. It returns false, with a Problem, if that profile is missing.
func (p *planner) addProfile(o *object.BGPPeer, c *wire.PeerConfig) bool {
	name := o.Spec.BFDProfile
	if name == "" {
		return true
	}
	i := slices.IndexFunc(p.objects.Profiles, func(b *object.BFDProfile) bool {
		return b.Metadata.Namespace == o.Metadata.Namespace && b.Metadata.Name == name
	})
	if i < 0 {
		p.refuse(o, "spec.bfdProfile", "there is no BFDProfile %s in the namespace %s: the peer gets no session", name, o.Metadata.Namespace)
		return false
	}
	b := p.objects.Profiles[i].Spec
	if b.EchoMode != nil && *b.EchoMode || b.EchoInterval != nil {
		p.warn(p.objects.Profiles[i], "spec.echoMode", "there is no echo mode: echoMode and echoInterval have no effect, and the control packets of the intervals watch the peer")
	}
	value := func(n *int32, otherwise int) int {
		if n == nil {
			return otherwise
		}
		return int(*n)
	}
	milliseconds := func(n *int32) time.Duration {
		return time.Duration(value(n, int(bfdInterval/time.Millisecond))) * time.Millisecond
	}
	c.BFD = &wire.BFDConfig{
		Transmit: milliseconds(b.TransmitInterval), Receive: milliseconds(b.ReceiveInterval),
		Multiplier: value(b.DetectMultiplier, bfdMultiplier), Passive: b.PassiveMode != nil && *b.PassiveMode, MinTTL: value(b.MinimumTTL, bfdMinTTL),
	}
	return true
}

// makePools sets Plan.Pools to the pools from flags and objects, sorted by compareRank. A pool is left out as a whole if one of its ranges
// overlaps an older pool or a range of cluster IPs.
func (p *planner) makePools() {
	p.Pools = slices.Clone(p.box.Pools)
	for _, o := range slices.SortedFunc(slices.Values(p.objects.Pools), func(a, b *object.IPAddressPool) int { return object.ByAge(&a.Metadata, &b.Metadata) }) {
		ranges, ok := p.rangesOf(o)
		if !ok {
			continue
		}
		p.Pools = append(p.Pools, ranges...)
		p.ranges[keyOf(o)], p.labels[keyOf(o)] = ranges, o.Metadata.Labels
	}
	slices.SortStableFunc(p.Pools, compareRank)
}

// rangesOf parses the address ranges of a pool. It returns false, with a Problem, if the pool is refused.
func (p *planner) rangesOf(o *object.IPAddressPool) (ranges []alloc.Pool, ok bool) {
	pool := alloc.Pool{
		Name: keyOf(o), OnRequest: o.Spec.AutoAssign != nil && !*o.Spec.AutoAssign, AvoidEnds: o.Spec.AvoidBuggyIPs,
		Internal: o.Metadata.Annotations[annotation.InternalPool] == "true",
	}
	if a := o.Spec.ServiceAllocation; a != nil {
		pool.For = &alloc.Audience{Namespaces: p.namespaces(a), Selectors: a.ServiceSelectors, Priority: int(a.Priority)}
	}
	for i, text := range o.Spec.Addresses {
		at := fmt.Sprintf("spec.addresses[%d]", i)
		var err error
		if pool.First, pool.Last, err = object.ParseAddressRange(text); err != nil {
			p.refuse(o, at, "%v: the pool is not used", err)
			return nil, false
		}
		if why := object.NotUnicast(pool.First, pool.Last); why != "" { // of an earlier version, which accepted it
			p.warn(o, at, "%s cannot be load balancer IPs: give a range of unicast addresses", why)
		}
		if _, err := alloc.NewPools([]alloc.Pool{pool}); err != nil {
			p.refuse(o, at, "%v: the pool is not used", err)
			return nil, false
		}
		if what := p.overlapped(&pool, ranges); what != "" {
			p.refuse(o, at, "%s overlaps %s: the pool is not used; give each address to one", text, what)
			return nil, false
		}
		ranges = append(ranges, pool)
	}
	return ranges, true
}

// overlapped returns a description of the pool or range of cluster IPs that r overlaps; "" if there is none. own holds the preceding ranges
// of the same pool.
func (p *planner) overlapped(r *alloc.Pool, own []alloc.Pool) string {
	for _, s := range p.box.ServiceRanges {
		if s.Contains(r.First) || s.Contains(r.Last) || r.Contains(s.Addr()) {
			return "the range of cluster IPs " + s.String()
		}
	}
	for _, pools := range [...][]alloc.Pool{p.Pools, own} {
		i := slices.IndexFunc(pools, func(other alloc.Pool) bool { return other.Contains(r.First) || r.Contains(other.First) })
		if i < 0 {
			continue
		}
		if pools[i].Name == "" {
			return "the pool " + pools[i].String() + " of --load-balancer-pool"
		}
		return "the IPAddressPool " + pools[i].Name
	}
	return ""
}

// namespaces returns the namespaces whose Services may get addresses of a pool; nil means all. Empty means none: the pool's selectors match
// no namespace.
func (p *planner) namespaces(a *object.ServiceAllocation) []string {
	if len(a.Namespaces)+len(a.NamespaceSelectors) == 0 {
		return nil
	}
	all := append([]string{}, a.Namespaces...)
	for _, ns := range p.objects.Namespaces {
		if len(a.NamespaceSelectors) > 0 && object.MatchesAny(a.NamespaceSelectors, ns.Metadata.Labels) {
			all = append(all, ns.Metadata.Name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// community parses a BGP community: the name of an alias in a Community object of the namespace, or the value itself.
func (p *planner) community(namespace, text string) ([]uint32, error) {
	for _, o := range p.objects.Communities {
		for _, alias := range o.Spec.Communities {
			if o.Metadata.Namespace == namespace && alias.Name == text {
				return object.ParseCommunity(alias.Value)
			}
		}
	}
	values, err := object.ParseCommunity(text)
	if err != nil && !strings.Contains(text, ":") {
		return nil, fmt.Errorf("no Community of the namespace %s has the name %q", namespace, text)
	}
	return values, err
}
