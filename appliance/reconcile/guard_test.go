package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/watch"
)

func TestMassRemoval(t *testing.T) {
	for _, test := range []struct {
		gone, of int
		want     bool
	}{
		{0, 0, false}, {10, 10, false}, {11, 11, true}, {11, 21, true}, {11, 22, false}, {50, 100, false}, {51, 100, true}, {5000, 10000, false},
	} {
		if got := massRemoval(test.gone, test.of); got != test.want {
			t.Errorf("%d of %d: %v", test.gone, test.of, got)
		}
	}
}

// A story is a sequence of decisions about removals.
func TestBrakeDecides(t *testing.T) {
	files := map[string]struct{}{"/m/a.yaml": {}}
	type step struct {
		after           time.Duration
		services, total int
		hold            bool
		engaged         bool
	}
	for name, steps := range map[string][]step{
		"few":                     {{0, 10, 10, false, false}},
		"few, again and again":    {{0, 6, 100, false, false}, {20 * time.Second, 6, 94, false, false}, {20 * time.Second, 6, 88, false, false}},
		"most":                    {{0, 60, 100, true, true}, {time.Hour, 60, 100, true, true}},
		"most in several bites":   {{0, 8, 30, false, false}, {time.Second, 8, 22, true, true}},
		"most in slow bites":      {{0, 8, 30, false, false}, {time.Minute, 8, 22, false, false}},
		"many, but a part":        {{0, 40, 100, true, false}, {100 * time.Millisecond, 40, 100, true, false}, {removalQuiet, 40, 100, false, false}},
		"many, growing to most":   {{0, 40, 100, true, false}, {removalQuiet / 2, 50, 100, true, false}, {removalQuiet / 2, 51, 100, true, true}},
		"many, growing to a part": {{0, 20, 100, true, false}, {removalQuiet - 1, 30, 100, true, false}, {removalQuiet, 30, 100, false, false}},
		"most come back":          {{0, 60, 100, true, true}, {time.Second, 30, 100, true, true}, {time.Second, 9, 100, false, false}},
		"others are added":        {{0, 60, 100, true, true}, {time.Second, 60, 300, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			b := &RemovalGuard{}
			now := time.Unix(1000, 0)
			for i, s := range steps {
				now = now.Add(s.after)
				hold := b.Hold(store.Removals{Files: files, Services: s.services, Total: s.total}, now)
				if hold != s.hold || b.engaged != s.engaged {
					t.Fatalf("step %d: hold %v, engaged %v; want %v, %v", i, hold, b.engaged, s.hold, s.engaged)
				}
				if _, told := b.problem(); told != s.engaged {
					t.Errorf("step %d: told %v, engaged %v", i, told, s.engaged)
				}
			}
		})
	}
}

func (r *rig) services() int { return r.planner.total.ports }

