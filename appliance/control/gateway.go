// This file is long because indexes, plans and generated objects of Gateways depend on each other.

package control

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/appliance/gateway"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

// GatewaysOwner is the owner (store.Owner.Controller) of the Services and EndpointSlices that are generated for Gateways.
const GatewaysOwner = "gateways"

// refs is a set of references to objects.
type refs map[object.Ref]struct{}

func (r refs) add(ref object.Ref) { r[ref] = struct{}{} }

// gateways is the controller of Gateways. It stores the Services and EndpointSlices that serve them, the statuses of Gateways, routes and
// ListenerSets, and the default GatewayClass.
type gateways struct {
	store *store.Store
	seen  uint64 // the revision of the store that the last sync processed
	// silent is set for a copy of the store, in which only the generated objects matter: it writes no statuses.
	silent   bool
	staged   bool     // a rollout is under way
	families []string // the ipFamilies for Services that do not request any
	now      func() time.Time

	gatewayIndex
	problems map[object.Ref][]resolve.Problem // by Gateway; a Gateway without problems has no entry
	again    refs                             // Gateways to plan in the next sync even if nothing changes
	stuck    refs                             // Gateways whose generated Service has an error, which a change of another Service may end
	programmed
}

// gatewayIndex has the last plan of each Gateway, and finds the Gateways that depend on an object.
type gatewayIndex struct {
	children map[object.Ref]refs         // the routes and ListenerSets by the parents that they name; those that name none by the zero Ref
	parents  map[object.Ref][]object.Ref // the reverse of children: the parents that a route or ListenerSet names
	users    map[object.Ref]refs         // the Gateways that depend on an object
	of       map[string]object.Ref       // the Gateway that has the name of a generated Service
	known    map[object.Ref]*served
}

// programmed is the state of the generated Services in the dataplane, and the writes that wait for it.
type programmed struct {
	// late stores the result of the last sync. It is called when the dataplane has been programmed from ahead; nil: nothing is left to store. Until
	// then ahead has the EndpointSlices of the Services that the result changes, by Service. They can be programmed before they are stored, as they
	// contain nothing that the store allocates.
	late  func() error
	ahead map[string][]*object.EndpointSlice

	applied uint64                       // the revision of the store that the dataplane implements
	waiting map[object.Ref]bool          // Gateways with a condition that becomes true only once the dataplane is programmed
	trouble map[string][]gateway.Trouble // problems of generated Services in the dataplane, by Service
	shown   map[string][]gateway.Trouble // the result of Trouble at the last plan, which the statuses report
}

// served is the result of the last plan of a Gateway.
type served struct {
	refs      []object.Ref
	generated refs
	made      map[object.Ref]object.Object // the generated objects as passed to the store
	routes    refs
	revision  uint64 // the first revision of the store that has all generated objects
	failed    string // why the generated objects could not be stored; "" if they are stored
}

func newGateways(objects *store.Store, ranges []netip.Prefix) *gateways {
	families := []string{object.IPv4}
	if len(ranges) > 0 && ranges[0].Addr().Is6() {
		families = []string{object.IPv6}
	}
	return &gateways{
		store: objects, families: families, now: func() time.Time { return time.Now().UTC().Truncate(time.Second) },
		gatewayIndex: gatewayIndex{map[object.Ref]refs{}, map[object.Ref][]object.Ref{}, map[object.Ref]refs{}, map[string]object.Ref{}, map[object.Ref]*served{}},
		problems:     map[object.Ref][]resolve.Problem{}, again: refs{}, stuck: refs{}, programmed: programmed{waiting: map[object.Ref]bool{}, trouble: map[string][]gateway.Trouble{}, shown: map[string][]gateway.Trouble{}},
	}
}

// routeKinds are the kinds of objects that name a Gateway or ListenerSet as their parent.
var routeKinds = []string{object.KindListenerSet, object.KindTCPRoute, object.KindUDPRoute, object.KindTLSRoute, object.KindHTTPRoute}

