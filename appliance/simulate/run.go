package simulate

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/test/judge"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// version is the annotation with the number of the write that an object is from.
const version = "simulate.example/version"

// box is the host with everything outside of the process.
type box struct {
	world     oracle.Box
	config    *config.Config
	manifests string
	disk      *disk
	tables    *tables
	skew      time.Duration // of the wall clock
	down      map[netip.AddrPort]bool
	logTo     io.Writer
	life      *life

	written
	follower follower
	guarded  bool                  // removals of many objects at once are held until they are released
	holders  map[string]object.Ref // of frontends that several Services ask for, at the last rest
	packets  *rand.Rand
	stats    Stats
}

// written has what was written from outside, and what was answered.
type written struct {
	files    map[string]string                       // content by name
	good     map[string]string                       // that was in force at the last rest
	versions map[object.Ref]map[string]object.Object // all that were written
	allowed  map[object.Ref]map[string]bool          // of objects of clients: versions that may be stored; "": none
	starved  int                                     // files that came to a full disk
	values   map[object.Ref][]string                 // what was allocated to them, with their version and uid
}

// Stats count what a run has done.
type Stats struct {
	Events, Rests, Packets, Starts int
	Refused                        int // writes of clients that were refused
	Acknowledged, Open, Cuts       int // of fleets: writes with and without an answer, cuts from etcd
	Contested                      int // frontends at rests that another Service has
	Gateways, Left, Flowtables     int // at rests: Gateways that were judged, packets that left with an address of a Service, flowtables
	Tears                          int // crashes between a write and its sync
	Simulated                      time.Duration
	Kinds                          map[string]int // outcomes of packets
}

// boxOf is the host of a seed.
func boxOf(seed uint64) oracle.Box {
	b := oracle.Generate(rand.New(rand.NewPCG(seed, 1))).Box
	b.Interfaces = slices.DeleteFunc(slices.Clone(b.Interfaces), func(i oracle.Interface) bool { return i.Name == "vip0" })
	b.SourceSets = nil // their files are not simulated
	if newerOf(seed).gateways && len(b.Pools)+len(b.InternalPools) == 0 {
		b.Pools = []netip.Prefix{netip.MustParsePrefix("198.51.100.4/30"), netip.MustParsePrefix("2001:db8:198::4/126")}
	}
	return b
}

// Run runs a script in a directory of its own. It is to be called in a bubble of testing/synctest. The error is a violated
// invariant, with the number of the event.
func Run(s Script, dir string, log io.Writer) (Stats, error) {
	if s.Fleet {
		return runFleet(s, dir, log)
	}
	b, err := runBox(s, dir, log)
	return b.stats, err
}

// newBox returns a host on which nothing was started.
func newBox(s Script, dir string, log io.Writer) (*box, error) {
	b := &box{
		world: boxOf(s.Seed), manifests: filepath.Join(dir, "manifests"), disk: newDisk(filepath.Join(dir, "data"), s.Seed), tables: newTables(), logTo: log,
		written: written{
			files: map[string]string{}, good: map[string]string{}, versions: map[object.Ref]map[string]object.Object{}, allowed: map[object.Ref]map[string]bool{}, values: map[object.Ref][]string{},
		},
		down: map[netip.AddrPort]bool{}, packets: rand.New(rand.NewPCG(s.Seed, 2)),
	}
	b.stats.Kinds, b.guarded = map[string]int{}, s.Seed%2 == 1
	b.config = judge.Config(&b.world)
	b.config.Manifests, b.config.DataDir = []string{b.manifests}, filepath.Join(dir, "data")
	if newerOf(s.Seed).egress {
		b.config.Addresses.EgressFrom = oracle.EgressFrom
	}
	if newerOf(s.Seed).fast {
		b.config.Services.FastPath = []config.FastPath{config.FastPathServices, config.FastPathAll}[s.Seed%2]
	}
	if err := os.MkdirAll(b.manifests, 0o700); err != nil {
		return b, err
	}
	// An empty directory counts as one that is not mounted.
	return b, os.WriteFile(filepath.Join(b.manifests, "none.yaml"), []byte("# on purpose\n"), 0o600)
}