// fill writes n Services into files of their own.
func (r *rig) fill(n int) {
	for i := range n {
		r.write(fmt.Sprintf("manifests/%d.yaml", i), web(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.1.%d", i), "10.1.0.1"))
	}
}

func TestF07_massRemovalIsHeld(t *testing.T) {
	r := newRig(t)
	r.host()
	r.fill(30)
	r.step()
	for i := range 20 {
		r.write(fmt.Sprintf("manifests/%d.yaml", i), "")
	}
	r.write("manifests/25.yaml", web("s25", "10.96.1.25", "10.1.0.9"))
	r.write("manifests/new.yaml", web("new", "10.96.2.1", "10.1.0.7"))
	r.step()
	s := r.board.Status()
	if r.services() != 31 || s.HeldRemovals != 20 || !r.hasProblem(reasonMassRemoval) || s.Errors() != 1 || !s.Synced {
		t.Fatalf("%d Services, %d held, problems %v, synced %v", r.services(), s.HeldRemovals, s.Problems, s.Synced)
	}
	// Additions and changes go on.
	r.want("10.96.1.0 . tcp . 80 . 0 : 10.1.0.1 . 8080", "10.96.1.25 . tcp . 80 . 0 : 10.1.0.9 . 8080", "10.96.2.1 . tcp . 80 . 0 : 10.1.0.7 . 8080")
	r.write("manifests/new.yaml", web("new", "10.96.2.1", "10.1.0.8"))
	r.clock = r.clock.Add(time.Hour)
	r.step()
	r.want("10.96.1.0 . tcp . 80 . 0 : 10.1.0.1 . 8080", "10.96.2.1 . tcp . 80 . 0 : 10.1.0.8 . 8080")
	if n := strings.Count(r.logged.String(), "msg=problem "); n != 1 {
		t.Errorf("it is logged %d times", n)
	}

	// A restart does not let go either.
	files := r.files
	r.start()
	r.files = files
	r.host()
	r.write("manifests/x.yaml", "# nothing")
	r.step()
	if r.services() != 31 || !r.hasProblem(reasonMassRemoval) {
		t.Fatalf("after a restart %d Services, problems %v", r.services(), r.board.Status().Problems)
	}

	if n := r.release(); n != 20 {
		t.Errorf("%d released", n)
	}
	r.step()
	if s := r.board.Status(); r.services() != 11 || s.HeldRemovals != 0 || len(s.Problems) != 0 {
		t.Errorf("after the release %d Services, %d held, problems %v", r.services(), s.HeldRemovals, s.Problems)
	}
	r.want("!10.96.1.0 .", "10.96.1.25 . tcp")
	if n := r.release(); n != 0 {
		t.Errorf("%d released once more", n)
	}
	// The release was for that step alone.
	r.fill(30)
	r.step()
	for i := range 29 {
		r.write(fmt.Sprintf("manifests/%d.yaml", i), "")
	}
	r.step()
	if r.services() != 31 || !r.hasProblem(reasonMassRemoval) {
		t.Errorf("%d Services", r.services())
	}
}

func TestF07_filesComeBack(t *testing.T) {
	r := newRig(t)
	r.host()
	r.fill(30)
	r.step()
	commits := r.kernel.Commits()
	for i := range 20 {
		r.write(fmt.Sprintf("manifests/%d.yaml", i), "")
	}
	r.step()
	r.fill(28) // two are meant to go
	r.write("manifests/3.yaml", "")
	r.step()
	if s := r.board.Status(); len(s.Problems) != 0 || r.services() != 29 {
		t.Errorf("%d Services, problems %v", r.services(), s.Problems)
	}
	if n := r.kernel.Commits() - commits; n != 1 {
		t.Errorf("%d commits, want one, which removes a single Service", n)
	}
}

// Documents that vanish from within a file count like files.
func TestF07_documentsOfOneFile(t *testing.T) {
	r := newRig(t)
	r.host()
	var docs []string
	for i := range 30 {
		docs = append(docs, web(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.1.%d", i), "10.1.0.1"))
	}
	r.write("manifests/all.yaml", strings.Join(docs, "---\n"))
	r.step()
	r.write("manifests/all.yaml", strings.Join(docs[25:], "---\n"))
	r.step()
	if r.services() != 30 || !r.hasProblem(reasonMassRemoval) {
		t.Errorf("%d Services, problems %v", r.services(), r.board.Status().Problems)
	}
	// A Service that moves to another file did not vanish.
	r.write("manifests/all.yaml", docs[29])
	r.write("manifests/others.yaml", strings.Join(docs[:29], "---\n"))
	r.step()
	if r.services() != 30 || r.hasProblem(reasonMassRemoval) {
		t.Errorf("after a move %d Services, problems %v", r.services(), r.board.Status().Problems)
	}
}

func TestF07_emptiedDirectory(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("manifests/a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	r.write("manifests/a.yaml", "")
	r.step()
	r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.1 . 8080")
	if !r.hasProblem(reasonMassRemoval) {
		t.Fatalf("problems %v", r.board.Status().Problems)
	}
	// An empty file says that it is meant so.
	r.write("manifests/none.yaml", "# nothing")
	r.step()
	r.want("!10.96.0.10")
	if len(r.board.Status().Problems) != 0 {
		t.Errorf("problems %v", r.board.Status().Problems)
	}
}

// What vanishes in one go while nobody runs is held at the start.
func TestF07_atStart(t *testing.T) {
	r := newRig(t)
	r.host()
	r.fill(30)
	r.step()
	for i := range 20 {
		delete(r.files, fmt.Sprintf("manifests/%d.yaml", i))
	}
	r.start()
	r.host()
	r.write("manifests/x.yaml", "# nothing")
	r.step()
	if r.services() != 30 || !r.hasProblem(reasonMassRemoval) || r.board.Ready() != nil {
		t.Errorf("%d Services, problems %v, ready %v", r.services(), r.board.Status().Problems, r.board.Ready())
	}
}

func TestF07_switchedOff(t *testing.T) {
	r := newRig(t)
	r.removals.off = true
	r.host()
	r.fill(30)
	r.step()
	for i := range 30 {
		r.write(fmt.Sprintf("manifests/%d.yaml", i), "")
	}
	r.step()
	if r.services() != 0 || len(r.board.Status().Problems) != 0 {
		t.Errorf("%d Services, problems %v", r.services(), r.board.Status().Problems)
	}
}

// A part that goes is let go when nothing more goes for a moment.
func TestF07_aPartIsLetGo(t *testing.T) {
	r := newRig(t)
	r.host()
	r.fill(40)
	r.step()
	for i := range 15 {
		r.write(fmt.Sprintf("manifests/%d.yaml", i), "")
	}
	r.step()
	wait, due := r.until()
	if !due || wait > removalQuiet || r.services() != 40 || len(r.board.Status().Problems) != 0 {
		t.Fatalf("wait %v (%v), %d Services, problems %v", wait, due, r.services(), r.board.Status().Problems)
	}
	r.clock = r.clock.Add(wait)
	r.step()
	if _, due := r.until(); due || r.services() != 25 {
		t.Errorf("after the wait %d Services, still waiting: %v", r.services(), due)
	}
}

func TestEmptiedBy(t *testing.T) {
	b := &RemovalGuard{}
	b.look([]watch.Source{{Dir: "/m/a", Files: 0}, {Dir: "/m/b", Files: 2}, {Dir: "/m/c", Files: 0}})
	for file, want := range map[string]string{"/m/a/x.yaml": "/m/a", "/m/b/x.yaml": "", "/m/ab/x.yaml": "", "/m/c/d/x.yaml": "/m/c"} {
		if got := b.emptiedBy(store.Removals{Files: map[string]struct{}{file: {}}}); got != want {
			t.Errorf("%s is of %q, want %q", file, got, want)
		}
	}
	if !slices.Equal(b.emptied, []string{"/m/a", "/m/c"}) {
		t.Errorf("emptied are %v", b.emptied)
	}
}
