package simulate

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// rounds is how many rounds a generated script has.
const rounds = 12

// generator makes the script of a seed.
type generator struct {
	*rand.Rand
	script   Script
	box      oracle.Box
	world    *oracle.World
	versions int
	units    map[string]map[object.Ref]object.Object // what is in force, by "namespace/name" of the Service
	down     map[netip.AddrPort]bool
	without  map[string]bool // writers and faults that this seed does not have
	newer    newer
	beside   *oracle.World // with Gateways; nil: there are none yet
}

// newer is what some boxes have besides Services. It is drawn apart from the rest of a script.
type newer struct {
	gateways  bool // with TCPRoutes, UDPRoutes and ReferenceGrants
	egress    bool // hosts leave with addresses of Services
	fast      bool // the fast path, and links that come and go
	providers bool // Services of files whose EndpointSlices a client writes
	pods      bool // servers as Pods, which Services select
	pools     bool // pools of load balancer IPs as objects
	limits    bool // Services with limits, and other annotations that change no first packet
	programs  bool // programs of the box that listen at ports which Services ask for
	sets      bool // source sets
	stubborn  bool // a kernel that takes some elements only later, and programs that go on changing tables; the clock does not jump
	encrypted bool // the data file, after the first process
}

func newerOf(seed uint64) newer {
	r := rand.New(rand.NewPCG(seed, 6))
	one := func() bool { return r.IntN(3) == 0 }
	return newer{one(), one(), one(), one(), one(), one(), one(), one(), one(), one(), one()}
}

