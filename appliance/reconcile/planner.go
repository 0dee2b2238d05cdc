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

// Objects are the objects that the planner reads from the store. They are never changed afterwards.
type Objects interface {
	Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints)
	// Since is the age of a Service.
	Since(key string) store.Since
	// Pod is nil when there is none.
	Pod(key string) *object.Pod
	// Secret is nil when there is none.
	Secret(key string) *object.Secret
	// Selecting are the Services whose selector finds Pods with these labels.
	Selecting(namespace string, labels map[string]string) []string
}

// aheadObjects are Objects in which the EndpointSlices of some Services are newer than those that are stored (Endpoints.Ahead).
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

// objects returns the objects that the loop plans.
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
	occupied *occupied // nil: sockets of other programs are not examined
	orphans  *Orphans  // nil: the kernel serves nothing that no object declares
	needs    needs
	adopting adopting
	declared declared
	// inUse is set when the plan serves clients: only then is a Service without endpoints a problem.
	inUse bool
	answering
	// found is what the kernel had before the first plan, during that plan; else it is nil.
	found *found
	// progress is called for every Service, so that a long plan does not look stuck to the Watchdog.
	progress func()

	unsent     unsent
	quarantine quarantine
}

// answering has the Parts that plans depend on.
type answering struct {
	answerers []Answerer
	tuners    []Tuner
}

// found is a ruleset of the kernel. served returns its Service ports by frontend, which the first call computes.
type found struct {
	nft.Ruleset
	served func() map[resolve.Frontend]*nft.ServicePort
}

// unsent has the Services whose plan changed since the Parts were notified, and whether the host changed.
type unsent struct {
	services map[string]*Service
	host     bool
}

// tally has the problems of Services, and the size of all, for the status.
type tally struct {
	problems map[string][]resolve.Problem // by Service
	before   map[string][]resolve.Problem // by Service planned since the last report: its problems in that report
	total    size
}

// size has the numbers of Services with ports, and of their ports, frontends and endpoints.
type size struct{ services, ports, frontends, endpoints int }

// add adds the ports of a Service (times 1) or subtracts them (times -1).
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

// adopt plans all Services, and returns the transition from the ruleset that is in the kernel.
func (p *planner) adopt(have nft.Ruleset, host Host, objs Objects, all []string) nft.Transition {
	p.setHost(host)
	p.found = &found{have, sync.OnceValue(func() map[resolve.Frontend]*nft.ServicePort { return ServedBefore(have) })}
	defer func() { p.found = nil }()
	if p.orphans != nil {
		p.orphans.adopt(have)
	}
	return p.compiler.Adopt(have, nft.State{Box: host.Box, Services: p.resolve(objs, all)})
}

// setHost sets the host for the next plans. It returns the Services that may gain or lose a frontend or an endpoint by that.
func (p *planner) setHost(host Host) (affected []string) {
	p.host, p.unsent.host = host, true
	return p.claims.PlaceAt(host.Box.NodePortAddresses)
}

// sameHost reports whether plans for a host would equal those for the present one. Changes of most routes do not matter.
func (p *planner) sameHost(host Host) bool {
	return reflect.DeepEqual(p.host.Box, host.Box) && reflect.DeepEqual(p.host.Resolve, host.Resolve) && slices.Equal(p.host.Loopback, host.Loopback)
}

// ServedBefore returns the Service ports of a ruleset by frontend. Ranges of ports are left out, as the first port of one may also be a
// frontend of its own.
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

// update plans the Services that changed, and returns the transition.
func (p *planner) update(objs Objects, changed []string) nft.Transition {
	p.retry(changed)
	return p.compiler.Update(nil, p.resolve(objs, changed))
}

// relocate plans for another host: the Services that depend on its difference to the present one, and changed, those that changed
// themselves. It returns the transition.
func (p *planner) relocate(host Host, objs Objects, changed []string) nft.Transition {
	p.retry(changed)
	return p.compiler.Update(&host.Box, p.resolve(objs, append(p.setHost(host), changed...)))
}

