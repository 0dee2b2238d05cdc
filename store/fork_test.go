package store

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// TestForkDoesWhatTheStoreDoes makes random changes on a fork and then on the store: objects, owners, values and
// refusals are the same, and the store does not notice the fork.
func TestForkDoesWhatTheStoreDoes(t *testing.T) {
	for seed := range uint64(4) {
		b, r := newBox(t, smallPool), rand.New(rand.NewPCG(seed, 3))
		for step := range 60 {
			before, problems, revision, commits := objects(b.s), b.problems(), b.s.Revision(), b.engine.Commits()
			fork, at, err := b.s.Fork()
			if err != nil || at != revision {
				t.Fatalf("seed %d, step %d: fork of revision %d, want %d: %v", seed, step, at, revision, err)
			}
			if got, want := versionsOf(fork), versionsOf(b.s); got != want {
				t.Fatalf("seed %d, step %d: the fork has\n%s\nand the store\n%s", seed, step, got, want)
			}
			var do func(*Store) string
			if r.IntN(3) == 0 {
				files := manifest.FilesOf(randomFiles(r))
				do = func(s *Store) string { _, err := s.SyncFiles(files); return fmt.Sprint(err) }
			} else {
				w := randomWrite(t, b.s, r)
				if _, owner := b.s.Get(w.Ref); owner.File != "" && !w.Delete {
					continue // what a file says is not a client's to write: the API refuses it
				}
				do = func(s *Store) string {
					mine := w
					if w.Object != nil {
						mine.Object = object.DeepCopy(w.Object)
					}
					written, err := s.Write(mine)
					if err != nil {
						t.Fatal(err)
					}
					return fmt.Sprint(written[0].Err, written[0].Removed, written[0].Warnings)
				}
			}
			inside, first := insideOf(b.s), maps.Clone(fork.table.records)
			fork.Track()
			foreseen := do(fork)
			checkTracked(t, fork, first)
			if now := insideOf(b.s); now != inside {
				t.Fatalf("seed %d, step %d: a change of the fork is one of the store's indexes:\n%s\nbecame\n%s", seed, step, inside, now)
			}
			if objects(b.s) != before || b.problems() != problems || b.s.Revision() != revision || b.engine.Commits() != commits {
				t.Fatalf("seed %d, step %d: a change of the fork is one of the store", seed, step)
			}
			if done := do(b.s); done != foreseen {
				t.Fatalf("seed %d, step %d: the fork says %q and the store %q", seed, step, foreseen, done)
			}
			if got, want := versionsOf(fork), versionsOf(b.s); got != want {
				t.Fatalf("seed %d, step %d: after the change the fork has\n%s\nand the store\n%s", seed, step, got, want)
			}
			b.check()
		}
	}
}

// checkTracked has exactly the objects that differ from the first ones among the tracked ones.
func checkTracked(t *testing.T, s *Store, first map[object.Ref]*record.Record) {
	t.Helper()
	tracked := s.Tracked()
	for ref, v := range tracked {
		if v != [2]*record.Record{first[ref], s.table.records[ref]} {
			t.Fatalf("%s is tracked as %v, want %v and %v", ref, v, first[ref], s.table.records[ref])
		}
		first[ref] = v[1]
	}
	maps.DeleteFunc(first, func(_ object.Ref, r *record.Record) bool { return r == nil })
	if !maps.Equal(first, s.table.records) {
		t.Fatalf("changes are not among the %d that are tracked", len(tracked))
	}
}

// insideOf is all that a fork takes over of a store, with the addresses of objects.
func insideOf(s *Store) string {
	var b strings.Builder
	d, n := &s.declared, &s.table.namespaces
	fmt.Fprintln(&b, s.table.records, *s.table.index, *n, s.table.dependents, s.table.served, s.table.declaredServices, d.byObject, d.undeclared, d.duplicates, d.troubled, d.held, s.outcomes, s.sources)
	for _, each := range slices.SortedFunc(maps.Keys(s.table.foreign), func(a, b annotation.Remark) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		fmt.Fprintln(&b, each, *s.table.foreign[each])
	}
	for _, set := range s.pending.sets {
		fmt.Fprintln(&b, *set)
	}
	return b.String()
}

