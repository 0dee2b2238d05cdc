package reconcile

import (
	"slices"

	"svcctl.io/svcctl/nft"
)

// plan brings the planner to the store's newest revision. restored reports that rules of ours were
// missing in the kernel for a while.
func (l *Loop) plan() (tr nft.Transition, restored bool, revision uint64, err error) {
	if !l.adopted {
		return l.adopt()
	}
	tampered := l.observed.tampered && l.tamper.mayHeal(l.opts.Clock())
	changes, others := l.opts.Store.Changes(l.planned), l.show()
	changed := slices.Concat(changes.Services, l.planner.pods.affected(l.shown.InForce(), changes.Pods), l.planner.secrets.affected(changes.Secrets), l.planner.quarantine.due(l.opts.Clock()), l.retries())
	host, relocated := l.planner.host, false
	if l.observed.moved {
		host = l.opts.Host(l.observed.facts)
		relocated = !l.planner.standsAt(host)
	}
	switch {
	case changes.All, others:
		changed = append(changed, l.allServices()...)
	case relocated:
		changed = append(changed, l.planner.concerned(&host, l.shown.InForce(), l.allServices())...)
	}
	if relocated {
		tr = l.planner.relocate(host, l.shown.InForce(), changed)
	} else {
		tr = l.planner.update(l.shown.InForce(), changed)
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

// adopt plans all Services on top of what the kernel holds.
func (l *Loop) adopt() (tr nft.Transition, restored bool, revision uint64, err error) {
	changes := l.opts.Store.Changes(0)
	l.show()
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
	tr = l.planner.adopt(have, l.opts.Host(l.observed.facts), l.shown.InForce(), slices.Concat(l.allServices(), l.opts.Store.ServiceKeys()))
	l.adopted, l.observed.moved, l.observed.tampered, l.planned = true, false, false, changes.Revision
	// When rules were missing, it is unknown for how long.
	return tr, !tr.Empty(), changes.Revision, nil
}

// retries are the Services that Parts want planned again.
func (l *Loop) retries() []string {
	keys := l.planner.again
	l.planner.again = nil
	for _, p := range l.opts.Parts {
		keys = append(keys, p.Retry()...)
	}
	return keys
}
