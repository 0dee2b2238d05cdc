package appliance

import (
	"cmp"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// objects is what the planner reads of the store. What it returns is never changed
// afterwards.
type objects interface {
	Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints)
}

// planner turns objects and the facts of the box into the ruleset they ask for. It
// decides and does nothing. Its work for a change is proportional to the Services
// that the change touches.
type planner struct {
	facts    resolve.Facts
	box      nft.Box
	claims   resolve.Claims
	compiler *nft.Compiler
	flows    *conntrack.Ledger
	problems map[string][]resolve.Problem // by Service
	sizes    map[string]size              // by Service
	total    size
	occupied *occupied // nil: nobody else listens on this host
	// served, when not nil, hears what every Service came to.
	served func(key string, health *resolve.Health, ports []nft.ServicePort)
	// progress is called for every Service: planning many takes long on a busy machine.
	progress func()

	// What the kernel refuses is found with these, see quarantine.go.
	grants  *grants            // what every Service has in the compiler
	pending map[string]grant   // what those had that changed since all was in the kernel
	left    map[string]leftOut // those that the kernel refuses
}

// grant is what a Service has of what it asks for.
type grant struct {
	ports []nft.ServicePort
	drain conntrack.Drain
}

// size counts what is served.
type size struct{ ports, frontends, endpoints int }

func (s size) plus(o size, sign int) size {
	return size{s.ports + sign*o.ports, s.frontends + sign*o.frontends, s.endpoints + sign*o.endpoints}
}

func newPlanner() *planner {
	return &planner{
		progress: func() {},
		compiler: nft.NewCompiler(),
		flows:    conntrack.NewLedger(),
		problems: map[string][]resolve.Problem{},
		sizes:    map[string]size{},
		grants:   newGrants(),
		pending:  map[string]grant{},
		left:     map[string]leftOut{},
	}
}

// anew is a planner that has planned nothing, in the same surroundings.
func (p *planner) anew() *planner {
	n := newPlanner()
	n.served, n.occupied, n.progress = p.served, p.occupied, p.progress
	n.grants = p.grants // who asks has it already
	n.grants.clear()
	return n
}

// adopt plans all Services on top of a ruleset that is in the kernel.
func (p *planner) adopt(have nft.Ruleset, box nft.Box, facts resolve.Facts, objs objects, all []string) nft.Transition {
	p.place(box, facts)
	if p.occupied != nil {
		p.occupied.before = have
		defer func() { p.occupied.before = nil }()
	}
	p.flows.Adopt(have)
	return p.compiler.Adopt(have, nft.State{Box: box, Services: p.resolve(objs, all, &box)})
}

// place notes the box that is planned for from now on.
func (p *planner) place(box nft.Box, facts resolve.Facts) {
	p.box, p.facts = box, facts
	p.grants.place(box)
	if p.occupied != nil {
		p.facts.Taken = p.taken
	}
}

// update plans the Services that changed.
func (p *planner) update(objs objects, changed []string) nft.Transition {
	p.retry(changed)
	return p.compiler.Update(nil, p.resolve(objs, changed, nil))
}

// relocate plans all Services anew on a box that changed.
func (p *planner) relocate(box nft.Box, facts resolve.Facts, objs objects, all []string) nft.Transition {
	p.place(box, facts)
	p.retry(all)
	return p.compiler.Update(&box, p.resolve(objs, all, &box))
}

// retry has those that the kernel refused planned as they are to be.
func (p *planner) retry(services []string) {
	for _, key := range services {
		delete(p.left, key)
	}
}

// planned is what one Service comes to.
type planned struct {
	resolve.Output
	since time.Time // its creation
	drain conntrack.Drain
}

// resolve gives the ports of the Services that changed and of those that gain or
// lose a frontend by that; a Service that is gone has none. box is the box, if it
// changed.
func (p *planner) resolve(objs objects, changed []string, box *nft.Box) map[string][]nft.ServicePort {
	if p.occupied != nil {
		p.occupied.known = false
	}
	changed = sortedOnce(changed)
	outputs := p.resolveAll(objs, changed)
	affected := map[string]bool{}
	for i, key := range changed {
		for _, other := range p.claims.Set(key, outputs[i].since, outputs[i].Ports) {
			if _, is := slices.BinarySearch(changed, other); !is {
				affected[other] = true
			}
		}
	}
	for key := range affected {
		changed = append(changed, key)
		outputs = append(outputs, p.resolveOne(objs, key))
	}
	grants := make([]granting, len(outputs))
	together(len(outputs), func(i int) { grants[i] = p.grant(changed[i], &outputs[i]) })
	ports := make(map[string][]nft.ServicePort, len(outputs))
	connections := make(map[string][]conntrack.Port, len(outputs))
	for i, key := range changed {
		out, granted := &outputs[i], &grants[i]
		ports[key], connections[key] = granted.ports, granted.connections
		if _, changedBefore := p.pending[key]; !changedBefore {
			p.pending[key] = p.grants.get(key)
		}
		p.grants.set(key, grant{granted.ports, out.drain})
		p.record(key, granted.ports, append(out.Problems, granted.conflicts...))
		if p.served != nil {
			p.served(key, out.Health, granted.ports)
		}
	}
	p.flows.Update(box, connections)
	return ports
}

