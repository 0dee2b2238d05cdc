package reconcile

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

// A transaction of another program has fast connections pass the rules again: at once, and at most twice a second, the last
// one of half a second at its end, whatever else fails. Without a fast Service nothing is done.
func Test1074_rules_of_others_renew_the_fast_path(t *testing.T) {
	r := newRig(t)
	r.cfg.Services.FastPath = config.FastPathAll
	r.host()
	foreign := func() (steps bool) { return r.onForeignChange(kernel.Change{PID: 1, Comm: "firewall"}) }
	r.step()
	if foreign() {
		t.Error("there is a step for another program's rules, and no Service is fast")
	}
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	renewals := 0
	r.kernel.Inject(func(b *nft.Batch) error {
		for _, op := range b.Ops {
			if _, is := op.(nft.DeleteFlowtable); is {
				renewals++
				break
			}
		}
		return nil
	})
	is := func(when string, want int) {
		t.Helper()
		r.step()
		if renewals != want {
			t.Errorf("%s: %d renewals, want %d", when, renewals, want)
		}
	}
	is("before", 0)
	if !foreign() {
		t.Error("there is no step for another program's rules")
	}
	is("at once", 1)
	is("nothing new", 1)
	r.clock = r.clock.Add(time.Second / 10)
	foreign()
	foreign()
	is("within half a second", 1)
	if wait, needed := r.until(); !needed || wait > time.Second/2 {
		t.Errorf("the next step comes in %v (%v), want within half a second", wait, needed)
	}
	r.clock = r.clock.Add(time.Second / 2)
	is("after it", 2)
	r.onForeignChange(kernel.Change{Lost: true})
	r.clock = r.clock.Add(time.Second)
	is("after changes that were missed", 3)

	// Another one commits in between: it is tried again.
	foreign()
	r.clock = r.clock.Add(time.Second)
	r.kernel.Inject(func(*nft.Batch) error { return kernel.ErrStale })
	r.step()
	renewals = 0
	r.kernel.Inject(func(b *nft.Batch) error { renewals++; return nil })
	r.clock = r.clock.Add(time.Second)
	is("after one that came in between", 1)

	// The kernel takes nothing else.
	r.kernel.Inject(func(b *nft.Batch) error {
		for _, op := range b.Ops {
			if _, is := op.(nft.DeleteFlowtable); is {
				renewals++
				return nil
			}
		}
		return &kernel.OpError{Errno: syscall.ENOMEM}
	})
	r.write("b.yaml", web("other", "10.96.0.11", "10.1.0.2"))
	foreign()
	r.clock = r.clock.Add(time.Second)
	is("while a change fails", 2)
}

// generations notes the generations of the commits that renew the fast path.
type generations struct {
	Kernel
	expected []uint32
}

func (g *generations) Commit(b *nft.Batch, generation uint32) (uint32, error) {
	for _, op := range b.Ops {
		if _, is := op.(nft.DeleteFlowtable); is {
			g.expected = append(g.expected, generation)
			break
		}
	}
	return g.Kernel.Commit(b, generation)
}

// While it is not known what the kernel holds, as after a change that it refused, the fast path is not renewed: a commit that expects
// no generation would be carried out upon whatever is there. It is renewed once that is known again.
func Test1074_renewals_wait_until_the_tables_are_known(t *testing.T) {
	r := newRig(t)
	r.cfg.Services.FastPath = config.FastPathAll
	r.host()
	seen := &generations{Kernel: r.applier.kernel}
	r.applier.kernel = seen
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	r.kernel.Inject(func(*nft.Batch) error { return &kernel.OpError{Errno: syscall.ENOMEM} })
	r.write("b.yaml", web("other", "10.96.0.11", "10.1.0.2"))
	r.step()
	r.kernel.Inject(nil)
	r.onForeignChange(kernel.Change{PID: 1, Comm: "firewall"})
	r.clock = r.clock.Add(time.Minute)
	r.step()
	if len(seen.expected) == 0 || slices.Contains(seen.expected, 0) {
		t.Errorf("the fast path was renewed at the generations %v, want one, and not 0: any", seen.expected)
	}
}