// work is what one sync must plan again.
type work struct {
	gateways refs
	routes   refs // routes and ListenerSets that changed themselves
	classes  bool
	atOnce   bool // store the result without waiting for the dataplane
}

// sync plans the Gateways that are affected by changes since the last sync, and stores the generated objects and statuses in one commit.
func (c *gateways) sync() error {
	if err := c.storeLate(); err != nil { // the dataplane did not take it
		return err
	}
	changes := c.store.Changes(c.seen)
	w := work{gateways: c.again, routes: refs{}}
	c.again = refs{}
	if changes.All {
		if err := c.readAll(&w); err != nil {
			return err
		}
	}
	if head, is := c.store.PendingHead(pending.Staged); (is && head.Pending()) != c.staged {
		c.staged = !c.staged
		c.touchAll(&w)
	}
	for _, key := range changes.Services {
		if !c.isOwn(key) {
			c.touch(&w, object.ServiceRef(key))
		}
	}
	for _, key := range changes.Secrets {
		namespace, name, _ := strings.Cut(key, "/")
		c.touch(&w, object.Ref{Kind: object.KindSecret, Namespace: namespace, Name: name})
	}
	for _, ref := range changes.Others {
		c.look(&w, ref)
	}
	for gw := range c.waiting {
		if s := c.known[gw]; s == nil || c.applied >= s.revision {
			w.gateways.add(gw)
		}
	}
	if len(changes.Services) > 0 { // nothing waits for them
		maps.Copy(c.again, c.stuck)
		for key, shown := range c.shown { // a Service may wait for another reason
			if gw, is := c.of[key]; is && !slices.Equal(c.Trouble(key), shown) {
				w.gateways.add(gw)
			}
		}
	}
	c.seen = changes.Revision
	if len(w.gateways)+len(w.routes) == 0 && !w.classes {
		return nil
	}
	return c.plan(&w)
}

// isOwn reports whether a generated Service and its slices are stored exactly as this controller wrote them.
func (c *gateways) isOwn(key string) bool {
	s := c.known[c.of[key]]
	if s == nil {
		return false
	}
	svc, list, _ := c.store.Service(key)
	isLeft := func(o object.Object) bool {
		version, err := strconv.ParseUint(o.GetMeta().ResourceVersion, 10, 64)
		return err == nil && version <= s.revision
	}
	return svc != nil && isLeft(svc) && !slices.ContainsFunc(list, func(o *object.EndpointSlice) bool { return !isLeft(o) })
}

// touch adds the Gateways that depend on an object to the work.
func (c *gateways) touch(w *work, ref object.Ref) { maps.Copy(w.gateways, c.users[ref]) }

// touchAll adds all Gateways to the work.
func (c *gateways) touchAll(w *work) {
	for gw := range c.known {
		w.gateways.add(gw)
	}
}

// look adds the Gateways that are affected by a change of an object to the work, and updates the index of parents.
func (c *gateways) look(w *work, ref object.Ref) {
	c.touch(w, ref)
	switch ref.Kind {
	case object.KindGateway, object.KindListenerSet:
		w.gateways.add(ref)
	case object.KindGatewayClass:
		w.classes = true
	case object.KindIPAddressPool: // the store has given addresses of it, or has other reasons for giving none
		c.touchAll(w)
	case object.KindReferenceGrant:
		c.touch(w, object.Ref{Kind: ref.Kind, Namespace: ref.Namespace})
	}
	if !slices.Contains(routeKinds, ref.Kind) {
		return
	}
	w.routes.add(ref)
	c.touchParents(w, ref)
	for _, parent := range c.parents[ref] {
		delete(c.children[parent], ref)
	}
	delete(c.parents, ref)
	if o, _ := c.store.Get(ref); o != nil {
		parents := gateway.ParentsOf(o)
		if len(parents) == 0 {
			parents = []object.Ref{{}}
		}
		for _, parent := range parents {
			if c.children[parent] == nil {
				c.children[parent] = refs{}
			}
			c.children[parent].add(ref)
			c.parents[ref] = append(c.parents[ref], parent)
		}
	}
	c.touchParents(w, ref)
}

