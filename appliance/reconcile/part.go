package reconcile

import (
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
)

// Part reacts to plans and steps of the loop. The loop calls its methods, except Run, from one goroutine; none of them may block. A Part can embed
// NopPart for the methods that it does not need.
type Part interface {
	// Name returns the name of the Part for log messages.
	Name() string
	// Attach passes the function that the Part must call when the results of Problems or the states of the given needs have changed. The Services
	// with these needs are then planned again. changed may be called from any goroutine and does not block.
	Attach(changed func(needs ...resolve.Need))
	// Run performs the background work of the Part until ctx is done. If it returns an error, the appliance exits.
	Run(ctx context.Context) error

	// Adopt passes the content of our tables in the kernel at startup. It is called before the first Planned.
	Adopt(have nft.Ruleset)
	// Planned passes the Services whose plan changed, each with its complete new plan. The first call has all Services. host is nil unless the host
	// changed; services then includes all Services affected by that.
	Planned(host *Host, services []Service)
	// Applying is called before the plan last passed to Planned is committed. restored is set if our rules were missing in the kernel for a while.
	Applying(restored bool)
	// Stepped is called at the end of each step of the loop.
	Stepped(Step)

	// Problems returns the problems to show in the status.
	Problems() []resolve.Problem
}

// Host holds the facts of this host in the forms that plans use.
type Host struct {
	Facts *node.Facts
	Box   nft.Box
	// Resolve holds the facts that package resolve uses.
	Resolve resolve.Facts
	// Loopback holds the loopback addresses on which node ports are served.
	Loopback []netip.Addr
}

// Service is a planned Service, as passed to the Parts.
type Service struct {
	// Key is "namespace/name".
	Key string
	// Ports are the ports to be served. It is empty if the Service was deleted, or none of its ports can be served.
	Ports []nft.ServicePort
	// Needs lists everything that the plan depends on apart from objects and the host.
	Needs []resolve.Need
	resolve.Settings
	resolve.Health
}

// Step is the outcome of one step of the loop.
type Step struct {
	// Facts are the facts of the host; nil until they were read for the first time.
	Facts *node.Facts
	// Applied is set if the kernel holds everything that was passed to Planned.
	Applied bool
}

// NopPart implements all methods of Part except Name. Attach stores its argument for Changed, Run waits until ctx is done, and the others do nothing.
type NopPart struct {
	changed func(needs ...resolve.Need)
}

func (n *NopPart) Attach(changed func(needs ...resolve.Need)) { n.changed = changed }

// Changed calls the function that was passed to Attach, so that the loop plans the Services with these needs again. Before Attach it does nothing.
func (n *NopPart) Changed(needs ...resolve.Need) {
	if n.changed != nil {
		n.changed(needs...)
	}
}

func (*NopPart) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (*NopPart) Adopt(nft.Ruleset)             {}
func (*NopPart) Planned(*Host, []Service)      {}
func (*NopPart) Applying(bool)                 {}
func (*NopPart) Stepped(Step)                  {}
func (*NopPart) Problems() []resolve.Problem   { return nil }

// needs records, for each Service, the resolve.Needs of its plan: the states that the plan depends on besides objects, settings and facts of the
// host, such as those of a relay listener or a source set. When one changes, its Services are planned again.
type needs struct {
	of map[string][]resolve.Need // needs by Service; by is the reverse index
	by map[resolve.NeedKind]map[resolve.Need]map[string]struct{}
	// ended holds the needs that the last Service has lost since the last call of takeEnded.
	ended map[resolve.Need]struct{}
	// portsChanged is set if the needs for ports of the host have changed since the last call of occupied.notify.
	portsChanged bool
	pods         podUsers
}

func newNeeds() needs {
	return needs{of: map[string][]resolve.Need{}, by: map[resolve.NeedKind]map[resolve.Need]map[string]struct{}{}, ended: map[resolve.Need]struct{}{}, pods: newPodUsers()}
}

// set replaces the needs of a Service by those of its new plan.
func (n *needs) set(service string, out *resolve.Output) {
	n.pods.set(service, out)
	before, now := n.of[service], out.Needs
	if slices.Equal(before, now) {
		return // mostly
	}
	for _, need := range before {
		if delete(n.by[need.Kind][need], service); len(n.by[need.Kind][need]) == 0 {
			delete(n.by[need.Kind], need)
			n.ended[need] = struct{}{}
		}
		n.portsChanged = n.portsChanged || need.Kind == resolve.NeedHostPort
	}
	for _, need := range now {
		if n.by[need.Kind] == nil {
			n.by[need.Kind] = map[resolve.Need]map[string]struct{}{}
		}
		if n.by[need.Kind][need] == nil {
			n.by[need.Kind][need] = map[string]struct{}{}
		}
		n.by[need.Kind][need][service] = struct{}{}
		delete(n.ended, need)
		n.portsChanged = n.portsChanged || need.Kind == resolve.NeedHostPort
	}
	if n.of[service] = now; len(now) == 0 {
		delete(n.of, service)
	}
}