// versionsOf are all objects with their owners, without what is by chance: uids and creation times.
func versionsOf(s *Store) string {
	all := s.table.records
	var b strings.Builder
	refs := slices.SortedFunc(maps.Keys(all), record.CompareRefs)
	for _, ref := range refs {
		fmt.Fprintf(&b, "%s %v %s\n", ref, all[ref].Owner, textOf(record.Whole(all[ref].Object)))
	}
	return b.String()
}

// Test1115_forks_share_objects makes a fork of 1,000 Services: its objects are those of the store, and it is cheaper than
// opening the store, which decodes them.
func Test1115_forks_share_objects(t *testing.T) {
	b := newBox(t)
	var text strings.Builder
	for i := range 1_000 {
		fmt.Fprintf(&text, "s%d {}\n", i)
	}
	b.apply("a.yaml", text.String())
	fork, _, err := b.s.Fork()
	if err != nil {
		t.Fatal(err)
	}
	of := b.s.table.records
	for ref, o := range fork.table.records {
		if of[ref].Object != o.Object {
			t.Fatalf("%s of the fork is another object than that of the store", ref)
		}
	}
	forking := testing.AllocsPerRun(3, func() { _, _, _ = b.s.Fork() })
	opening := testing.AllocsPerRun(3, func() { _, _ = Open(b.engine, b.s.cfg) })
	if forking > opening/2 {
		t.Errorf("a fork makes %.0f allocations, and opening the store %.0f", forking, opening)
	}
}

// TestForkIsRefused names what keeps a fork from being true.
func TestForkIsRefused(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {}")
	if err := b.s.Reserve([]ReservedFrontend{{}}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.s.Fork(); err != ErrForkReserved {
		t.Errorf("with reserved values: %v", err)
	}
	if err := b.s.Unreserve(); err != nil {
		t.Fatal(err)
	}
	fork, _, err := b.s.Fork()
	if err != nil {
		t.Fatal(err)
	}
	if o, _ := fork.Get(object.Ref{Kind: object.KindService, Namespace: "default", Name: "web"}); o == nil || len(slices.Collect(fork.Files().All())) != 1 || len(fork.Held()) != 0 {
		t.Errorf("the fork has %v, %d files and holds %v", o, len(slices.Collect(fork.Files().All())), fork.Held())
	}
}

// TestForkKnowsTrialsAndTheHost gives no Service what a trial keeps, or what the host has.
func TestForkKnowsTrialsAndTheHost(t *testing.T) {
	b := newBox(t)
	b.must(write(refine(document(t, "web {clusterIP: 172.30.0.9}"))))
	free := map[string]bool{"172.30.0.9": true, "172.30.0.77": true}
	b.s.SetHost(hostOf{reserved: func(_ *object.Service, addr netip.Addr) string {
		if free[addr.String()] {
			return ""
		}
		return "an address of this host"
	}})
	b.try(false)
	b.must(Write{Ref: ref("web"), Delete: true, By: Caller{Trial: "t1"}})
	taken := func(s *Store) string {
		asks, err := s.Write(write(refine(document(t, "other {clusterIP: 172.30.0.9}"))), write(refine(document(t, "new {}"))))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(asks[0].Err, asks[1].Object.(*object.Service).Spec.ClusterIP)
	}
	fork, _, err := b.s.Fork()
	if err != nil {
		t.Fatal(err)
	}
	got, want := taken(fork), taken(b.s)
	if got != want || !strings.Contains(want, "172.30.0.9") || !strings.HasSuffix(want, "172.30.0.77") {
		t.Errorf("the fork says %q, the store %q", got, want)
	}
	files := newBox(t)
	files.try(true)
	if _, _, err := files.s.Fork(); err != ErrForkTimed {
		t.Errorf("during a trial of files: %v", err)
	}
}