// retry makes the next plan try Services again that the kernel refused.
func (p *planner) retry(services []string) {
	for _, key := range services {
		delete(p.quarantine.left, key)
	}
}

// planned is the plan of one Service.
type planned struct {
	resolve.Output
	since store.Since
	// there is set when the Service exists. strays are the slices that name a Service which does not exist.
	there  bool
	strays []*object.EndpointSlice
}

// resolve plans the Services that changed and those that gain or lose a frontend by that. It returns their ports by key; a Service that is
// gone has none.
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

// takeUnsent returns the Services whose plan changed since the last call, by key, and the host if it did.
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

// minShare is the number of Services that a CPU takes at a time (parallel.Do): fewer are planned on one CPU.
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

// maxRounds bounds how often a Service is resolved in one plan. Two should do: its needs do not depend on the states of its needs.
const maxRounds = 3

// meet obtains the states of the needs of a Service. It reports whether the Service must be resolved again with them.
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

// tuned reports whether the weights of a port's endpoints are set at run time, by open connections or a slow start.
func tuned(p *nft.ServicePort, slowStart time.Duration) bool {
	return (slowStart > 0 || p.Balance == nft.LeastConnection && !p.Relayed()) && p.Balance != nft.DestinationHash &&
		len(p.Pools[nft.PoolCluster])+len(p.Pools[nft.PoolLocal]) > 0 && !slices.ContainsFunc(p.Frontends, func(fe nft.Frontend) bool { return fe.IsRange() })
}

// record sets the problems of a Service.
func (t *tally) record(key string, problems []resolve.Problem) {
	if _, planned := t.before[key]; !planned {
		t.before[key] = t.problems[key]
	}
	if t.problems[key] = problems; len(problems) == 0 {
		delete(t.problems, key)
	}
}

// replanned returns the problems of the Services that were planned since the last report, by Service.
func (t *tally) replanned() map[string][]resolve.Problem {
	all := make(map[string][]resolve.Problem, len(t.before))
	for key := range t.before {
		all[key] = t.problems[key]
	}
	return all
}

// known returns the keys of the Services that have ports, checks or problems.
func (p *planner) known() []string {
	return slices.AppendSeq(slices.Collect(maps.Keys(p.quarantine.now)), maps.Keys(p.problems))
}

// allProblems returns the problems of all Services, sorted by Service.
func (p *planner) allProblems() []resolve.Problem {
	var all []resolve.Problem
	for _, key := range slices.Sorted(maps.Keys(p.problems)) {
		all = append(all, p.problems[key]...)
	}
	all = append(append(all, p.late()...), p.adopting.problems()...)
	slices.SortStableFunc(all, func(a, b resolve.Problem) int { return cmp.Compare(a.Object.String(), b.Object.String()) })
	return all
}

// Plan computes the ruleset of all Services for a host, and their problems, from nothing. inUse is set when the ruleset serves clients:
// then a Service without endpoints has a problem.
func Plan(host Host, objs Objects, services []string, inUse bool, answerers ...Answerer) (nft.Ruleset, []resolve.Problem) {
	p := newPlanner()
	p.inUse, p.answerers = inUse, answerers
	p.adopt(nil, host, objs, services)
	return p.compiler.Ruleset(), p.allProblems()
}

// plan plans the changes of the store up to its newest revision, and those of the other inputs. It returns the transition and that
// revision. restored reports that our rules were missing in the kernel for a while.
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

// adopt makes the first plan: of all Services, as a transition from the ruleset in the kernel. Its results are those of plan.
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

// endNeeds closes what was opened for needs that no Service has any more. It is called once the kernel has the plan.
func (l *Loop) endNeeds() {
	for _, n := range l.planner.needs.takeEnded() {
		for _, a := range l.planner.answerers {
			if opener, is := a.(Opener); is {
				opener.Close(n)
			}
		}
	}
}
