package reconcile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/watch"
)

// filesWith are so many files with a Service each.
func filesWith(services int) map[string][]string {
	files := map[string][]string{}
	for i := range services {
		files[fmt.Sprintf("/m/%d.yaml", i)] = []string{fmt.Sprintf("default/s%d", i)}
	}
	return files
}

// A story is a sequence of decisions about removals.
func TestGuardDecides(t *testing.T) {
	type step struct {
		after           time.Duration
		services, total int
		want            store.Decision
	}
	const remove, wait, keep = store.Remove, store.Wait, store.Keep
	for name, steps := range map[string][]step{
		"few":                     {{0, 9, 10, remove}},
		"few, again and again":    {{0, 6, 100, remove}, {20 * time.Second, 6, 94, remove}, {20 * time.Second, 6, 88, remove}},
		"one, the only one":       {{0, 1, 1, remove}},
		"two, all there are":      {{0, 2, 2, remove}},
		"three, all there are":    {{0, 3, 3, keep}, {time.Hour, 3, 3, keep}},
		"ten, all there are":      {{0, 10, 10, keep}, {time.Hour, 10, 10, keep}},
		"all, one by one":         {{0, 1, 4, remove}, {time.Second, 1, 3, remove}, {time.Second, 1, 2, remove}, {time.Second, 1, 1, keep}, {time.Hour, 1, 1, keep}},
		"all, slowly":             {{0, 1, 3, remove}, {time.Minute, 1, 2, remove}, {time.Minute, 1, 1, remove}},
		"all, then one is added":  {{0, 5, 5, keep}, {time.Second, 5, 6, keep}, {time.Second, 2, 6, remove}},
		"most":                    {{0, 60, 100, keep}, {time.Hour, 60, 100, keep}},
		"most in several bites":   {{0, 8, 30, remove}, {time.Second, 8, 22, keep}},
		"most in slow bites":      {{0, 8, 30, remove}, {time.Minute, 8, 22, remove}},
		"many, but a part":        {{0, 40, 100, wait}, {100 * time.Millisecond, 40, 100, wait}, {removalQuiet, 40, 100, remove}},
		"many, growing to most":   {{0, 40, 100, wait}, {removalQuiet / 2, 50, 100, wait}, {removalQuiet / 2, 51, 100, keep}},
		"many, growing to a part": {{0, 20, 100, wait}, {removalQuiet - 1, 30, 100, wait}, {removalQuiet, 30, 100, remove}},
		"most come back":          {{0, 60, 100, keep}, {time.Second, 30, 100, keep}, {time.Second, 9, 100, remove}},
		"others are added":        {{0, 60, 100, keep}, {time.Second, 60, 300, keep}},
		"never quiet": {{0, 11, 200, wait}, {removalMost / 4, 12, 200, wait}, {removalMost / 4, 13, 200, wait}, {removalMost / 4, 14, 200, wait},
			{removalMost / 4, 15, 200, remove}},
	} {
		t.Run(name, func(t *testing.T) {
			b := &RemovalGuard{sources: []watch.Source{{Dir: "/m", Files: 1}}}
			now := time.Unix(1000, 0)
			for i, s := range steps {
				now = now.Add(s.after)
				removals := store.Removals{Files: filesWith(s.services), Total: s.total, Declared: s.total}
				if s.want == remove { // nothing comes of it at first
					b.Hold(removals, now)
					b.Failed()
				}
				got := b.Hold(removals, now)("/m/0.yaml")
				if got != s.want || b.engaged() != (s.want == keep) || (b.pending() > 0) != (s.want == wait) {
					t.Fatalf("step %d: decision %v, engaged %v, pending %d; want %v", i, got, b.engaged(), b.pending(), s.want)
				}
				if _, told := b.problem(); told != b.engaged() {
					t.Errorf("step %d: told %v, engaged %v", i, told, b.engaged())
				}
				if at, due := b.until(); due && at.Sub(b.since) > removalMost {
					t.Errorf("step %d: it is decided %v after the first one vanished", i, at.Sub(b.since))
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

	if n := r.release().Services; n != 20 {
		t.Errorf("%d released", n)
	}
	r.step()
	if s := r.board.Status(); r.services() != 11 || s.HeldRemovals != 0 || len(s.Problems) != 0 {
		t.Errorf("after the release %d Services, %d held, problems %v", r.services(), s.HeldRemovals, s.Problems)
	}
	r.want("!10.96.1.0 .", "10.96.1.25 . tcp")
	if n := r.release().Services; n != 0 {
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

// What vanishes in one go while the process is down is held at the start.
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

// What vanishes from a directory that is not as it should be stays, whatever its number; from
// others it goes.
func TestGuardLooksAtDirectories(t *testing.T) {
	sources := []watch.Source{
		{Dir: "/m/empty", State: watch.StateWatching}, {Dir: "/m/ok", State: watch.StateWatching, Files: 2},
		{Dir: "/m/away", State: watch.StateUnavailable},
	}
	for file, want := range map[string]string{
		"/m/empty/x.yaml": "/m/empty has no manifests any more", "/m/empty/d/x.yaml": "/m/empty has no manifests any more",
		"/m/ok/x.yaml": "", "/m/away/x.yaml": "/m/away is unavailable", "/m/okay/x.yaml": "/m/okay is in no directory that is watched now, and /m/away is unavailable",
	} {
		b := &RemovalGuard{sources: sources}
		decide := b.Hold(store.Removals{Files: map[string][]string{file: {"default/a"}, "/m/ok/y.yaml": {"default/b"}}, Total: 9, Declared: 9}, time.Unix(1000, 0))
		p, told := b.problem()
		if kept := decide(file) == store.Keep; kept != (want != "") || told != kept || !strings.Contains(p.Message, want) {
			t.Errorf("%s: kept %v, said %q; want %q", file, kept, p.Message, want)
		}
		if decide("/m/ok/y.yaml") != store.Remove {
			t.Errorf("%s: a file of another directory is held, too", file)
		}
		b.released = true
		if decide := b.Hold(store.Removals{Files: map[string][]string{file: {"default/a"}}}, time.Unix(1000, 0)); decide(file) != store.Remove || b.engaged() {
			t.Errorf("%s: it is not released", file)
		}
	}
}
