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
	"time"

	"github.com/fsnotify/fsnotify"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/test/judge"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store/object"
)

// version is the annotation with the number of the write that an object is from.
const version = "simulate.example/version"

// box is the host with everything outside of the process. It has more than 15 fields: each is another thing of the outside.
type box struct {
	world     oracle.Box
	config    *config.Config
	manifests string
	disk      *disk
	tables    *tables
	skew      time.Duration    // of the wall clock
	programs  []oracle.Program // which listen since before there were Services
	down      map[netip.AddrPort]bool
	logTo     io.Writer
	life      *life

	written
	follower follower
	// settleFrom is nft.Box.SettleFrom: in half of the runs every changed frontend settles later.
	settleFrom int
	guarded    bool // removals of many objects at once are held until they are released
	whole      int  // store.Config.Whole; 0: nothing is packed
	before     judged
	packets    *rand.Rand
	stats      Stats
}

// written has what was written from outside, and what was answered.
type written struct {
	files    map[string]string                       // content by name
	decoded  map[string][]object.Object              // of texts
	good     map[string]string                       // that was in force at the last rest
	versions map[object.Ref]map[string]object.Object // all that were written
	compared map[object.Ref]object.Object            // as they were stored at the last rest
	allowed  map[object.Ref]map[string]bool          // of objects of clients: versions that may be stored; "": none
	sets     uint64                                  // contents of source sets that came
	starved  int                                     // files that came to a full disk
	values   map[object.Ref][]string                 // what was allocated to them, with their version and uid
}

// judged is what was in force at the last rest.
type judged struct {
	holders map[string]object.Ref   // of frontends
	ingress map[object.Ref][]string // load balancer IPs
}

// Stats count what a run has done. It has more than 15 fields: each counts another thing.
type Stats struct {
	Events, Rests, Packets, Starts int
	Refused                        int            // writes of clients that were refused
	Acknowledged, Open, Cuts       int            // of fleets: writes with and without an answer, cuts from etcd
	Contested                      int            // frontends at rests that another Service has
	Gateways, Left, Flowtables     int            // at rests: Gateways that were judged, packets that left with an address of a Service, flowtables
	Tears                          int            // crashes between a write and its sync
	Simulated, Nights              time.Duration  // the virtual time of runs, and that of their nights
	Kinds                          map[string]int // outcomes of packets
}

// boxOf is the host of a seed.
func boxOf(seed uint64) oracle.Box {
	b := oracle.Generate(rand.New(rand.NewPCG(seed, 1))).Box
	b.Interfaces = slices.DeleteFunc(slices.Clone(b.Interfaces), func(i oracle.Interface) bool { return i.Name == "vip0" })
	if !newerOf(seed).sets {
		b.SourceSets = nil
	}
	if newerOf(seed).gateways && len(b.Pools)+len(b.InternalPools) == 0 {
		b.Pools = []netip.Prefix{netip.MustParsePrefix("198.51.100.4/30"), netip.MustParsePrefix("2001:db8:198::4/126")}
	}
	return b
}