// touchParents adds the Gateways that a route or ListenerSet names as parents, directly or through a ListenerSet, to the work, and the parents that
// do not exist.
func (c *gateways) touchParents(w *work, ref object.Ref) {
	for _, parent := range c.parents[ref] {
		if parent.Kind == object.KindGateway || c.Get(parent) == nil {
			w.gateways.add(parent)
		} else {
			c.touchParents(w, parent)
		}
	}
}

// readAll adds all Gateways, routes and classes to the work, and rebuilds the index from the store.
func (c *gateways) readAll(w *work) error {
	clear(c.children)
	clear(c.parents)
	for _, kind := range append([]string{object.KindGateway}, routeKinds...) {
		all, _, err := c.store.List(kind, "", 0)
		if err != nil {
			return fmt.Errorf("list the Gateways and routes: %w", err)
		}
		for _, o := range all {
			c.look(w, object.RefOf(o))
		}
	}
	c.touchAll(w)
	for _, o := range c.store.Generated(GatewaysOwner) { // by an earlier process
		c.adopt(w, o)
	}
	w.classes = true
	return nil
}

// adopt records a stored object as generated for the Gateway that owns it.
func (c *gateways) adopt(w *work, o object.Object) {
	meta := o.GetMeta()
	for _, owner := range meta.OwnerReferences {
		if owner.Kind == object.KindGateway {
			gw := object.Ref{Kind: object.KindGateway, Namespace: meta.Namespace, Name: owner.Name}
			ref := object.RefOf(o)
			c.servedOf(gw).generated.add(ref)
			w.gateways.add(gw)
			if ref.Kind == object.KindService {
				c.of[ref.Key()] = gw
			}
		}
	}
}

// servedOf returns the result of the last plan of a Gateway, an empty one if there is none.
func (c *gateways) servedOf(ref object.Ref) *served {
	if c.known[ref] == nil {
		c.known[ref] = &served{generated: refs{}, made: map[object.Ref]object.Object{}, routes: refs{}}
	}
	return c.known[ref]
}

// batch has the writes of one sync.
type batch struct {
	puts     []object.Object
	deletes  []object.Ref
	statuses map[object.Ref]object.Object
}

// plan plans the Gateways of the work, and prepares one commit with the result. If the dataplane can be programmed first (runAhead), storeLate makes
// the commit later, otherwise plan makes it at once. If the store refuses it, each Gateway is planned and stored separately.
func (c *gateways) plan(w *work) error {
	all := &batch{statuses: map[object.Ref]object.Object{}}
	planned := map[object.Ref]*gateway.Planned{}
	for _, ref := range slices.SortedFunc(maps.Keys(w.gateways), compareRefs) {
		planned[ref] = c.planOne(w, ref, all)
	}
	if w.classes {
		c.addClasses(all)
	}
	for ref := range w.routes { // those that no Gateway has planned may have lost their last parent here
		c.addStatus(all, ref, nil)
	}
	c.late = func() error {
		revision, err := c.commit(all)
		if err != nil {
			return c.planAgain(w, err)
		}
		for ref, p := range planned {
			c.keep(ref, p, revision)
		}
		return nil
	}
	_, trial := c.store.PendingHead(pending.Timed)
	_, rollout := c.store.PendingHead(pending.Staged)
	if !w.atOnce && !c.silent && !trial && !rollout && !c.store.IsShared() && c.runAhead(all) {
		return nil
	}
	return c.storeLate()
}

