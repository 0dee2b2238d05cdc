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

	"svcctl.io/svcctl/appliance/test/oracle"
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
}

// Generate returns the script of a seed. Each seed leaves out a third of the writers and faults.
func Generate(seed uint64) Script {
	g := &generator{
		Rand: rand.New(rand.NewPCG(seed, 0)), script: Script{Seed: seed}, box: boxOf(seed),
		units: map[string]map[object.Ref]object.Object{}, down: map[netip.AddrPort]bool{}, without: map[string]bool{},
	}
	for _, what := range []string{doFile, doPut, doSlowly, "junk", "fate", doAddress, doClock, doForeign, "disk", "kernel", doKill, doReboot, doDown, doVanish, doStarve, "contest"} {
		g.without[what] = g.IntN(3) == 0
	}
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
	return g.script
}

func (g *generator) add(verb string, args ...string) {
	g.script.Events = append(g.script.Events, Event{verb, args})
}

// round is some changes with some faults, and a rest.
func (g *generator) round() {
	g.world = g.world.Next(g.Rand)
	for range g.IntN(5) {
		g.trouble()
	}
	g.apply()
	for range g.IntN(4) {
		g.trouble()
	}
	if g.IntN(2) == 0 { // other changes before the first ones are done
		g.world = g.world.Next(g.Rand)
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

// apply writes the difference between the units in force and the world: removals first, then the rest in any order.
func (g *generator) apply() {
	next := map[string]map[object.Ref]object.Object{}
	add := func(key string, o object.Object) {
		if next[key] != nil {
			next[key][object.RefOf(o)] = o
		}
	}
	for _, s := range g.world.Services {
		key := object.RefOf(s).Key()
		next[key] = map[object.Ref]object.Object{}
		written := s.DeepCopy().(*object.Service)
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
	for _, o := range g.world.Slices {
		if of := o.Metadata.Labels[object.LabelServiceName]; of != "" {
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

// donor is the Service whose external IPs and port others ask for too; nil: there is none.
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

// isFile reports whether a unit is written as a file; else clients write it.
func (g *generator) isFile(key string) bool { return g.hash(key)%2 == 0 }

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
	o = o.DeepCopy()
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
		if fate := g.fate(fateLost, fateGone, fateHalf); fate != "" {
			g.add(doPut, path, text, fate)
			if fate == fateHalf || g.IntN(2) == 0 { // the client tries again
				g.add(doPut, path, text)
			}
			continue
		}
		g.add(doPut, path, text)
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

// trouble is a fault, or a change of the host.
func (g *generator) trouble() {
	one := func(of ...string) string { return of[g.IntN(len(of))] }
	n := fmt.Sprint(1 + g.IntN(4))
	switch what := one("disk", "disk", "kernel", "kernel", doKill, doReboot, doForeign, doForeign, doClock, doAddress, doDown, doWait, doStop, doVanish); {
	case g.without[what]:
	case what == "disk":
		g.add(doFault, "disk", one("full", "full", "failed", "before", "torn", "torn", "after"), n)
	case what == "kernel":
		g.add(doFault, "kernel", one("refused", "stale", "unknown", "lost", "before", "after", "unreadable"), n)
	case what == doForeign:
		g.add(doForeign, one("flush", "chain", "elements", "data"), one("now", "now", "late", "lost"))
	case what == doClock:
		g.add(doClock, one("26h", "-26h", "400ms", "-1h", "8760h"))
	case what == doAddress:
		g.add(doAddress, one("add", "del"), "ext0", one("192.0.2.7/24", "192.0.2.8/24"))
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