// programsOf are the programs of the box of a seed.
func programsOf(seed uint64) (all []oracle.Program) {
	r := rand.New(rand.NewPCG(seed, 7))
	for range 1 + r.IntN(2) {
		at := netip.MustParseAddr([]string{"0.0.0.0", "::", "192.0.2.1", "192.0.3.1"}[r.IntN(4)])
		port := []uint16{53, 80, 443, 30001, 30002, 30003, 30004}[r.IntN(7)]
		all = append(all, oracle.Program{Protocol: []oracle.Protocol{oracle.TCP, oracle.UDP}[r.IntN(2)], At: netip.AddrPortFrom(at, port)})
	}
	return all
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
			files: map[string]string{}, decoded: map[string][]object.Object{}, good: map[string]string{}, versions: map[object.Ref]map[string]object.Object{}, compared: map[object.Ref]object.Object{}, allowed: map[object.Ref]map[string]bool{}, values: map[object.Ref][]string{},
		},
		down: map[netip.AddrPort]bool{}, packets: rand.New(rand.NewPCG(s.Seed, 2)),
	}
	if newerOf(s.Seed).programs {
		b.programs = programsOf(s.Seed)
	}
	if newerOf(s.Seed).egress {
		b.world.EgressFrom = oracle.EgressFrom
		if b.world.SourceSets == nil {
			b.world.SourceSets = oracle.SourceSets[0]
		}
	}
	b.stats.Kinds, b.guarded, b.settleFrom, b.whole = map[string]int{}, s.Seed%2 == 1, int(s.Seed/2%2), int(s.Seed/4%2)
	b.config = judge.Config(&b.world)
	b.config.Manifests, b.config.DataDir = []string{b.manifests}, filepath.Join(dir, "data")
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
		if b.note(e.arg(1)); b.decode(e.arg(1)) != nil {
			delete(b.good, e.arg(0)) // until the next rest it is in force, or the one before
		}
		b.files[e.arg(0)] = e.arg(1)
		return b.writeFile(e.arg(0), e.arg(1), e.Verb == doSlowly)
	case doRemove:
		delete(b.files, e.arg(0))
		delete(b.good, e.arg(0))
		if err := os.Remove(filepath.Join(b.manifests, e.arg(0))); err != nil && !os.IsNotExist(err) {
			return err
		}
		b.life.notifier.send(filepath.Join(b.manifests, e.arg(0)), fsnotify.Remove)
	case doPut, doApply:
		return b.put(e.Verb, e.arg(0), e.arg(1), e.arg(2))
	case doCreate, doStale:
		return b.conflict(e.Verb, e.arg(0), e.arg(1))
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
	case doSets:
		n := 0
		_, _ = fmt.Sscan(e.arg(0), &n)
		b.world.SourceSets = oracle.SourceSets[n]
		b.sets++
		b.life.checks.setSets(b.world.SourceSets, b.sets)
	case doClock:
		b.skew += e.duration(0)
	case doForeign:
		for range map[bool]int{true: 7}[e.arg(1) == "fight"] {
			b.foreign(e.arg(0), "now")
			time.Sleep(300 * time.Millisecond)
		}
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
	case doNight:
		b.stats.Nights += e.duration(0)
		return b.nothingHappens("in a night", e.duration(0))
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
			for _, o := range b.decode(text) {
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
		b.life.notifier.send(b.manifests, op)
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
	_, generation := b.tables.fake.View()
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
	w := &oracle.World{Box: b.world, Down: b.down, Programs: b.programs}
	var pods []*object.Pod
	for ref, versions := range b.versions {
		have, _ := b.life.store.Get(ref)
		if have == nil || have.GetMeta().Annotations[version] == "" && ref.Kind != object.KindService {
			continue // there is none, or one that a controller made
		}
		want, ok := versions[have.GetMeta().Annotations[version]]
		if !ok {
			return nil, fmt.Errorf("%s is stored with version %q, which nobody wrote", ref, have.GetMeta().Annotations[version])
		}
		if b.compared[ref] == have { // stored objects are never changed
		} else if field := differs(want, have); field != "" {
			return nil, fmt.Errorf("%s: %s is not what was written in version %q", ref, field, have.GetMeta().Annotations[version])
		}
		b.compared[ref] = have
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
		case *object.Pod:
			pods = append(pods, have) // a client changes its status by itself
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
	for _, s := range w.Services {
		w.Slices = append(w.Slices, slicesOf(s, pods, &b.world)...)
	}
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

// slicesOf are the endpoints that the Pods of a Service are, as the controller of Kubernetes makes them.
func slicesOf(s *object.Service, pods []*object.Pod, box *oracle.Box) (all []*object.EndpointSlice) {
	if len(s.Spec.Selector) == 0 || s.Spec.Type == object.TypeExternalName {
		return nil
	}
	slices.SortFunc(pods, func(a, c *object.Pod) int { return strings.Compare(a.Metadata.Name, c.Metadata.Name) })
	for _, family := range s.Spec.IPFamilies {
		of := &object.EndpointSlice{AddressType: family, Metadata: object.ObjectMeta{Namespace: s.Metadata.Namespace, Name: s.Metadata.Name + "-of-pods-" + family, Labels: map[string]string{object.LabelServiceName: s.Metadata.Name}}}
		for i := range s.Spec.Ports {
			p := &s.Spec.Ports[i]
			of.Ports = append(of.Ports, object.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.TargetPort.Int})
		}
		for _, pod := range pods {
			at := pod.Addr(family)
			if pod.Metadata.Namespace != s.Metadata.Namespace || !object.HasLabels(pod.Metadata.Labels, s.Spec.Selector) || pod.Terminal() || !at.IsValid() {
				continue
			}
			e := object.Endpoint{Addresses: []string{at.String()}, Conditions: object.EndpointConditions{Ready: new(pod.Ready())}}
			hints := object.EndpointHints{}
			if pod.Spec.NodeName != "" {
				e.NodeName = &pod.Spec.NodeName
				if *e.NodeName == box.NodeName && box.Zone != "" {
					e.Zone = &box.Zone
					hints.ForZones = []object.ForZone{{Name: box.Zone}}
				}
				if object.Deref(s.Spec.TrafficDistribution) == object.PreferSameNode {
					hints.ForNodes = []object.ForNode{{Name: *e.NodeName}}
				}
			}
			if s.Spec.TrafficDistribution != nil && pod.Ready() && len(hints.ForZones)+len(hints.ForNodes) > 0 {
				e.Hints = &hints
			}
			of.Endpoints = append(of.Endpoints, e)
		}
		if len(of.Endpoints) > 0 {
			all = append(all, of)
		}
	}
	return all
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
	rs, _ := b.tables.fake.View()
	return rs
}