func runBox(s Script, dir string, log io.Writer) (*box, error) {
	b, err := newBox(s, dir, log)
	if err != nil {
		return b, err
	}
	began := time.Now()
	if err := b.restart(); err != nil {
		return b, err
	}
	defer b.stop()
	defer func() { b.stats.Simulated, b.stats.Tears = time.Since(began), b.disk.tears }()
	for i, e := range s.Events {
		b.stats.Events++
		if log != nil {
			fmt.Fprintf(log, "=== event %d, after %v: %s %.60s\n", i+1, time.Since(began), e.Verb, strings.Join(e.Args, " "))
		}
		if err := b.do(e); err != nil {
			return b, fmt.Errorf("event %d (%s): %w", i+1, e.Verb, err)
		}
	}
	return b, nil
}

// restart starts a process, again and again while the kernel or the disk fails.
func (b *box) restart() error {
	for try := 0; ; try++ {
		b.stats.Starts++
		err := b.start()
		if err == nil || try == 20 {
			return err
		}
		time.Sleep(time.Second)
	}
}

// revive starts a process in place of one that was killed.
func (b *box) revive() error {
	if !b.life.dead.Load() {
		return nil
	}
	b.stop()
	return b.restart()
}

// do carries out an event.
func (b *box) do(e Event) error {
	if err := b.revive(); err != nil {
		return err
	}
	switch e.Verb {
	case doFile, doSlowly:
		if b.note(e.arg(1)); decode(e.arg(1)) != nil {
			delete(b.good, e.arg(0)) // until the next rest it is in force, or the one before
		}
		b.files[e.arg(0)] = e.arg(1)
		return b.writeFile(e.arg(0), e.arg(1), e.Verb == doSlowly)
	case doRemove:
		delete(b.files, e.arg(0))
		if err := os.Remove(filepath.Join(b.manifests, e.arg(0))); err != nil && !os.IsNotExist(err) {
			return err
		}
		b.send(e.arg(0), fsnotify.Remove)
	case doPut:
		return b.put(e.arg(0), e.arg(1), e.arg(2))
	case doJunk:
		return b.junk(e.arg(0), e.arg(1), e.arg(2))
	case doDelete:
		b.remove(e.arg(0), e.arg(1))
	case doDown, doUp:
		b.life.checks.set(netip.MustParseAddrPort(e.arg(0)), e.Verb == doDown)
	case doAddress:
		b.address(e.arg(0), e.arg(1), netip.MustParsePrefix(e.arg(2)))
		b.readHost()
	case doLink:
		b.world.Interfaces = slices.DeleteFunc(slices.Clone(b.world.Interfaces), func(i oracle.Interface) bool { return i.Name == e.arg(1) })
		if e.arg(0) == "add" {
			b.world.Interfaces = append(b.world.Interfaces, oracle.Interface{Name: e.arg(1)})
		}
		b.readHost()
	case doClock:
		b.skew += e.duration(0)
	case doForeign:
		b.foreign(e.arg(0), e.arg(1))
	case doFault:
		n := 1
		_, _ = fmt.Sscan(e.arg(2), &n)
		switch e.arg(0) {
		case "disk":
			b.disk.fault(e.arg(1), n)
		case "kernel":
			b.tables.fault(kernelFault(e.arg(1)), n)
		}
	case doKill:
		b.life.kill()
	case doStop:
		b.stop()
		return b.restart()
	case doReboot:
		b.life.kill()
		b.stop()
		b.tables.foreign("flush")
		return b.restart()
	case doVanish:
		return b.vanish(e.arg(0) == "restart")
	case doStarve:
		return b.starve()
	case doWait:
		time.Sleep(e.duration(0))
	case doRest:
		return b.rest(e.arg(0) == "restart")
	default:
		return fmt.Errorf("unknown verb")
	}
	return nil
}

