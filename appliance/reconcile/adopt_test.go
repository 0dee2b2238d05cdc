package reconcile

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store/engine"
)

// Nothing is planned of manifests that could not be stored.
func TestManifestsThatCannotBeStored(t *testing.T) {
	r := newRig(t)
	r.host()
	r.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Refuse })
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

// What was read early is not believed when another program has changed our tables since.
func TestEarlyReadingThatIsOutdated(t *testing.T) {
	for _, noticed := range []bool{true, false} {
		r := newRig(t)
		r.host()
		r.write("web.yaml", web("a", "10.96.1.1", "10.1.0.1"))
		r.step()
		before := r.text()
		files := r.observed.snapshot
		r.start()
		early := <-r.applier.early
		passed := make(chan reading, 1)
		passed <- early
		r.applier.early = passed
		r.kernel.Tamper(func(rs nft.Ruleset) { clear(rs[nft.IPv4].Sets["services"].Elements) })
		if noticed {
			r.onForeignChange(kernel.Change{Ours: true, PID: 4711, Comm: "nft"})
		}
		r.host()
		r.observed.snapshot, r.observed.unsynced = files, true
		r.step()
		if !noticed { // it is a little later
			r.onForeignChange(kernel.Change{Ours: true, PID: 4711, Comm: "nft"})
			r.step()
		}
		if got := r.text(); got != before {
			t.Errorf("noticed %v: the ruleset is\n%s\nwant\n%s", noticed, got, before)
		}
	}
}

// Many Services are planned on several CPUs, with the same outcome as a few at a time.
func TestManyAtOnceAreAsAFewAtATime(t *testing.T) {
	atOnce, inSteps := newRig(t), newRig(t)
	atOnce.host()
	inSteps.host()
	var text strings.Builder
	for file := range 6 {
		text.Reset()
		for i := range minShare / 2 {
			text.WriteString(web(fmt.Sprintf("web%d-%d", file, i), fmt.Sprintf("10.96.%d.%d", file+1, i+1), fmt.Sprintf("10.1.%d.%d", file, i+1)) + "---\n")
		}
		for _, r := range []*rig{atOnce, inSteps} {
			r.write(fmt.Sprintf("%d.yaml", file), text.String())
		}
		inSteps.step()
	}
	atOnce.step()
	if got, want := atOnce.text(), inSteps.text(); got != want || atOnce.planner.total.services != 3*minShare {
		t.Errorf("%d Services; at once the ruleset is\n%s\nwant\n%s", atOnce.planner.total.services, got, want)
	}
	before := inSteps.planner.total
	inSteps.write("5.yaml", strings.Replace(text.String(), "10.1.5.1", "10.1.9.9", 1))
	inSteps.step()
	if now := inSteps.planner.total; now != before || now != atOnce.planner.total {
		t.Errorf("%+v, %+v before a change of an endpoint, and at once %+v", now, before, atOnce.planner.total)
	}
}

// A loop is given what was read before it was made, and does not read it again.
func TestEarlyReadingIsGiven(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", web("a", "10.96.1.1", "10.1.0.1"))
	r.step()
	reads := &countedReads{Kernel: r.opts.Kernel}
	given := make(chan reading, 1)
	given <- reading{generation: 4711}
	opts := r.opts
	opts.Kernel, opts.Early = reads, given
	l := New(opts)
	if _, err := l.applier.read(); err != nil || l.applier.generation != 4711 || reads.n.Load() != 0 {
		t.Errorf("read %d times, generation %d: %v", reads.n.Load(), l.applier.generation, err)
	}
}

// countedReads is a kernel that counts how often it is read.
type countedReads struct {
	Kernel
	n atomic.Int32
}

func (k *countedReads) Read() (nft.Ruleset, uint32, error) {
	k.n.Add(1)
	return k.Kernel.Read()
}
