package reconcile

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
)

// Objects is the set of objects that the planner reads from the store. It is immutable.
type Objects interface {
	Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints)
	// Mentions reports whether a Service or one of its EndpointSlices may have one of the addresses.
	Mentions(key string, addrs map[netip.Addr]bool) bool
	// Since returns the age of a Service.
	Since(key string) store.Since
	// Pod returns the Pod with the given key, nil if there is none.
	Pod(key string) *object.Pod
	// Secret returns the Secret with the given key, nil if there is none.
	Secret(key string) *object.Secret
	// Selecting returns the keys of the Services in the namespace whose selector matches the labels.
	Selecting(namespace string, labels map[string]string) []string
}

// aheadObjects overrides the EndpointSlices of some Services by newer ones that are not stored yet (Endpoints.Ahead).
type aheadObjects struct {
	Objects
	slices map[string][]*object.EndpointSlice
}

// Service implements Objects.
func (o aheadObjects) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	svc, slices, endpoints := o.Objects.Service(key)
	if ahead, is := o.slices[key]; is {
		slices = ahead
	}
	return svc, slices, endpoints
}

// objects returns the objects that the loop plans: those of the store in force, with the EndpointSlices of Endpoints.Ahead.
func (l *Loop) objects() aheadObjects {
	return aheadObjects{l.shown.InForce(), l.opts.Endpoints.Ahead()}
}

// planner computes the ruleset from objects and the facts of the host. The cost of a change is proportional to the number of Services that
// it affects.
type planner struct {
	host     Host
	claims   resolve.Claims
	compiler *nft.Compiler
	tally
	occupied *occupied // nil if sockets of other programs are not examined
	orphans  *Orphans  // nil if the kernel serves nothing but declared frontends
	needs    needs
	adopting adopting
	declared declared
	// inUse is set if the plan serves clients. Only then is a missing endpoint or frontend of a Service reported as a problem.
	inUse bool
	answering
	// found is the ruleset that the kernel had before the first plan. It is set only during that plan.
	found *found
	// progress is called for every planned Service, so that the Watchdog does not take a long plan for a stuck loop.
	progress func()

	unsent     unsent
	quarantine quarantine
}

// answering holds the Parts that plans depend on.
type answering struct {
	answerers []Answerer
	tuners    []Tuner
}

// found is a ruleset read from the kernel. served returns its Service ports by frontend; they are computed at the first call.
type found struct {
	nft.Ruleset
	served func() map[resolve.Frontend]*nft.ServicePort
}

// unsent holds the Services whose plan changed since the Parts were last notified. host is set if the host changed too.
type unsent struct {
	services map[string]*Service
	host     bool
}

// tally holds the problems of Services, and the total size of all plans, for the status.
type tally struct {
	problems map[string][]resolve.Problem // problems by Service
	before   map[string][]resolve.Problem // problems in the last report, by Service planned since then
	total    size
}

// size holds the numbers of Services with ports and of their ports, frontends and endpoints.
type size struct{ services, ports, frontends, endpoints int }

// add adds the ports of a Service to s if times is 1, and subtracts them if times is -1.
func (s *size) add(ports []nft.ServicePort, times int) {
	s.services += times * min(len(ports), 1)
	for i := range ports {
		s.ports, s.frontends, s.endpoints = s.ports+times, s.frontends+times*len(ports[i].Frontends), s.endpoints+times*len(ports[i].Pools[nft.PoolCluster])
	}
}

func newPlanner() *planner {
	return &planner{
		progress:   func() {},
		compiler:   nft.NewCompiler(),
		tally:      tally{problems: map[string][]resolve.Problem{}, before: map[string][]resolve.Problem{}},
		unsent:     unsent{services: map[string]*Service{}},
		quarantine: quarantine{now: map[string]*Service{}, applied: map[string]*Service{}, left: map[string]rejected{}},
		needs:      newNeeds(),
		declared:   declared{unchecked: map[string]bool{}, strays: map[string][]string{}},
	}
}

// adopt plans all Services for the first time. have is the ruleset that the kernel holds; adopt returns the transition from it to the plan.
func (p *planner) adopt(have nft.Ruleset, host Host, objs Objects, all []string) nft.Transition {
	p.setHost(host)
	p.found = &found{have, sync.OnceValue(func() map[resolve.Frontend]*nft.ServicePort { return ServedBefore(have) })}
	defer func() { p.found = nil }()
	if p.orphans != nil {
		p.orphans.adopt(have)
	}
	return p.compiler.Adopt(have, nft.State{Box: host.Box, Services: p.resolve(objs, all)})
}

