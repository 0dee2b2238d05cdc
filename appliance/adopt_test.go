package appliance

import (
	"testing"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
)

// What was planned while the manifests were stored is dropped when they could not be.
func TestWhatWasPlannedAheadAndNotStored(t *testing.T) {
	r := newRig(t)
	r.host()
	r.engine.Inject(func(store.Transaction) store.Fault { return store.Refuse })
	r.write("a.yaml", web("a", "10.96.1.1", "10.1.0.1"))
	r.step()
	if known := r.planner.known(); r.adopted || len(known) > 0 || r.wait == 0 {
		t.Errorf("adopted %v, planned %q, retry in %v", r.adopted, known, r.wait)
	}
	r.want("!10.96.1.1")
	r.engine.Inject(nil)
	r.write("a.yaml", "")
	r.write("b.yaml", web("b", "10.96.1.2", "10.1.0.2"))
	r.step()
	r.want("!10.96.1.1", "10.96.1.2 . tcp . 80 . 0 : 10.1.0.2 . 8080")
}

// What follows from the manifests belongs to the first transaction, too.
func TestFirstTransactionHasWhatFollowsFromTheManifests(t *testing.T) {
	r := newRig(t)
	r.host()
	commits := 0
	r.kernel.Inject(func(*nft.Batch) error { commits++; return nil })
	r.write("web.yaml", web("a", "10.96.1.1", "10.1.0.1"))
	r.write("picked.yaml", selecting("picked", "10.96.1.2")+server("one", "picked", "10.1.0.2", ""))
	r.step()
	r.want("10.96.1.1 . tcp . 80 . 0 : 10.1.0.1 . 8080", "10.96.1.2 . tcp . 80 . 0 : 10.1.0.2 . 8080")
	if commits != 1 {
		t.Errorf("%d transactions", commits)
	}
}
