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

// Part reacts to plans and steps of the loop. The loop calls its methods, except Run, one at a time and from one goroutine; none of them
// may block. Embed NopPart for the methods that a Part does not need.
type Part interface {
	// Name names the Part in the log.
	Name() string
	// Attach takes the function to call, from any goroutine, when the result of Problems or the states of needs have
	// changed. The Services with these needs are planned again. changed does not block.
	Attach(changed func(needs ...resolve.Need))
	// Run works until ctx is done. An error ends the appliance.
	Run(ctx context.Context) error

	// Adopt takes the tables that the kernel held at the start, before the first Planned.
	Adopt(have nft.Ruleset)
	// Planned takes the Services whose plan changed, each with its whole new plan; the first call has all
	// Services. host is nil unless the host changed; services then includes all that depend on the change.
	Planned(host *Host, services []Service)
	// Applying announces a transaction with what was Planned. restored reports that rules of ours
	// were missing in the kernel for a while.
	Applying(restored bool)
	// Stepped ends each step of the loop.
	Stepped(Step)

	// Problems are shown in the status.
	Problems() []resolve.Problem
}

// Host has the facts of this host in the forms that a plan uses.
type Host struct {
	Facts *node.Facts
	Box   nft.Box
	// Resolve has the facts that Services are resolved against.
	Resolve resolve.Facts
	// Loopback are the loopback addresses that node ports answer on.
	Loopback []netip.Addr
}

// Service is a planned Service: what a Part gets.
type Service struct {
	// Key is "namespace/name".
	Key string
	// Ports are served; none: the Service is gone, or has nothing that can be served.
	Ports []nft.ServicePort
	// Needs has all that the plan depends on besides objects and the host.
	Needs []resolve.Need
	resolve.Settings
	resolve.Health
}

// Step is the outcome of one step of the loop.
type Step struct {
	// Facts are nil until they were read for the first time.
	Facts *node.Facts
	// Applied reports that the kernel holds all that was Planned: everything was read, and what could be stored is in force.
	Applied bool
}

// NopPart implements Part without doing anything.
type NopPart struct {
	changed func(needs ...resolve.Need)
}

func (n *NopPart) Attach(changed func(needs ...resolve.Need)) { n.changed = changed }

// Changed calls the function that Attach was given: the loop plans the Services with these needs again. Before Attach it does nothing.
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

// needs records which Services depend on which needs. They are planned again when the state of a need changes.
type needs struct {
	of map[string][]resolve.Need // by Service
	by map[resolve.NeedKind]map[resolve.Need]map[string]struct{}
	// ended has the needs that no Service has any more, since the last call of takeEnded.
	ended map[resolve.Need]struct{}
	// portsChanged is set when other ports of the host are needed than at the last call of occupied.notify.
	portsChanged bool
	pods         podUsers
}

func newNeeds() needs {
	return needs{of: map[string][]resolve.Need{}, by: map[resolve.NeedKind]map[resolve.Need]map[string]struct{}{}, ended: map[resolve.Need]struct{}{}, pods: newPodUsers()}
}

// set replaces the needs of a Service.
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

// users returns the Services that depend on one of the changed needs, some of them repeatedly.
func (n *needs) users(changed []resolve.Need) (services []string) {
	for _, need := range changed {
		if need.Kind == resolve.NeedPlan {
			services = append(services, need.Name)
		}
		services = slices.AppendSeq(services, maps.Keys(n.by[need.Kind][need]))
	}
	return services
}

// takeEnded returns the needs that no Service has any more since the last call, each once.
func (n *needs) takeEnded() []resolve.Need {
	ended := slices.Collect(maps.Keys(n.ended))
	clear(n.ended)
	return ended
}

// secrets returns the needs that the Secrets of these names, "namespace/name", are able to meet.
func secrets(names []string) (needs []resolve.Need) {
	for _, name := range names {
		needs = append(needs, resolve.Need{Kind: resolve.NeedKeyPair, Name: name}, resolve.Need{Kind: resolve.NeedAuthority, Name: name})
	}
	return needs
}

// podUsers records which Services depend on the readiness probe of a Pod. They are planned again when the Pod changes.
type podUsers struct {
	// probed are the Services that have a Pod with a readiness probe.
	probed map[string]bool
	// of has, by Service, the Pods that an EndpointSlice names and no selector finds; by is the reverse index. There may be as
	// many as endpoints, so both store hashes (podHash): a collision only plans a Service too often. by is built when a Pod
	// changes for the first time, since on most boxes none does.
	of map[string][]uint32
	by map[uint32][]string
}

var podSeed = maphash.MakeSeed()

// podHash returns a hash of the "namespace/name" of a Pod, which need not exist.
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

// note adds the Pods of a Service to the index by.
func (u *podUsers) note(service string) {
	for _, pod := range u.of[service] {
		u.by[pod] = append(u.by[pod], service)
	}
}

// affected returns the Services that depend on one of these Pods.
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

// Errors of Foresee.
var (
	// ErrBehind means that the store has changed since Foresee.Revision. The caller should copy it again.
	ErrBehind = errors.New("the objects have changed meanwhile")
	// ErrUnsettled means that the kernel does not hold the last plan.
	ErrUnsettled = errors.New("not everything that is declared is in the kernel: `svcctl status` has the reason")
	// ErrHeldBack means that the loop plans other objects than those of the store.
	ErrHeldBack = errors.New("a trial is over, and what was in force before it is in force, until this box gets the outcome of the trial")
)

// Foresee asks what the loop would plan for objects that are not stored. It changes nothing.
type Foresee struct {
	// Objects has the objects after the change: a changed copy of the store. Changes has the
	// changes.
	Objects Objects
	Changes store.ChangeSet
	// Revision is the revision of the loop's store at the time of the copy.
	Revision uint64
	// All has the keys of all Services in Objects. It is needed if Changes.All or Host is set.
	All []string
	// Host converts the facts of the host to the form that plans use; nil: the host is unchanged.
	Host func(*node.Facts) Host
}

// Foreseen is the answer to a Foresee. It may not be changed.
type Foreseen struct {
	// Transition would be made in the kernel. Before has the present ports of the Services that would be planned again.
	Transition nft.Transition
	Printer    nft.Printer
	Before     map[string][]nft.ServicePort
	// Services has the Services that would be planned again, by key; one without ports would be
	// gone.
	Services map[string]*Service
	// Problems has the problems that these Services would have and do not have now.
	Problems []wire.Problem
}

// ForeseeAsk is a Foresee that the loop answers between two steps.
type ForeseeAsk struct {
	Foresee
	Done chan<- ForeseeAnswer
}

// ForeseeAnswer is the answer to a ForeseeAsk.
type ForeseeAnswer struct {
	Foreseen
	Err error
}

// answer computes the answer and sends it to Done. Without Done it does nothing.
func (ask *ForeseeAsk) answer(l *Loop) {
	if ask.Done != nil {
		f, err := l.foresee(&ask.Foresee)
		ask.Done <- ForeseeAnswer{f, err}
	}
}

// foresee plans the Services that ask changes in a fork of the planner, and then undoes the fork. The cost is proportional to the number
// of these Services.
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

// fork returns a planner that decides as p does, for one plan of some Services. It shares the claims and the plans of p: p must not be used
// until undo. It also shares the Answerers, and the compiler, which it only reads.
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

// undo takes back what a fork has planned.
func (p *planner) undo() {
	p.claims.Undo()
	for key, before := range p.quarantine.applied {
		if p.quarantine.now[key] = before; before == nil {
			delete(p.quarantine.now, key)
		}
	}
}
