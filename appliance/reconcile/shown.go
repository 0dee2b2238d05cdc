package reconcile

import "cmp"

// show has what is to be in force planned from now on, and reports whether that is another store than before.
func (l *Loop) show() (others bool) {
	now := l.opts.Store
	if l.opts.InForce != nil {
		now = cmp.Or(l.opts.InForce(), now)
	}
	if others = now != l.shown; others {
		l.shown = now
		l.observed.moved = l.observed.facts != nil // the pools may be others
	}
	return others
}

// allServices are the Services that this machine is to program and those that are planned.
func (l *Loop) allServices() []string {
	keys := l.planner.known()
	for key := range l.shown.InForce().Services() {
		keys = append(keys, key)
	}
	return keys
}