// Generate returns the script of a seed. Each seed leaves out a third of the writers and faults.
func Generate(seed uint64) Script {
	g := &generator{
		Rand: rand.New(rand.NewPCG(seed, 0)), script: Script{Seed: seed}, box: boxOf(seed),
		units: map[string]map[object.Ref]object.Object{}, down: map[netip.AddrPort]bool{}, without: map[string]bool{}, newer: newerOf(seed),
	}
	for _, what := range []string{doFile, doPut, doSlowly, "junk", "fate", doAddress, doClock, doForeign, "disk", "kernel", doKill, doReboot, doDown, doVanish, doStarve, "contest", doStale} {
		g.without[what] = g.IntN(3) == 0
	}
	g.without[doClock] = g.without[doClock] || g.newer.stubborn
	if g.without[doFile] && g.without[doPut] {
		g.without[doFile] = false
	}
	for _, namespace := range []string{"default", "other"} {
		g.add(doWait, "2s")
		g.add(doPut, "/api/v1/namespaces/"+namespace, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"annotations":{%q:"0"}}}`, namespace, version))
	}
	g.world = oracle.GenerateOn(g.box, g.Rand)
	for range rounds {
		g.round()
	}
	g.days()
	return g.script
}

// days adds long quiet times after the rounds, and one more round: of 128 seeds 56 have a night of 9 hours, 7 a weekend, one 13 days,
// and the others none. They come last, so that the start of a seed does not change.
func (g *generator) days() {
	var nights []string
	switch n := g.IntN(128); {
	case n == 0:
		nights = []string{"9h", "62h", "240h"}
	case n < 8:
		nights = []string{"14h", "48h"}
	case n < 64:
		nights = []string{"9h"}
	}
	for _, night := range nights {
		g.add(doAddress, "del", "ext0", "192.0.2.7/24") // an address that was not renewed in time
		g.add(doWait, fmt.Sprintf("%ds", 1+g.IntN(20)))
		g.add(doAddress, "add", "ext0", "192.0.2.7/24")
		g.add([]string{doStop, doReboot, doKill}[g.IntN(3)])
		g.add(doRest)
		g.add(doNight, night)
	}
	if nights != nil {
		g.round()
	}
}

func (g *generator) add(verb string, args ...string) {
	g.script.Events = append(g.script.Events, Event{verb, args})
}

// round adds some changes, some faults, and a time to settle.
func (g *generator) round() {
	if g.newer.egress && g.IntN(3) == 0 {
		g.add(doSets, fmt.Sprint(g.IntN(len(oracle.SourceSets))))
	}
	g.world = g.world.Next(g.Rand)
	g.gateways()
	for range g.IntN(5) {
		g.trouble()
	}
	g.apply()
	for range g.IntN(4) {
		g.trouble()
	}
	if g.IntN(2) == 0 { // other changes before the first ones are done
		g.world = g.world.Next(g.Rand)
		g.gateways()
		g.apply()
	}
	if g.IntN(2) == 0 {
		g.add(doRest, "restart")
	} else {
		g.add(doRest)
	}
	if !g.without[doStarve] && g.IntN(6) == 0 {
		g.add(doStarve)
	}
}

// gateways makes the Gateways, routes and grants of a round: others, or those before with some routes less and other weights.
func (g *generator) gateways() {
	switch {
	case !g.newer.gateways:
	case g.beside == nil || g.IntN(3) == 0:
		g.beside = &oracle.World{Box: g.box}
		for _, s := range g.world.Services { // they get external IPs in conflict with Gateways
			g.beside.Services = append(g.beside.Services, object.DeepCopy(s))
		}
		g.beside.AddGateways(g.Rand)
	default:
		g.beside.Routes = slices.DeleteFunc(slices.Clone(g.beside.Routes), func(object.Object) bool { return g.IntN(6) == 0 })
		for i, o := range g.beside.Routes {
			if g.IntN(3) > 0 {
				continue
			}
			weight := int32(g.IntN(4))
			o = object.DeepCopy(o)
			switch o := o.(type) {
			case *object.TCPRoute:
				o.Spec.Rules[0].BackendRefs[0].Weight = &weight
			case *object.UDPRoute:
				o.Spec.Rules[0].BackendRefs[0].Weight = &weight
			}
			g.beside.Routes[i] = o
		}
		for i, o := range g.beside.Slices { // of the backends that came with the Gateways
			if s := object.DeepCopy(o); g.IntN(3) == 0 && len(s.Endpoints) > 0 {
				ready := g.IntN(2) == 0
				s.Endpoints[0].Conditions.Ready = &ready
				g.beside.Slices[i] = s
			}
		}
	}
}

// apply writes the difference between the units in force and the world: removals first, then the rest in any order.
func (g *generator) apply() {
	next := map[string]map[object.Ref]object.Object{}
	add := func(key string, o object.Object) {
		if next[key] != nil {
			next[key][object.RefOf(o)] = o
		}
	}
	world := *g.world
	if g.beside != nil {
		world.Services = slices.Concat(world.Services, g.beside.Services[len(g.beside.Services)-backends:])
		world.Slices = slices.Concat(world.Slices, g.beside.Slices)
		for _, o := range g.beside.Gateways {
			g.alone(next, o)
		}
		for _, o := range g.beside.Routes {
			g.alone(next, o)
		}
		for _, o := range g.beside.Grants {
			g.alone(next, o)
		}
	}
	for _, o := range g.others() {
		g.alone(next, o)
	}
	for _, s := range world.Services {
		key := object.RefOf(s).Key()
		next[key] = map[object.Ref]object.Object{}
		written := object.DeepCopy(s)
		g.annotate(written)
		written.Status, written.Metadata.CreationTimestamp = object.ServiceStatus{}, nil
		if g.isAutomatic(key) && written.Spec.ClusterIP != object.ClusterIPNone {
			written.Spec.ClusterIP, written.Spec.ClusterIPs = "", nil
			for i := range written.Spec.Ports {
				written.Spec.Ports[i].NodePort = 0
			}
		}
		if donor := g.donor(); donor != nil && donor != s && g.hash(key)%4 == 1 && written.Spec.Type != object.TypeExternalName && written.Spec.ClusterIP != object.ClusterIPNone && len(written.Spec.Ports) == 1 {
			written.Spec.ExternalIPs = slices.Clone(donor.Spec.ExternalIPs)
			written.Spec.Ports[0].Port, written.Spec.Ports[0].Protocol = donor.Spec.Ports[0].Port, donor.Spec.Ports[0].Protocol
		}
		add(key, written)
	}
	for _, o := range world.Slices {
		switch of := o.Metadata.Labels[object.LabelServiceName]; {
		case of == "":
		case g.isProvided(o.Metadata.Namespace + "/" + of):
			o = object.DeepCopy(o)
			o.Metadata.Labels[object.LabelManagedBy] = object.ManagedByDiscover
			g.alone(next, o)
		default:
			add(o.Metadata.Namespace+"/"+of, o)
		}
	}
	for _, o := range g.world.Endpoints {
		add(object.RefOf(o).Key(), o)
	}
	for _, key := range slices.Sorted(maps.Keys(g.units)) {
		if next[key] == nil {
			g.drop(key)
		}
	}
	if g.IntN(2) == 0 {
		g.add(doWait, "3s")
	}
	keys := slices.Sorted(maps.Keys(next))
	g.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys {
		if g.isFile(key) && g.without[doFile] || !g.isFile(key) && g.without[doPut] {
			continue
		}
		if !sameObjects(g.units[key], next[key]) {
			g.write(key, next[key])
		}
		if g.IntN(4) == 0 {
			g.add(doWait, fmt.Sprintf("%dms", 1+g.IntN(4000)))
		}
	}
}

// donor returns the Service whose external IPs and port others ask for too, nil if there is none.
func (g *generator) donor() *object.Service {
	if g.without["contest"] {
		return nil
	}
	i := slices.IndexFunc(g.world.Services, func(s *object.Service) bool { return len(s.Spec.ExternalIPs) > 0 && len(s.Spec.Ports) > 0 })
	if i < 0 {
		return nil
	}
	return g.world.Services[i]
}

// backends is the number of Services that come with the Gateways of a world.
const backends = 2

// alone adds an object as a unit of its own.
func (g *generator) alone(next map[string]map[object.Ref]object.Object, o object.Object) {
	ref := object.RefOf(o)
	next[ref.Key()+"/"+ref.Kind] = map[object.Ref]object.Object{ref: o}
}

// others returns objects that come and go by themselves: Pods and pools.
func (g *generator) others() (all []object.Object) {
	if g.newer.pods {
		for i := range 3 {
			all = append(all, g.pod(i))
		}
	}
	if g.newer.pools {
		for i, ranges := range [][]string{{"198.51.100.32-198.51.100.33"}, {"198.51.100.40/31", "2001:db8:198:1::/126"}} {
			auto := g.IntN(4) > 0
			pool := &object.IPAddressPool{TypeMeta: object.TypeMeta{APIVersion: "metallb.io/v1beta1", Kind: object.KindIPAddressPool}, Spec: object.IPAddressPoolSpec{Addresses: ranges, AutoAssign: &auto}}
			pool.Metadata.Namespace, pool.Metadata.Name = "default", fmt.Sprint("pool", i)
			all = append(all, pool)
		}
	}
	return slices.DeleteFunc(all, func(object.Object) bool { return g.IntN(4) == 0 })
}

// pod returns a server with an address of each family, which may be an endpoint of slices too.
func (g *generator) pod(i int) *object.Pod {
	pod := &object.Pod{TypeMeta: object.TypeMeta{APIVersion: object.APIVersionCore, Kind: object.KindPod}}
	pod.Metadata = object.ObjectMeta{Namespace: []string{"default", "other"}[i%2], Name: fmt.Sprint("pod", i), Labels: map[string]string{"app": []string{"x", "x", "x", "y"}[g.IntN(4)]}}
	pod.Spec.NodeName = []string{"gw1", "n2", ""}[i%3]
	pod.Status.Phase = []string{"", object.PodRunning, object.PodRunning, object.PodPending, object.PodFailed}[g.IntN(5)]
	if g.IntN(2) == 0 {
		pod.Status.Conditions = []object.PodCondition{{Type: "Ready", Status: []string{"True", "True", "False"}[g.IntN(3)]}}
	}
	for _, ip := range []string{fmt.Sprint("10.180.0.", 50+i), fmt.Sprint("fd00:10:180::5", i)} {
		if g.IntN(4) > 0 {
			pod.Status.PodIPs = append(pod.Status.PodIPs, object.PodIP{IP: ip})
		}
	}
	if len(pod.Status.PodIPs) > 0 {
		pod.Status.PodIP = pod.Status.PodIPs[0].IP
	}
	return pod
}

// annotate adds annotations for the optional features of the box (egress, fast path, providers, limits) to a Service.
func (g *generator) annotate(s *object.Service) {
	key, annotations := object.RefOf(s).Key(), maps.Clone(s.Metadata.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	if g.newer.egress && g.hash("egress"+key)%3 > 0 {
		annotations[object.AnnotationEgress] = "vip"
		if n := int(g.hash("to"+key+fmt.Sprint(len(g.script.Events)/100)) % 16); n < len(oracle.EgressTo) { // others after a while
			annotations[resolve.AnnotationEgressTo] = oracle.EgressTo[n]
		}
	}
	if n := g.hash("fast" + key); g.newer.fast && n%4 > 0 {
		annotations[object.AnnotationFastPath] = fmt.Sprint(n%4 != 1)
	}
	if g.isProvided(key) && s.Spec.Type != object.TypeExternalName {
		annotations[annotation.EndpointsFrom] = "dns:" + s.Metadata.Name + ".example"
	}
	if g.newer.limits {
		for i, each := range inessential {
			if g.hash(fmt.Sprint("limit", i, key))%3 == 0 {
				annotations[each[0]] = each[1]
			}
		}
	}
	s.Metadata.Annotations = annotations
}

// inessential are annotations that change nothing for the first packet of a client.
var inessential = [][2]string{
	{"svcctl.io/rate-limit", "100/s"}, {"svcctl.io/client-rate-limit", "60/m per 24,64"}, {"svcctl.io/client-connections", "20"}, {"svcctl.io/endpoint-connections", "100"},
	{"svcctl.io/drain-timeout", "30s"}, {"svcctl.io/connection-log", "true"}, {"svcctl.io/retry-after", "3s"}, {"svcctl.io/affinity-refresh", "packets"},
	{"svcctl.io/eject", "true"}, {"svcctl.io/slow-start", "30s"}, {"svcctl.io/adopt-connections", "true"}, {"example.com/owner", "team-a"},
}

// isProvided reports whether a client writes the EndpointSlices of a Service, each by itself, as svcctl discover does.
func (g *generator) isProvided(key string) bool {
	return g.newer.providers && g.hash("from"+key)%2 == 0
}

// isFile reports whether a unit is written as a file; else clients write it.
func (g *generator) isFile(key string) bool {
	return g.hash(key)%2 == 0 && !strings.HasSuffix(key, "/"+object.KindEndpointSlice)
}

// isAutomatic reports whether a unit leaves its values to the allocator.
func (g *generator) isAutomatic(key string) bool { return g.hash(key)%3 == 0 }

func (g *generator) hash(key string) uint32 {
	h := fnv.New32()
	fmt.Fprint(h, g.script.Seed, key)
	return h.Sum32()
}

// sameObjects compares objects without their versions.
func sameObjects(a, b map[object.Ref]object.Object) bool {
	return maps.EqualFunc(a, b, func(x, y object.Object) bool { return encode(x, "") == encode(y, "") })
}

// encode writes an object with its version.
func encode(o object.Object, as string) string {
	o = object.DeepCopy(o)
	meta := o.GetMeta()
	meta.Annotations = maps.Clone(meta.Annotations)
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	meta.Annotations[version] = as
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // our own types
	}
	return string(text)
}

func sortedRefs(objects map[object.Ref]object.Object) []object.Ref {
	return slices.SortedFunc(maps.Keys(objects), func(a, b object.Ref) int { return strings.Compare(a.String(), b.String()) })
}

func (g *generator) write(key string, objects map[object.Ref]object.Object) {
	g.versions++
	as := fmt.Sprint(g.versions)
	before := g.units[key]
	g.units[key] = objects
	if g.isFile(key) {
		var docs []string
		for _, ref := range sortedRefs(objects) {
			docs = append(docs, encode(objects[ref], as))
		}
		name := strings.ReplaceAll(key, "/", "-") + ".yaml"
		if !g.without["junk"] && g.IntN(6) == 0 {
			g.add(doFile, name, "{junk: [")
			if g.IntN(2) == 0 { // it stays
				g.units[key] = before
				return
			}
			g.add(doWait, fmt.Sprintf("%dms", g.IntN(1000)))
		}
		verb := doFile
		if !g.without[doSlowly] && g.IntN(3) == 0 {
			verb = doSlowly
		}
		g.add(verb, name, strings.Join(docs, "\n---\n"))
		return
	}
	for _, ref := range sortedRefs(before) {
		if objects[ref] == nil {
			g.delete(pathOf(ref))
		}
	}
	for _, ref := range sortedRefs(objects) {
		path, text := pathOf(ref), encode(objects[ref], as)
		if !g.without["junk"] && g.IntN(8) == 0 {
			g.add(doJunk, []string{"PUT", "PATCH"}[g.IntN(2)], path, text[:g.IntN(len(text))])
		}
		verb := doPut
		if g.hash("apply"+ref.String())%3 == 0 { // always, so that all of it is its manager's
			verb = doApply
		}
		if before[ref] != nil && !g.without[doStale] && g.IntN(6) == 0 {
			g.add([]string{doCreate, doStale}[g.IntN(2)], path, encode(objects[ref], "0"))
		}
		if fate := g.fate(fateLost, fateGone, fateHalf); fate != "" {
			g.add(verb, path, text, fate)
			if fate == fateHalf || g.IntN(2) == 0 { // the client tries again
				g.add(verb, path, text)
			}
			continue
		}
		g.add(verb, path, text)
	}
}

// fate returns the fate of a request; mostly it is answered.
func (g *generator) fate(of ...string) string {
	if g.without["fate"] || g.IntN(6) != 0 {
		return ""
	}
	return of[g.IntN(len(of))]
}

func (g *generator) delete(path string) {
	if fate := g.fate(fateLost, fateGone); fate != "" {
		g.add(doDelete, path, fate)
		return
	}
	g.add(doDelete, path)
}

func (g *generator) drop(key string) {
	if g.isFile(key) {
		g.add(doRemove, strings.ReplaceAll(key, "/", "-")+".yaml")
	} else {
		for _, ref := range sortedRefs(g.units[key]) {
			g.delete(pathOf(ref))
		}
	}
	delete(g.units, key)
}

// trouble adds a fault, or a change of the host.
func (g *generator) trouble() {
	one := func(of ...string) string { return of[g.IntN(len(of))] }
	n := fmt.Sprint(1 + g.IntN(4))
	switch what := one("disk", "disk", "kernel", "kernel", doKill, doReboot, doForeign, doForeign, doClock, doAddress, doDown, doWait, doStop, doVanish); {
	case g.without[what]:
	case what == "disk":
		g.add(doFault, "disk", one("full", "full", "failed", "before", "torn", "torn", "after"), n)
	case what == "kernel" && g.newer.stubborn && g.IntN(3) == 0:
		g.add(doFault, "kernel", "picky", n)
	case what == "kernel":
		g.add(doFault, "kernel", one("refused", "stale", "unknown", "lost", "before", "after", "unreadable"), n)
	case what == doForeign && g.newer.fast && g.IntN(2) == 0:
		g.add(doForeign, "others", one("now", "now", "late", "lost"))
	case what == doForeign && g.newer.stubborn && g.IntN(3) == 0:
		g.add(doForeign, one("flush", "chain", "elements", "data"), "fight")
	case what == doForeign:
		g.add(doForeign, one("flush", "chain", "elements", "data"), one("now", "now", "late", "lost"))
	case what == doAddress && g.newer.fast && g.IntN(2) == 0:
		g.add(doLink, one("add", "del"), one("ext8", "ext9"))
	case what == doClock:
		g.add(doClock, one("26h", "-26h", "400ms", "-1h", "8760h"))
	case what == doAddress:
		where := [][2]string{{"ext0", "192.0.2.7/24"}, {"ext0", "192.0.2.8/24"}, {"int0", "10.180.0.2/16"}, {"int1", "10.181.1.2/16"}}[g.IntN(4)] // the last ones are endpoints
		g.add(doAddress, one("add", "del"), where[0], where[1])
	case what == doDown:
		w := oracle.GenerateOn(g.box, g.Rand)
		for _, server := range slices.SortedFunc(maps.Keys(w.Down), netip.AddrPort.Compare) {
			if g.IntN(4) == 0 {
				g.down[server] = !g.down[server]
				g.add(map[bool]string{true: doDown, false: doUp}[g.down[server]], server.String())
			}
		}
	case what == doVanish:
		if g.IntN(2) == 0 {
			g.add(doVanish, "restart")
		} else {
			g.add(doVanish)
		}
	case what == doWait:
		g.add(doWait, one("1ms", "50ms", "700ms", "12s", "40s"))
	default:
		g.add(what)
	}
}