// setHost sets the host for the next plans. It returns the keys of the Services that may gain or lose a frontend or an endpoint because of the
// change.
func (p *planner) setHost(host Host) (affected []string) {
	p.host, p.unsent.host = host, true
	return p.claims.PlaceAt(host.Box.NodePortAddresses)
}

// sameHost reports whether plans for a host would equal plans for the present host. Facts that no plan uses, such as most routes, are ignored.
func (p *planner) sameHost(host Host) bool {
	return reflect.DeepEqual(p.host.Box, host.Box) && reflect.DeepEqual(p.host.Resolve, host.Resolve) && slices.Equal(p.host.Loopback, host.Loopback)
}

// ServedBefore returns the Service ports in a ruleset by frontend. Port ranges are left out, as the first port of a range may also be a separate
// frontend.
func ServedBefore(have nft.Ruleset) map[resolve.Frontend]*nft.ServicePort {
	served := map[resolve.Frontend]*nft.ServicePort{}
	ports := nft.Recover(have, &nft.Box{})
	for i := range ports {
		p := &ports[i]
		for j := range p.Frontends {
			if fe := &p.Frontends[j]; !fe.IsRange() {
				served[resolve.Frontend{Family: p.Family, Protocol: p.Protocol, At: netip.AddrPortFrom(fe.Addr, fe.Port)}] = p
			}
		}
	}
	return served
}

// update plans the Services whose objects or needs changed, and returns the transition from the previous plan.
func (p *planner) update(objs Objects, changed []string) nft.Transition {
	p.retry(changed)
	return p.compiler.Update(nil, p.resolve(objs, changed))
}

// relocate plans for a changed host. It plans the given changed Services, and the Services affected by the change of the host. It returns the
// transition from the previous plan.
func (p *planner) relocate(host Host, objs Objects, changed []string) nft.Transition {
	p.retry(changed)
	return p.compiler.Update(&host.Box, p.resolve(objs, append(p.setHost(host), changed...)))
}

// retry makes the next plan include the present versions of Services that the kernel had refused.
func (p *planner) retry(services []string) {
	for _, key := range services {
		delete(p.quarantine.left, key)
	}
}

// planned is the result of planning one Service, before claims are granted.
type planned struct {
	resolve.Output
	since store.Since
	// there is set if the Service exists. If not, strays holds the EndpointSlices that name it.
	there  bool
	strays []*object.EndpointSlice
}

// resolve plans the changed Services, and the Services that gain or lose a frontend as a result. It returns the ports of all these Services by key. A
// deleted Service has no ports.
func (p *planner) resolve(objs Objects, changed []string) map[string][]nft.ServicePort {
	changed = slices.Compact(slices.Sorted(slices.Values(changed)))
	p.occupied.begin()
	outputs := make([]planned, len(changed))
	parallel.Do(len(changed), minShare, func(i int) {
		p.progress()
		outputs[i] = p.resolveOne(objs, changed[i])
	})
	claims := make([]resolve.Claim, len(changed))
	for i, key := range changed {
		out := &outputs[i]
		claims[i] = resolve.Claim{Service: key, Ports: out.Ports, Unready: out.Unready, HealthPort: out.LocalEndpoints.PortOf(), Since: out.since}
	}
	var inForce func(f nft.Family, proto nft.Protocol, at netip.AddrPort) bool
	if p.found != nil {
		inForce = p.found.Serves
	}
	for _, key := range p.claims.Set(inForce, claims...) {
		changed = append(changed, key)
		outputs = append(outputs, p.resolveOne(objs, key))
	}
	granted := make([][]nft.ServicePort, len(outputs))
	conflicts := make([][]resolve.Problem, len(outputs))
	parallel.Do(len(outputs), minShare, func(i int) {
		p.progress()
		ref := object.ServiceRef(changed[i])
		granted[i], conflicts[i] = p.claims.Grant(ref, outputs[i].Ports)
		conflicts[i] = append(conflicts[i], p.claims.HealthPort(ref, outputs[i].LocalEndpoints.PortOf())...)
		p.claims.NameHolders(changed[i], &outputs[i].Output)
	})
	ports := make(map[string][]nft.ServicePort, len(outputs))
	for i, key := range changed {
		out := &outputs[i]
		ports[key] = granted[i]
		svc := &Service{Key: key, Ports: granted[i], Needs: out.Needs, Settings: out.Settings, Health: out.Health}
		p.unsent.services[key] = svc
		problems := append(out.Problems, conflicts[i]...)
		if p.inUse {
			problems = slices.Concat(problems, out.Unserved, resolve.Bereft(object.ServiceRef(key), out.Ports, granted[i]))
		}
		before := p.quarantine.portsOf(key)
		p.occupied.record(before, granted[i])
		p.quarantine.granted(svc)
		p.needs.set(key, &out.Output)
		p.adopting.set(key, granted[i])
		p.record(key, problems)
		p.total.add(before, -1)
		others := p.total.endpoints
		p.total.add(granted[i], 1)
		p.declared.set(key, out.there, p.total.endpoints > others && len(out.Checked) == 0, out.strays)
	}
	p.occupied.notify(&p.needs)
	if p.orphans != nil {
		for key, has := range ports {
			p.orphans.claimFrontends(key, has)
		}
		for _, svc := range p.orphans.take() {
			ports[svc.Key], p.unsent.services[svc.Key] = svc.Ports, &svc
		}
	}
	return ports
}