// vanish moves the directory of manifests away for a while. What is stored of files that are there stays, if it is guarded.
func (b *box) vanish(restart bool) error {
	time.Sleep(5 * time.Second)
	stored := func() map[object.Ref]string {
		all := map[object.Ref]string{}
		for name, text := range b.files {
			for _, o := range decode(text) {
				if have, _ := b.life.store.Get(object.RefOf(o)); have != nil && have.GetMeta().Annotations[version] == o.GetMeta().Annotations[version] {
					all[object.RefOf(o)] = name
				}
			}
		}
		return all
	}
	if err := b.revive(); err != nil {
		return err
	}
	before := stored()
	move := func(from, to string, op fsnotify.Op) error {
		err := os.Rename(from, to)
		select {
		case b.life.notifier.events <- fsnotify.Event{Name: b.manifests, Op: op}:
		default:
		}
		return err
	}
	if err := move(b.manifests, b.manifests+".away", fsnotify.Rename); err != nil {
		return err
	}
	if restart {
		b.stop()
		if err := b.restart(); err != nil {
			return err
		}
	}
	time.Sleep(40 * time.Second)
	if err := b.revive(); err != nil {
		return err
	}
	for ref, name := range before {
		if have, _ := b.life.store.Get(ref); have == nil && b.guarded {
			return fmt.Errorf("%s of %s is not stored any more, while the directory is away", ref, name)
		}
	}
	if err := move(b.manifests+".away", b.manifests, fsnotify.Create); err != nil {
		return err
	}
	time.Sleep(10 * time.Second)
	return nil
}

