package reconcile

import (
	"fmt"
	"time"

	"svcctl.io/svcctl/nft"
)

// renewEvery is the shortest time between two renewals of the fast path. What another program forbids is in force for fast
// connections that time later at most, and that of the step that is under way: within a second.
const renewEvery = time.Second / 2

// fastRenewal has fast connections pass the rules again after another program committed: what that forbids ends for them,
// too. One that commits all the time makes them pass the rules twice a second.
type fastRenewal struct {
	asked bool
	next  time.Time // not before this
}

// ask notes a transaction of another program. It reports whether the loop has to take a step for that.
func (r *fastRenewal) ask(compiler *nft.Compiler) bool {
	first := !r.asked && compiler.HasFast()
	r.asked = r.asked || first
	return first
}

// renewFast renews the fast path when that is due.
func (l *Loop) renewFast() error {
	now := l.opts.Clock()
	if !l.tamper.renewal.asked || now.Before(l.tamper.renewal.next) {
		return nil
	}
	l.tamper.renewal = fastRenewal{next: now.Add(renewEvery)}
	batch := l.planner.compiler.RenewFast()
	if batch.Empty() {
		return nil
	}
	generation, err := l.applier.kernel.Commit(&batch, l.applier.generation)
	if err != nil { // mostly as others commit all the time
		l.tamper.renewal.asked = true
		l.applier.invalidate()
		return fmt.Errorf("have fast connections pass the rules that another program changed: %w", err)
	}
	l.applier.generation = generation
	return nil
}