// takeUnsent returns the Services whose plan changed since the last call, sorted by key. host is the present host if it changed since the last call,
// and nil otherwise.
func (p *planner) takeUnsent() (host *Host, services []Service) {
	if p.unsent.host {
		host = &p.host
	}
	services = make([]Service, 0, len(p.unsent.services))
	for _, key := range slices.Sorted(maps.Keys(p.unsent.services)) {
		services = append(services, *p.unsent.services[key])
	}
	p.unsent = unsent{services: map[string]*Service{}}
	return host, services
}

// minShare is the minimum number of Services that are planned on one CPU (parallel.Do). Fewer Services are not distributed over several CPUs.
const minShare = 256

func (p *planner) resolveOne(objs Objects, key string) planned {
	var out planned
	svc, slices, _ := objs.Service(key)
	out.since = objs.Since(key)
	if left, is := p.quarantine.left[key]; is {
		out.Ports, out.Needs, out.Settings = left.Ports, left.Needs, left.Settings
		out.Problems = []resolve.Problem{left.problem(object.ServiceRef(key))}
		out.there = svc != nil
		return out
	}
	if svc == nil {
		out.strays = slices
		return out
	}
	out.there = true
	in := resolve.Input{Service: svc, Slices: slices, Pods: objs}
	var asked resolve.Demand
	if last := p.quarantine.now[key]; last != nil {
		in.Previous = resolve.Previous{Ports: last.Ports, Checked: last.Checked}
		for i := range last.Checked {
			asked.Targets = append(asked.Targets, &last.Checked[i].Target)
		}
	}
	p.meet(key, &asked, &in.Observed) // mostly a plan needs what the previous one did
	for range maxRounds {
		out.Output = resolve.Service(in, &p.host.Resolve)
		if !p.meet(key, &out.Demand, &in.Observed) {
			break
		}
	}
	var served func() map[resolve.Frontend]*nft.ServicePort
	if p.found != nil {
		served = p.found.served
	}
	for i := range out.Ports {
		if port := &out.Ports[i]; tuned(port, out.SlowStart) {
			for _, t := range p.tuners {
				t.Tune(port, out.SlowStart, served)
			}
		}
	}
	return out
}

// maxRounds bounds how often a Service is resolved in one plan. Two rounds normally suffice, since the needs that the first round finds do not change
// when their states are available.
const maxRounds = 3

// meet obtains the states of the needs of a Service, and adds them to o. It reports whether the Service must be resolved again because a state in o
// changed.
func (p *planner) meet(key string, d *resolve.Demand, o *resolve.Observed) (again bool) {
	for _, a := range p.answerers {
		a.Meet(key, d, o)
	}
	for _, n := range d.Needs {
		if n.Kind == resolve.NeedHostPort && p.occupied != nil {
			o.Answer(n, resolve.State{Wrong: p.taken(n.Family, n.Protocol, n.At)})
		}
	}
	if d.Adopted && o.Adopted == nil && p.found != nil {
		o.Adopt(p.found.served())
	}
	return o.Differs()
}

// tuned reports whether the Tuners set the weights of a port's endpoints at run time. They do if the kernel balances the port by open connections, or
// if the Service has a slow start. They do not for ports without endpoints, port ranges, and ports balanced by destination hash.
func tuned(p *nft.ServicePort, slowStart time.Duration) bool {
	return (slowStart > 0 || p.Balance == nft.LeastConnection && !p.Relayed()) && p.Balance != nft.DestinationHash &&
		len(p.Pools[nft.PoolCluster])+len(p.Pools[nft.PoolLocal]) > 0 && !slices.ContainsFunc(p.Frontends, func(fe nft.Frontend) bool { return fe.IsRange() })
}

// record replaces the problems of a Service.
func (t *tally) record(key string, problems []resolve.Problem) {
	if _, planned := t.before[key]; !planned {
		t.before[key] = t.problems[key]
	}
	if t.problems[key] = problems; len(problems) == 0 {
		delete(t.problems, key)
	}
}