// starve fills the disk at rest, has a file come, and the host start again: what is stored is in force.
func (b *box) starve() error {
	b.tables.calm()
	b.disk.starve()
	defer b.disk.calm()
	b.starved++
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"starve","namespace":"default","annotations":{%q:"starve-%d"}},"spec":{"clusterIP":"None","ports":[{"port":80}]}}`, version, b.starved)
	if err := b.do(Event{doFile, []string{"default-starve.yaml", text}}); err != nil {
		return err
	}
	time.Sleep(5 * time.Second)
	if err := b.do(Event{doReboot, nil}); err != nil {
		return err
	}
	time.Sleep(calm)
	world, err := b.stored()
	if err != nil || len(world.Services) == 0 { // a box that has stored nothing waits
		return err
	}
	if err := b.packetsArrive(world); err != nil {
		return fmt.Errorf("with a full disk: %w", err)
	}
	return nil
}

// note remembers the versions of the objects of a text.
func (b *box) note(text string) (refs []object.Ref) {
	for _, o := range decode(text) {
		ref := object.RefOf(o)
		if b.versions[ref] == nil {
			b.versions[ref] = map[string]object.Object{}
		}
		b.versions[ref][o.GetMeta().Annotations[version]] = o
		refs = append(refs, ref)
	}
	return refs
}

// decode returns the objects of a text that a script has; none of junk.
func decode(text string) (all []object.Object) {
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var meta object.TypeMeta
		if json.Unmarshal([]byte(doc), &meta) != nil {
			return nil
		}
		k, ok := kind.ByName(meta.APIVersion, meta.Kind)
		if !ok {
			return nil
		}
		o := k.New()
		if json.Unmarshal([]byte(doc), o) != nil {
			return nil
		}
		all = append(all, o)
	}
	return all
}

// put is a request that creates or replaces an object.
func (b *box) put(path, text, fate string) error {
	refs := b.note(text)
	if len(refs) != 1 {
		return fmt.Errorf("%q is not one object", text)
	}
	ref, now := refs[0], decode(text)[0].GetMeta().Annotations[version]
	if b.allowed[ref] == nil {
		b.allowed[ref] = map[string]bool{"": true}
	}
	status, answer := b.request("PUT", path, text, fate)
	if status == 404 || status == 409 && strings.Contains(answer, "not found") || status == 0 && fate != "" {
		status, answer = b.request("POST", path[:strings.LastIndexByte(path, '/')], text, fate)
	}
	switch {
	case fate == fateHalf && status >= 200 && status < 300:
		return fmt.Errorf("half a body is answered with %d: %s", status, answer)
	case status >= 200 && status < 300:
		b.allowed[ref] = map[string]bool{now: true}
	case status >= 400 && status < 500:
		b.stats.Refused++
	default:
		b.allowed[ref][now] = true
	}
	return nil
}

// junk is a request with a body that is no object. It is refused, and changes nothing: all that is stored was written by others.
func (b *box) junk(method, path, text string) error {
	if status, answer := b.request(method, path, text, ""); status != 0 && (status < 400 || status >= 500) {
		return fmt.Errorf("%s %s of junk is answered with %d: %s", method, path, status, answer)
	}
	return nil
}

// remove is a request that deletes an object.
func (b *box) remove(path, fate string) {
	ref, ok := b.refOf(path)
	if !ok {
		return
	}
	switch status, _ := b.request("DELETE", path, "", fate); {
	case status >= 200 && status < 300, status == 404 && b.allowed[ref][""]:
		b.allowed[ref] = map[string]bool{"": true}
	case status == 404 || status >= 500 || status == 0:
		b.allowed[ref][""] = true
	}
}

// refOf is the object of a client at a path.
func (b *box) refOf(path string) (object.Ref, bool) {
	for ref := range b.allowed {
		if pathOf(ref) == path {
			return ref, true
		}
	}
	return object.Ref{}, false
}

// pathOf is the path of an object in the API.
func pathOf(ref object.Ref) string {
	return strings.NewReplacer("{namespace}", ref.Namespace, "{name}", ref.Name).Replace(objectPaths()[ref.Kind])
}

// objectPaths are the paths of objects, by kind.
var objectPaths = sync.OnceValue(func() map[string]string {
	paths := map[string]string{}
	for _, k := range kind.All() {
		paths[k.Name] = k.ObjectPath()
	}
	return paths
})

func (b *box) address(how, name string, p netip.Prefix) {
	b.world.Interfaces = slices.Clone(b.world.Interfaces)
	for i := range b.world.Interfaces {
		each := &b.world.Interfaces[i]
		if each.Name != name {
			continue
		}
		each.Addresses = slices.DeleteFunc(slices.Clone(each.Addresses), func(q netip.Prefix) bool { return p == q })
		if how == "add" {
			each.Addresses = append(each.Addresses, p)
		}
	}
}

// host returns the facts of the host.
func (b *box) host() (facts node.Facts) {
	facts = judge.Facts(&b.world)
	for i := range facts.Addresses {
		facts.Addresses[i].First = true
	}
	for i := range facts.Interfaces {
		facts.Interfaces[i].Forwards = strings.HasPrefix(facts.Interfaces[i].Name, "ext") || strings.HasPrefix(facts.Interfaces[i].Name, "int")
	}
	return facts
}

// foreign is a change of our tables by another program; how its message comes.
func (b *box) foreign(what, how string) {
	b.tables.foreign(what)
	_, generation, _ := b.tables.fake.Read()
	change := kernel.Change{Generation: generation, PID: 4711, Comm: "nft", Ours: what != "others"}
	l := b.life
	send := func(c kernel.Change) {
		select {
		case l.changes <- c:
		default:
		}
	}
	switch how {
	case "late":
		time.AfterFunc(2*time.Second, func() { send(change) })
	case "lost":
		send(kernel.Change{Lost: true})
	default:
		send(change)
	}
}

// stored returns the world that is in force: the objects of clients and files, with allocated values.
func (b *box) stored() (*oracle.World, error) {
	w := &oracle.World{Box: b.world, Down: b.down}
	for ref, versions := range b.versions {
		have, _ := b.life.store.Get(ref)
		if have == nil || have.GetMeta().Annotations[version] == "" && ref.Kind != object.KindService {
			continue // there is none, or one that a controller made
		}
		want, ok := versions[have.GetMeta().Annotations[version]]
		if !ok {
			return nil, fmt.Errorf("%s is stored with version %q, which nobody wrote", ref, have.GetMeta().Annotations[version])
		}
		if field := differs(want, have); field != "" {
			return nil, fmt.Errorf("%s: %s is not what was written in version %q", ref, field, have.GetMeta().Annotations[version])
		}
		switch have := have.(type) {
		case *object.Service:
			w.Services = append(w.Services, object.DeepCopy(have))
		case *object.EndpointSlice:
			w.Slices = append(w.Slices, want.(*object.EndpointSlice))
		case *object.Endpoints:
			w.Endpoints = append(w.Endpoints, want.(*object.Endpoints))
		case *object.Gateway: // as it was written: the oracle has defaults of its own
			w.Gateways = append(w.Gateways, want.(*object.Gateway))
		case *object.TCPRoute, *object.UDPRoute:
			route := object.DeepCopy(want)
			route.GetMeta().CreationTimestamp = have.GetMeta().CreationTimestamp
			w.Routes = append(w.Routes, route)
		case *object.ReferenceGrant:
			w.Grants = append(w.Grants, have)
		}
	}
	// Where several slices have an endpoint, their order decides.
	byName := func(a, c object.Object) int {
		return strings.Compare(object.RefOf(a).String(), object.RefOf(c).String())
	}
	slices.SortFunc(w.Services, func(a, c *object.Service) int { return byName(a, c) })
	slices.SortFunc(w.Slices, func(a, c *object.EndpointSlice) int { return byName(a, c) })
	slices.SortFunc(w.Endpoints, func(a, c *object.Endpoints) int { return byName(a, c) })
	slices.SortFunc(w.Gateways, func(a, c *object.Gateway) int { return byName(a, c) })
	for _, gw := range w.Gateways {
		service, _ := b.life.store.Get(object.ServiceRef(oracle.ServiceOf(gw)))
		if service == nil {
			return nil, fmt.Errorf("%s has no Service", object.RefOf(gw))
		}
		w.Services = append(w.Services, object.DeepCopy(service).(*object.Service))
		w.Slices = append(w.Slices, w.GatewaySlices(gw)...)
	}
	return w, nil
}

// differs names a field of a written object that is stored differently; "": none. What was not written is not compared.
func differs(want, have object.Object) string {
	fields := func(o object.Object) (all map[string]any) {
		text, err := json.Marshal(o)
		if err != nil {
			panic(err) // our own types
		}
		if err := json.Unmarshal(text, &all); err != nil {
			panic(err)
		}
		delete(all, "status")
		delete(all, "metadata")
		return all
	}
	return subset("", fields(want), fields(have))
}

func subset(path string, want, have any) string {
	switch want := want.(type) {
	case map[string]any:
		have, _ := have.(map[string]any)
		for key, value := range want {
			if at := subset(path+"."+key, value, have[key]); at != "" {
				return at
			}
		}
		return ""
	case []any:
		have, _ := have.([]any)
		if len(want) > len(have) {
			return path
		}
		for i := range want {
			if at := subset(fmt.Sprintf("%s[%d]", path, i), want[i], have[i]); at != "" {
				return at
			}
		}
		return ""
	}
	if !reflect.DeepEqual(want, have) {
		return path
	}
	return ""
}

// ruleset returns what the kernel has.
func (b *box) ruleset() nft.Ruleset {
	rs, _, _ := b.tables.fake.Read()
	return rs
}