// granting is what a Service gets of what it asks for.
type granting struct {
	ports       []nft.ServicePort
	connections []conntrack.Port
	conflicts   []resolve.Problem
}

// grant reads only, so that several may be granted at once.
func (p *planner) grant(key string, out *planned) (g granting) {
	p.progress()
	namespace, name, _ := cutKey(key)
	g.ports, g.conflicts = p.claims.Grant(object.Ref{Kind: object.KindService, Namespace: namespace, Name: name}, out.Ports)
	if len(g.ports) > 0 {
		g.connections = make([]conntrack.Port, len(g.ports))
	}
	for i := range g.ports {
		g.connections[i] = conntrack.PortOf(&g.ports[i], g.ports[i].Serving, out.drain)
	}
	return g
}

// resolveAll is resolveOne of each.
func (p *planner) resolveAll(objs objects, keys []string) []planned {
	outputs := make([]planned, len(keys))
	together(len(keys), func(i int) {
		p.progress()
		outputs[i] = p.resolveOne(objs, keys[i])
	})
	return outputs
}

// minShare is how many Services are enough for another CPU.
const minShare = 256

// together calls do for 0 to n-1, on several CPUs when there are many.
func together(n int, do func(i int)) {
	var others sync.WaitGroup
	part := max(minShare, (n+runtime.GOMAXPROCS(0)-1)/runtime.GOMAXPROCS(0))
	for first := part; first < n; first += part {
		others.Go(func() {
			for i := first; i < min(first+part, n); i++ {
				do(i)
			}
		})
	}
	for i := range min(part, n) {
		do(i)
	}
	others.Wait()
}

func sortedOnce(keys []string) []string {
	keys = slices.Sorted(slices.Values(keys))
	return slices.Compact(keys)
}

func cutKey(key string) (namespace, name string, ok bool) {
	for i := range len(key) {
		if key[i] == '/' {
			return key[:i], key[i+1:], true
		}
	}
	return "", key, false
}

func (p *planner) resolveOne(objs objects, key string) planned {
	var out planned
	svc, slices, _ := objs.Service(key)
	if svc != nil && svc.Metadata.CreationTimestamp != nil {
		out.since = *svc.Metadata.CreationTimestamp
	}
	if left, is := p.left[key]; is {
		namespace, name, _ := cutKey(key)
		out.Ports, out.drain = left.ports, left.drain
		out.Problems = []resolve.Problem{left.problem(object.Ref{Kind: object.KindService, Namespace: namespace, Name: name})}
		return out
	}
	if svc == nil {
		return out
	}
	out.Output = resolve.Service(resolve.Input{Service: svc, Slices: slices}, &p.facts)
	var err error
	if out.drain, err = conntrack.ParseDrain(svc.Metadata.Annotations); err != nil {
		out.Problems = append(out.Problems, resolve.Problem{
			Object: object.RefOf(svc), Field: "metadata.annotations", Reason: "InvalidAnnotation", Message: err.Error(), Warning: true,
		})
	}
	return out
}

// record keeps the problems and the sizes of a Service.
func (p *planner) record(key string, ports []nft.ServicePort, problems []resolve.Problem) {
	if len(problems) > 0 {
		p.problems[key] = problems
	} else {
		delete(p.problems, key)
	}
	p.total = p.total.plus(p.sizes[key], -1)
	var now size
	for i := range ports {
		now = now.plus(size{1, len(ports[i].Frontends), len(ports[i].Pools[nft.PoolCluster])}, 1)
	}
	p.total = p.total.plus(now, 1)
	if now == (size{}) {
		delete(p.sizes, key)
		return
	}
	p.sizes[key] = now
}

// known are the Services that something is planned or reported for.
func (p *planner) known() []string {
	return slices.AppendSeq(slices.Collect(maps.Keys(p.sizes)), maps.Keys(p.problems))
}

// allProblems lists the problems of all Services by Service.
func (p *planner) allProblems() []resolve.Problem {
	var all []resolve.Problem
	for _, key := range slices.Sorted(maps.Keys(p.problems)) {
		all = append(all, p.problems[key]...)
	}
	if p.occupied != nil {
		all = append(all, p.occupied.late...)
	}
	slices.SortStableFunc(all, func(a, b resolve.Problem) int { return cmp.Compare(a.Object.String(), b.Object.String()) })
	return all
}