// users returns the Services that depend on any of the changed needs. A Service may occur more than once.
func (n *needs) users(changed []resolve.Need) (services []string) {
	for _, need := range changed {
		if need.Kind == resolve.NeedPlan {
			services = append(services, need.Name)
		}
		services = slices.AppendSeq(services, maps.Keys(n.by[need.Kind][need]))
	}
	return services
}

// takeEnded returns the needs that lost their last Service since the previous call.
func (n *needs) takeEnded() []resolve.Need {
	ended := slices.Collect(maps.Keys(n.ended))
	clear(n.ended)
	return ended
}

// secrets returns the needs that depend on the given Secrets, each a "namespace/name".
func secrets(names []string) (needs []resolve.Need) {
	for _, name := range names {
		needs = append(needs, resolve.Need{Kind: resolve.NeedKeyPair, Name: name}, resolve.Need{Kind: resolve.NeedAuthority, Name: name})
	}
	return needs
}

// podUsers records, for each Service, the Pods whose readiness probes its plan depends on. The Service is planned again when such a Pod changes.
type podUsers struct {
	// probed is the set of Services that have a Pod with a readiness probe.
	probed map[string]bool
	// of holds, by Service, the Pods that its EndpointSlices name but no selector finds. by is the reverse index. There may be as many as endpoints,
	// so both hold hashes of the names (podHash). A hash collision only causes a Service to be planned unnecessarily. by is built when a Pod changes
	// for the first time, since on most boxes no Pod ever changes.
	of map[string][]uint32
	by map[uint32][]string
}

var podSeed = maphash.MakeSeed()

// podHash returns a hash of a Pod's "namespace/name". The Pod need not exist.
func podHash(key string) uint32 { return uint32(maphash.String(podSeed, key)) }

func newPodUsers() podUsers {
	return podUsers{probed: map[string]bool{}, of: map[string][]uint32{}}
}

// set records which Pods the plan of a Service depends on.
func (u *podUsers) set(service string, out *resolve.Output) {
	if out.Probed {
		u.probed[service] = true
	} else {
		delete(u.probed, service)
	}
	if u.by != nil {
		for _, pod := range u.of[service] {
			if users := slices.DeleteFunc(u.by[pod], func(s string) bool { return s == service }); len(users) > 0 {
				u.by[pod] = users
			} else {
				delete(u.by, pod)
			}
		}
	}
	delete(u.of, service)
	if len(out.Pods) == 0 {
		return
	}
	namespace, _, _ := strings.Cut(service, "/")
	pods := make([]uint32, len(out.Pods))
	for i, name := range out.Pods {
		pods[i] = podHash(namespace + "/" + name)
	}
	u.of[service] = pods
	if u.by != nil {
		u.note(service)
	}
}

// note adds the Pods of a Service to the reverse index by.
func (u *podUsers) note(service string) {
	for _, pod := range u.of[service] {
		u.by[pod] = append(u.by[pod], service)
	}
}

// affected returns the Services whose plan depends on one of the given Pods, sorted.
func (u *podUsers) affected(objs Objects, pods []string) []string {
	if len(pods) > 0 && u.by == nil {
		u.by = map[uint32][]string{}
		for service := range u.of {
			u.note(service)
		}
	}
	var services []string
	for _, key := range pods {
		pod := objs.Pod(key)
		probes := pod != nil && pod.Probed()
		add := func(service string) {
			if probes || u.probed[service] {
				services = append(services, service)
			}
		}
		for _, service := range u.by[podHash(key)] {
			add(service)
		}
		if pod != nil {
			for _, service := range objs.Selecting(pod.Metadata.Namespace, pod.Metadata.Labels) {
				add(service)
			}
		}
	}
	slices.Sort(services)
	return slices.Compact(services)
}

// Errors of a Foresee.
var (
	// ErrBehind means that the store has changed since Foresee.Revision. The caller should copy the store again.
	ErrBehind = errors.New("the objects have changed meanwhile")
	// ErrUnsettled means that the kernel does not hold the last plan.
	ErrUnsettled = errors.New("not everything that is declared is in the kernel: `svcctl status` has the reason")
	// ErrHeldBack means that the loop currently plans objects other than those in the store, because a trial has ended.
	ErrHeldBack = errors.New("a trial is over, and what was in force before it is in force, until this box gets the outcome of the trial")
)