// runAhead sets c.ahead to the EndpointSlices, by Service, as they will be after the commit of a batch. It returns false, and sets nothing, if the
// batch changes other objects as well.
func (c *gateways) runAhead(b *batch) bool {
	ahead := map[string][]*object.EndpointSlice{}
	replace := func(old *object.EndpointSlice, with ...*object.EndpointSlice) {
		service := old.Metadata.Namespace + "/" + old.Metadata.Labels[object.LabelServiceName]
		if _, has := ahead[service]; !has {
			_, list, _ := c.store.Service(service)
			ahead[service] = slices.Clone(list)
		}
		list := slices.DeleteFunc(ahead[service], func(s *object.EndpointSlice) bool { return s.Metadata.Name == old.Metadata.Name })
		ahead[service] = slices.SortedFunc(slices.Values(append(list, with...)), func(a, b *object.EndpointSlice) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	}
	for _, ref := range b.deletes {
		was, _ := c.store.Get(ref)
		if s, is := was.(*object.EndpointSlice); is {
			replace(s)
		} else if was != nil {
			return false
		}
	}
	for _, o := range b.puts {
		s, is := o.(*object.EndpointSlice)
		if !is {
			return false
		}
		replace(s, s)
	}
	c.ahead = ahead
	return true
}

// storeLate stores the batch of the last sync, if that is not stored yet.
func (c *gateways) storeLate() error {
	late := c.late
	if c.late, c.ahead = nil, nil; late == nil {
		return nil
	}
	return late()
}

func compareRefs(a, b object.Ref) int { return strings.Compare(a.String(), b.String()) }

// commit stores a batch, unless it is empty. It returns the revision of the commit, or 0 if the batch changes only statuses, which do not affect the
// dataplane.
func (c *gateways) commit(b *batch) (revision uint64, err error) {
	if len(b.puts)+len(b.deletes)+len(b.statuses) == 0 {
		return 0, nil
	}
	var statuses []object.Object
	for _, ref := range slices.SortedFunc(maps.Keys(b.statuses), compareRefs) {
		statuses = append(statuses, b.statuses[ref])
	}
	result, err := c.store.Generate(GatewaysOwner, b.puts, b.deletes, statuses...)
	if err != nil {
		return 0, fmt.Errorf("what serves Gateways: %w", err)
	}
	if len(b.puts)+len(b.deletes) == 0 {
		return 0, nil
	}
	return result.Revision, nil
}

// planAgain plans and stores each Gateway separately, after the store refused an object that was generated for one of them. Only the Gateway of that
// object gets a problem.
func (c *gateways) planAgain(w *work, err error) error {
	var wrong object.Errors
	if !isOwned(err) && !errors.As(err, &wrong) {
		maps.Copy(c.again, w.gateways) // the next sync tries it again
		c.seen = 0                     // for routes and classes
		return err
	}
	w.atOnce = true
	if len(w.gateways) == 1 && len(w.routes) == 0 && !w.classes {
		for ref := range w.gateways {
			s := c.known[ref]
			if s == nil || s.failed == err.Error() {
				return err
			}
			s.failed = err.Error()
		}
		return c.plan(w)
	}
	var errs []error
	for ref := range w.gateways {
		errs = append(errs, c.plan(&work{gateways: refs{ref: {}}, atOnce: true}))
	}
	return errors.Join(append(errs, c.plan(&work{routes: w.routes, classes: w.classes, gateways: refs{}, atOnce: true}))...)
}

// planOne plans a Gateway, and adds the resulting writes to a batch. It returns nil if the Gateway is deleted, or of a class of another
// controller.
func (c *gateways) planOne(w *work, ref object.Ref, b *batch) *gateway.Planned {
	before := c.servedOf(ref)
	gw, _ := c.Get(ref).(*object.Gateway)
	done := c.applied >= before.revision && before.revision > 0
	ours := gw != nil && c.isServed(ref)
	var p gateway.Planned
	if ours {
		service := object.ServiceRef(ref.Namespace + "/" + gateway.ServiceName(gw))
		holder := c.of[service.Key()]
		if o := c.Get(service); o != nil && c.IsGenerated(service) { // another box of the fleet may have stored it
			holder = object.Ref{Kind: object.KindGateway, Namespace: ref.Namespace, Name: o.GetMeta().OwnerReferences[0].Name}
		}
		if holder.Name == "" || c.known[holder] == nil && c.Get(holder) == nil {
			holder = ref
		}
		c.of[service.Key()] = holder
		p = gateway.Plan(gw, c, done)
	} else if gw != nil {
		p.Refs = []object.Ref{{Kind: object.KindGatewayClass, Name: gw.Spec.GatewayClassName}}
		why, foreign := "there is no GatewayClass %s: nothing of this Gateway is served; make it, or name class svcctl", c.Get(p.Refs[0]) != nil
		if foreign {
			why = "GatewayClass %s is of another controller: nothing of this Gateway is served here; name class svcctl"
		}
		p.Problems = []object.Problem{{Object: ref, Field: "spec.gatewayClassName", Reason: gateway.ReasonNotProgrammed, Warning: foreign, Message: fmt.Sprintf(why, gw.Spec.GatewayClassName)}}
		if len(before.generated) > 0 { // its class was one of svcctl
			c.addStatus(b, ref, nil)
		}
	} else if c.Get(ref) == nil {
		p.Problems = gateway.Orphans(ref, slices.SortedFunc(maps.Keys(c.children[ref]), compareRefs))
	}
	if c.shown[p.Service] = c.Trouble(p.Service); len(c.shown[p.Service]) == 0 {
		delete(c.shown, p.Service)
	} else {
		p.Pending = p.Pending || !done
	}
	var ports map[string]bool // those whose slices follow; nil if the plan is stored as a whole
	if ours && before.failed != "" {
		ports = before.follow(&p)
	}
	now := refs{}
	_, stuck := c.stuck[ref]
	for _, o := range p.Generated {
		at := object.RefOf(o)
		now.add(at)
		if old, is := c.Get(at).(*object.Service); is && len(o.(*object.Service).Spec.IPFamilies) > 0 && o.(*object.Service).Spec.IPFamilies[0] != old.Spec.IPFamilies[0] {
			b.deletes = append(b.deletes, at) // the first family of a Service never changes: the next sync makes another one
			c.again.add(ref)
		} else if last := before.made[at]; last == nil || stuck || !reflect.DeepEqual(last, o) || !c.IsGenerated(at) {
			b.puts = append(b.puts, o)
		}
	}
	for o := range before.generated {
		if _, still := now[o]; !still && (ports == nil || ports[portOf(c.Get(o))]) {
			b.deletes = append(b.deletes, o)
		}
	}
	planned := refs{}
	for _, o := range p.Statuses {
		at := object.RefOf(o)
		planned.add(at)
		delete(w.routes, at)
		c.addStatus(b, at, o)
	}
	for o := range before.routes {
		if _, still := planned[o]; !still {
			c.addStatus(b, o, nil)
		}
	}
	return &p
}

// follow leaves in a plan only the EndpointSlices of stored Services, after the store refused the plan as a whole: these Services stay as they are, and
// their slices follow the backends. It returns the ports of these slices, as of portOf.
func (s *served) follow(p *gateway.Planned) map[string]bool {
	ports := map[string]bool{}
	p.Generated = slices.DeleteFunc(p.Generated, func(o object.Object) bool {
		service, _, _ := strings.Cut(portOf(o), ":")
		_, ports[portOf(o)] = s.generated[object.ServiceRef(service)]
		return !ports[portOf(o)]
	})
	return ports
}

// portOf returns the Service port of a generated EndpointSlice, as "namespace/name:tcp-80"; "" for other objects.
func portOf(o object.Object) string {
	if s, is := o.(*object.EndpointSlice); is {
		return s.Metadata.Namespace + "/" + s.Metadata.Labels[object.LabelServiceName] + ":" + object.Deref(s.Ports[0].Name)
	}
	return ""
}

// addStatus adds an object to a batch if its planned status differs from the stored one. planned is nil for an object that no Gateway of this
// controller uses any more.
func (c *gateways) addStatus(b *batch, ref object.Ref, planned object.Object) {
	stored, has := b.statuses[ref]
	if !has {
		stored = c.Get(ref)
	}
	if c.silent || stored == nil {
		return
	}
	if planned == nil {
		if planned = gateway.Unserved(stored); planned == nil {
			return
		}
	}
	if next := gateway.Merge(stored, planned, c.now(), c.isServed); next != nil {
		b.statuses[ref] = next
	}
}

// isServed reports whether a parent is a Gateway of this controller's classes, or a ListenerSet of such a Gateway.
func (c *gateways) isServed(parent object.Ref) bool {
	switch o := c.Get(parent).(type) {
	case *object.Gateway:
		return gateway.IsOurs(c.Get(object.Ref{Kind: object.KindGatewayClass, Name: o.Spec.GatewayClassName}))
	case *object.ListenerSet:
		of := gateway.ParentsOf(o)
		return len(of) == 1 && of[0].Kind == object.KindGateway && c.isServed(of[0])
	}
	return false
}

// addClasses adds the default GatewayClass, if it is missing, and the statuses of all classes of this controller to a batch.
func (c *gateways) addClasses(b *batch) {
	all, _, _ := c.store.List(object.KindGatewayClass, "", 0)
	for _, class := range of[*object.GatewayClass](all) {
		if gateway.IsOurs(class) {
			c.addStatus(b, object.RefOf(class), gateway.ClassStatus(class))
		}
	}
	if o, _ := c.store.Get(object.RefOf(gateway.Class())); o == nil {
		b.puts = append(b.puts, gateway.Merge(gateway.Class(), gateway.ClassStatus(gateway.Class()), c.now(), nil))
	}
}

// keep records the stored plan of a Gateway, and updates the index of what it depends on.
func (c *gateways) keep(ref object.Ref, p *gateway.Planned, revision uint64) {
	s := c.known[ref]
	for _, used := range s.refs {
		delete(c.users[used], ref)
		if len(c.users[used]) == 0 {
			delete(c.users, used)
		}
	}
	for o := range s.generated {
		if delete(c.of, o.Key()); o.Key() != p.Service {
			delete(c.shown, o.Key())
		}
	}
	delete(c.waiting, ref)
	delete(c.stuck, ref)
	s.refs = p.Refs
	for _, used := range p.Refs {
		if c.users[used] == nil {
			c.users[used] = refs{}
		}
		c.users[used].add(ref)
	}
	if s.failed == "" {
		s.generated, s.made = refs{}, make(map[object.Ref]object.Object, len(p.Generated))
	}
	for _, o := range p.Generated {
		s.generated.add(object.RefOf(o))
		s.made[object.RefOf(o)] = o
	}
	for o := range s.generated {
		if o.Kind == object.KindService {
			if c.of[o.Key()] = ref; slices.ContainsFunc(c.store.ProblemsOf(o), func(q manifest.Problem) bool { return !q.Warning }) {
				c.stuck.add(ref)
			}
		}
	}
	s.routes = refs{}
	for _, o := range p.Statuses {
		if at := object.RefOf(o); slices.Contains(routeKinds, at.Kind) {
			s.routes.add(at)
		}
	}
	delete(c.problems, ref)
	if len(p.Problems) > 0 {
		c.problems[ref] = p.Problems
	}
	if s.revision = max(s.revision, revision, 1); p.Pending {
		c.waiting[ref] = true
	}
	if len(s.refs) == 0 && len(s.generated) == 0 {
		delete(c.known, ref)
	}
	s.failed = ""
}

// Programmed stores the result of the last sync, unless it is already stored. revision is the revision of the store that the dataplane implements.
// planned has the problems of the Services that were planned since the last call. again reports whether sync must be called again.
func (c *gateways) Programmed(revision uint64, planned map[string][]resolve.Problem) (again bool, err error) {
	err = c.storeLate()
	c.applied = revision
	for key, problems := range planned {
		gw, is := c.of[key]
		if now := troubleOf(problems); is && !slices.Equal(now, c.trouble[key]) {
			if c.again.add(gw); len(now) > 0 {
				c.trouble[key] = now
			} else {
				delete(c.trouble, key)
			}
		}
	}
	for gw := range c.waiting {
		again = again || c.known[gw] != nil && c.applied >= c.known[gw].revision
	}
	return again || len(c.again) > 0, err
}

// troubleOf returns those problems of a Service that prevent individual ports from being served: port conflicts, and ports that cannot be relayed.
func troubleOf(problems []resolve.Problem) (all []gateway.Trouble) {
	for _, q := range problems {
		if text, is := strings.CutPrefix(q.Field, "spec.ports["); is && !q.Warning && slices.Contains([]string{resolve.ReasonPortInUse, resolve.ReasonPortConflict, resolve.ReasonNoRelay}, q.Reason) {
			number, _, _ := strings.Cut(text, "]")
			i, _ := strconv.Atoi(number)
			all = append(all, gateway.Trouble{Port: i, Message: q.Message})
		}
	}
	return all
}

// The methods of gateway.Objects.

func (c *gateways) Get(ref object.Ref) object.Object {
	o, _ := c.store.Get(ref)
	if o == nil && ref == object.RefOf(gateway.Class()) {
		return gateway.Class() // it is on its way
	}
	return o
}

// Service returns the Service of a backend, with its EndpointSlices. During a rollout it returns the versions from before the rollout, since the
// generated objects are for all boxes.
func (c *gateways) Service(key string) (*object.Service, []*object.EndpointSlice) {
	svc, list, _ := c.store.Service(key)
	if c.staged {
		svc, list, _ = c.store.Before().Service(key)
	}
	return svc, list
}

func (c *gateways) Children(parent object.Ref) (all []object.Object) {
	for ref := range c.children[parent] {
		all = append(all, c.Get(ref))
	}
	return slices.DeleteFunc(all, func(o object.Object) bool { return o == nil })
}

func (c *gateways) Families() []string { return c.families }

func (c *gateways) Grants(namespace string) []*object.ReferenceGrant {
	all, _, _ := c.store.List(object.KindReferenceGrant, namespace, 0) // the newest revision is always there
	return of[*object.ReferenceGrant](all)
}

func (c *gateways) IsGenerated(ref object.Ref) bool {
	_, owner := c.store.Get(ref)
	return owner == store.Owner{Controller: GatewaysOwner}
}

func (c *gateways) Holder(service string) object.Ref { return c.of[service] }

func (c *gateways) Trouble(key string) []gateway.Trouble {
	all := slices.Clone(c.trouble[key])
	for _, q := range c.store.ProblemsOf(object.ServiceRef(key)) {
		outside := q.Reason == store.ReasonOutside // on an annotation: it is not served; in the spec: it is kept, and served
		if strings.HasPrefix(q.Field, "spec.loadBalancerIP") && !outside || strings.HasPrefix(q.Field, "metadata.") && outside || strings.Contains(q.Field, "load-balancer-ips") || q.Reason == store.ReasonPending {
			all = append(all, gateway.Trouble{Port: -1, Message: q.Message})
		}
	}
	if s := c.known[c.of[key]]; s != nil && s.failed != "" {
		all = append(all, gateway.Trouble{Failed: true, Message: s.failed})
	}
	return all
}

// Problems returns the problems of Gateways, ListenerSets and routes.
func (c *gateways) Problems() (all []resolve.Problem) {
	for _, ref := range slices.SortedFunc(maps.Keys(c.problems), compareRefs) {
		all = append(all, c.problems[ref]...)
	}
	return all
}