// replanned returns the present problems of the Services that were planned since the last report, by Service.
func (t *tally) replanned() map[string][]resolve.Problem {
	all := make(map[string][]resolve.Problem, len(t.before))
	for key := range t.before {
		all[key] = t.problems[key]
	}
	return all
}

// known returns the keys of the planned Services that have ports, health checks or problems. A key may occur twice.
func (p *planner) known() []string {
	return slices.AppendSeq(slices.Collect(maps.Keys(p.quarantine.now)), maps.Keys(p.problems))
}

// allProblems returns the problems of all Services, sorted by object.
func (p *planner) allProblems() []resolve.Problem {
	var all []resolve.Problem
	for _, key := range slices.Sorted(maps.Keys(p.problems)) {
		all = append(all, p.problems[key]...)
	}
	all = append(append(all, p.late()...), p.adopting.problems()...)
	slices.SortStableFunc(all, func(a, b resolve.Problem) int { return cmp.Compare(a.Object.String(), b.Object.String()) })
	return all
}

// Plan computes the ruleset of all Services for a host, without a previous plan, and their problems. If inUse is set, the ruleset is to serve
// clients, and a Service without endpoints has a problem.
func Plan(host Host, objs Objects, services []string, inUse bool, answerers ...Answerer) (nft.Ruleset, []resolve.Problem) {
	p := newPlanner()
	p.inUse, p.answerers = inUse, answerers
	p.adopt(nil, host, objs, services)
	return p.compiler.Ruleset(), p.allProblems()
}

// plan plans all changes of the store and of the other inputs since the last plan. It returns the transition from the last plan, and the store
// revision that the new plan includes. restored is true if our rules were missing in the kernel for a while.
func (l *Loop) plan() (tr nft.Transition, restored bool, revision uint64, err error) {
	if !l.adopted {
		return l.adopt()
	}
	tampered := l.observed.tampered && l.tamper.mayHeal(l.opts.Clock())
	changes, others := l.opts.Store.Changes(l.planned), l.selectView()
	objs := l.objects()
	changed := slices.Concat(changes.Services, l.planner.needs.pods.affected(objs, changes.Pods), l.planner.needs.users(append(secrets(changes.Secrets), l.takeChanged()...)), l.planner.quarantine.due(l.opts.Clock()), slices.Collect(maps.Keys(objs.slices)))
	if !l.applier.settle.IsZero() && !l.opts.Clock().Before(l.applier.settle) && l.applier.certain() {
		l.planner.compiler.Settle()
		l.applier.settle = time.Time{}
	}
	host, relocated := l.planner.host, false
	if l.observed.moved {
		host = l.opts.Host(l.observed.facts)
		relocated = !l.planner.sameHost(host)
	}
	switch {
	case changes.All, others:
		changed = append(changed, l.allServices()...)
	case relocated:
		changed = append(changed, l.planner.affectedBy(&host, objs, l.allServices())...)
	}
	if relocated {
		tr = l.planner.relocate(host, objs, changed)
	} else {
		tr = l.planner.update(objs, changed)
	}
	l.observed.moved, l.planned = false, changes.Revision
	if tampered {
		have, err := l.applier.read()
		if err != nil {
			return tr, false, 0, err
		}
		forget := tr.Forget
		tr = l.planner.compiler.From(have)
		tr.Forget = forget
		l.observed.tampered = false
	}
	return tr, tampered, changes.Revision, nil
}

// adopt makes the first plan, of all Services, and returns the transition from the ruleset in the kernel. The other results are as in Loop.plan;
// restored is true if the transition is not empty.
func (l *Loop) adopt() (tr nft.Transition, restored bool, revision uint64, err error) {
	changes := l.opts.Store.Changes(0)
	l.selectView()
	if l.observed.tampered {
		l.applier.early = nil // it may be from before
	}
	have, err := l.applier.read()
	if err != nil {
		return tr, false, 0, err
	}
	for _, p := range l.opts.Parts {
		p.Adopt(have)
	}
	tr = l.planner.adopt(have, l.opts.Host(l.observed.facts), l.objects(), slices.Concat(l.allServices(), l.opts.Store.ServiceKeys()))
	l.adopted, l.observed.moved, l.observed.tampered, l.planned = true, false, false, changes.Revision
	// When rules were missing, it is unknown for how long.
	return tr, !tr.Empty(), changes.Revision, nil
}

// endNeeds closes what was opened for needs that no Service has any more. It is called once the kernel holds the plan.
func (l *Loop) endNeeds() {
	for _, n := range l.planner.needs.takeEnded() {
		for _, a := range l.planner.answerers {
			if opener, is := a.(Opener); is {
				opener.Close(n)
			}
		}
	}
}