// Foresee is a request for what the loop would plan for objects that are not stored. Answering it changes nothing.
type Foresee struct {
	// Objects is a copy of the store with the changes applied. Changes lists the changes.
	Objects Objects
	Changes store.ChangeSet
	// Revision is the revision of the loop's store when it was copied.
	Revision uint64
	// All lists the keys of all Services in Objects. It is needed only if Changes.All or Host is set.
	All []string
	// Host converts node.Facts to a changed Host. If nil, the host is unchanged.
	Host func(*node.Facts) Host
}

// Foreseen is the answer to a Foresee. It must not be modified.
type Foreseen struct {
	// Transition is the change of the kernel's tables that would result. Before holds the present ports of the Services that would be planned again.
	Transition nft.Transition
	Printer    nft.Printer
	Before     map[string][]nft.ServicePort
	// Services holds the Services that would be planned again, by key. A Service without ports would no longer be served.
	Services map[string]*Service
	// Problems holds the new problems that these Services would have.
	Problems []wire.Problem
}

// ForeseeAnswer is the answer to a Foresee.
type ForeseeAnswer struct {
	Foreseen
	Err error
}

// Request returns the Request whose answer is sent to done after the next step.
func (ask *Foresee) Request(done chan<- ForeseeAnswer) Request {
	return func(l *Loop) func() {
		return func() {
			f, err := l.foresee(ask)
			done <- ForeseeAnswer{f, err}
		}
	}
}

// foresee plans the Services that ask.Changes affects in a fork of the planner, and undoes the fork afterwards. The cost is proportional to the
// number of these Services.
func (l *Loop) foresee(ask *Foresee) (f Foreseen, err error) {
	missed := l.opts.Store.Changes(ask.Revision)
	switch {
	case l.shown != l.opts.Store:
		return f, ErrHeldBack
	case !l.adopted || l.wait > 0 || l.observed.tampered || !l.applier.certain() || l.planner.orphans != nil:
		return f, ErrUnsettled
	case missed.All || len(missed.Services)+len(missed.Pods)+len(missed.Secrets) > 0 || l.planned < ask.Revision || l.observed.unsynced:
		return f, ErrBehind
	}
	p := l.planner.fork()
	defer p.undo()
	for i, a := range p.answerers {
		if opens, is := a.(Opener); is {
			p.answerers[i] = opens.Foresee(ask.Objects)
		}
	}
	host, box := l.planner.host, (*nft.Box)(nil)
	if ask.Host != nil {
		if host = ask.Host(l.observed.facts); !l.planner.sameHost(host) {
			box = &host.Box
		}
	}
	p.setHost(host)
	changed := slices.Concat(ask.Changes.Services, l.planner.needs.pods.affected(ask.Objects, ask.Changes.Pods), l.planner.needs.users(secrets(ask.Changes.Secrets)))
	if box != nil || ask.Changes.All {
		changed = slices.Concat(changed, ask.All, l.planner.known())
	}
	for _, key := range changed {
		delete(p.quarantine.left, key)
	}
	f.Transition, f.Before = l.planner.compiler.Foresee(box, p.resolve(ask.Objects, changed))
	f.Services, f.Printer = p.unsent.services, l.planner.host.Box.Printer()
	for _, key := range slices.Sorted(maps.Keys(p.unsent.services)) {
		for _, q := range p.problems[key] {
			if slices.Contains(l.planner.problems[key], q) {
				continue
			}
			q.Warning = q.Warning || q.Reason == resolve.ReasonNoEndpoints // they may come from elsewhere
			f.Problems = append(f.Problems, wireProblem(q))
		}
	}
	return f, nil
}

// fork returns a planner for one simulated plan of some Services, which decides as p would. It shares the claims and the plans of p, so p must not be
// used until undo is called. It also shares the Answerers and the compiler, but only reads the latter.
func (p *planner) fork() *planner {
	f := newPlanner()
	f.claims, f.compiler, f.tuners, f.progress, f.inUse = p.claims.Try(), p.compiler, p.tuners, p.progress, p.inUse
	f.answerers = slices.Clone(p.answerers)
	f.quarantine.left, f.quarantine.now = maps.Clone(p.quarantine.left), p.quarantine.now
	if o := p.occupied; o != nil {
		f.occupied = &occupied{look: o.look, owner: o.owner, log: o.log, nodePorts: o.nodePorts}
		f.occupied.reset()
	}
	return f
}

// undo reverts the changes that a fork has made to the shared claims and plans.
func (p *planner) undo() {
	p.claims.Undo()
	for key, before := range p.quarantine.applied {
		if p.quarantine.now[key] = before; before == nil {
			delete(p.quarantine.now, key)
		}
	}
}
