package reconcile

import (
	"errors"
	"maps"
	"slices"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
)

// Errors of Foresee.
var (
	// ErrBehind means that the store has changed since Foresee.Revision. Make another copy of it.
	ErrBehind = errors.New("the objects have changed meanwhile")
	// ErrUnsettled means that the kernel does not hold what was planned last.
	ErrUnsettled = errors.New("not everything that is declared is in the kernel: `svcctl status` has the reason")
	// ErrHeldBack means that the objects that are planned are not those of the store.
	ErrHeldBack = errors.New("a trial is over, and what was in force before it is in force, until this box gets the outcome of the trial")
)

// Foresee asks what the loop would plan for objects that are not stored. Nothing is changed.
type Foresee struct {
	// Objects has the objects after the change: a changed copy of the store. Changes has the
	// changes.
	Objects Objects
	Changes store.ChangeSet
	// Revision is the revision of the loop's store at the time of the copy.
	Revision uint64
	// All are the Services of Objects.
	All []string
	// Host derives from the facts of the host what to plan for; nil: as it is.
	Host func(*node.Facts) Host
}

// Foreseen is the answer to a Foresee. It may not be changed.
type Foreseen struct {
	// From is the state of the loop's compiler. Box, where not nil, replaces the present host.
	From nft.Fork
	Box  *nft.Box
	// Services has the Services that would be planned again, by key; one without ports would be
	// gone.
	Services map[string]*Service
	// Problems has the problems that these Services would have and do not have now.
	Problems []wire.Problem
}

// ForeseeAsk is a Foresee for the loop, which answers between two steps.
type ForeseeAsk struct {
	Foresee
	Done chan<- ForeseeAnswer
}

// ForeseeAnswer is a Foreseen, or an error.
type ForeseeAnswer struct {
	Foreseen
	Err error
}

// answer answers, if somebody has asked.
func (ask *ForeseeAsk) answer(l *Loop) {
	if ask.Done != nil {
		f, err := l.foresee(&ask.Foresee)
		ask.Done <- ForeseeAnswer{f, err}
	}
}

// foresee answers after a step. Its work is that of the Services that change, and a copy of the claims to frontends.
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
	for i, a := range p.answerers {
		if opens, is := a.(Opener); is {
			p.answerers[i] = opens.Foresee(ask.Objects)
		}
	}
	host, relocated := l.planner.host, false
	if ask.Host != nil {
		host = ask.Host(l.observed.facts)
		relocated = !l.planner.sameHost(host)
	}
	p.setHost(host)
	f.From = l.planner.compiler.Fork()
	changed := slices.Concat(ask.Changes.Services, l.planner.needs.pods.affected(ask.Objects, ask.Changes.Pods), l.planner.needs.users(secrets(ask.Changes.Secrets)))
	if relocated {
		f.Box = &host.Box
	}
	if relocated || ask.Changes.All {
		changed = slices.Concat(changed, ask.All, l.planner.known())
	}
	for _, key := range changed {
		delete(p.quarantine.left, key)
	}
	p.resolve(ask.Objects, changed)
	f.Services = p.unsent.services
	for _, key := range slices.Sorted(maps.Keys(p.unsent.services)) {
		for _, q := range p.problems[key] {
			if slices.Contains(l.planner.problems[key], q) {
				continue
			}
			q.Warning = q.Warning || q.Reason == resolve.ReasonNoEndpoints // they may come from elsewhere
			f.Problems = append(f.Problems, wireProblem(ofObjects([]resolve.Problem{q})[0]))
		}
	}
	return f, nil
}

// fork returns a planner that decides as this one does, for one plan of some Services. It shares the compiler, which
// it only reads, and the Parts that answer.
func (p *planner) fork() *planner {
	f := newPlanner()
	f.claims, f.compiler, f.tuners, f.progress, f.inUse = *p.claims.Clone(), p.compiler, p.tuners, p.progress, p.inUse
	f.answerers = slices.Clone(p.answerers)
	f.quarantine.left, f.quarantine.now = maps.Clone(p.quarantine.left), maps.Clone(p.quarantine.now)
	if o := p.occupied; o != nil {
		f.occupied = &occupied{look: o.look, owner: o.owner, log: o.log, nodePorts: o.nodePorts}
		f.occupied.reset()
	}
	return f
}
