package reconcile

import (
	"fmt"
	"time"

	"svcctl.io/svcctl/nft"
)

// renewEvery is the minimum interval between two renewals of the fast path. New rules of another program apply to connections in the fast path at the
// latest after this interval plus the duration of a step, in all less than a second.
const renewEvery = time.Second / 2

// fastRenewal schedules renewals of the fast path. A renewal makes connections in the fast path pass all rules once more, so that rules that another
// program has committed apply to them. Renewals are at least renewEvery apart.
type fastRenewal struct {
	asked bool
	next  time.Time // the earliest time of the next renewal
}

// ask requests a renewal after a transaction of another program. It reports whether the loop has to take a step for that: there is a fast path, and
// no renewal was requested yet.
func (r *fastRenewal) ask(compiler *nft.Compiler) bool {
	first := !r.asked && compiler.HasFast()
	r.asked = r.asked || first
	return first
}

// renewFast renews the fast path if a renewal was requested and is due: it makes the connections there pass all rules once more.
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
