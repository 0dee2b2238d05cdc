package reconcile

import (
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

// Changed frontends of a large table settle together some time after the first of them, in two transactions that are as far apart,
// whatever fails and whenever the process ends.
func TestFrontendsSettle(t *testing.T) {
	const (
		wait, leads = "10.96.1.2 . tcp . 80 : continue", "10.96.1.2 . tcp . 80 : goto pick-2"
		mark        = "elements = { 10.96.1.2 . tcp . 80 . 0"
	)
	for _, restarts := range []bool{false, true} {
		r := newRig(t)
		r.settleFrom = 1
		r.host()
		r.write("a.yaml", web("a", "10.96.1.1", "10.1.0.1"))
		r.step()
		r.write("b.yaml", web("b", "10.96.1.2", "10.1.0.2", "10.1.0.3"))
		r.step()
		next := func() {
			t.Helper()
			if restarts {
				files := r.observed.snapshot
				r.start()
				r.host()
				r.observed.snapshot, r.observed.unsynced = files, true
				commits := r.kernel.Commits()
				if r.step(); r.kernel.Commits() != commits {
					t.Errorf("a restart makes %d transactions", r.kernel.Commits()-commits)
				}
			}
			if left, needed := r.until(); !needed || left > settleAfter {
				t.Errorf("the next step is in %v, needed: %v", left, needed)
			}
			r.clock = r.clock.Add(settleAfter - time.Millisecond)
			r.step()
		}
		next()
		r.want(wait, mark, "!"+leads)
		r.clock = r.clock.Add(time.Millisecond)
		r.kernel.Inject(func(*nft.Batch) error { return kernel.ErrStale }) // all attempts of a step
		r.step()
		r.want(wait, mark, "!"+leads)
		r.kernel.Inject(nil)
		r.step()
		next()
		r.want("!"+wait, leads, mark)
		r.clock = r.clock.Add(time.Millisecond)
		r.step()
		r.want("!"+wait, leads, "!"+mark)
		if left, needed := r.until(); needed {
			t.Errorf("nothing is left to do, and the next step is in %v", left)
		}
	}
}
