package reconcile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/watch"
)

// from puts files into a snapshot of some directories.
func (r *rig) from(sources ...watch.Source) {
	files := manifest.FilesOf(r.files)
	r.observed.snapshot, r.observed.unsynced = &watch.Snapshot{Files: files, Sources: sources}, true
	r.step()
}

// A directory that was mistyped, renamed or is unavailable takes nothing with it, however few
// Services there are.
func TestF07_otherDirectory(t *testing.T) {
	for name, sources := range map[string][]watch.Source{
		"mistyped":              {{Dir: "manifestsX", State: watch.StateUnavailable}},
		"another one":           {{Dir: "other", State: watch.StateWatching, Files: 1}},
		"not read":              {{Dir: "manifests", State: watch.StateUnavailable}},
		"one of two is missing": {{Dir: "other", State: watch.StateWatching, Files: 1}, {Dir: "more", State: watch.StateUnavailable}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.host()
			r.fill(2)
			r.step()
			for range 2 {
				r.files = map[string]*manifest.File{}
				r.start()
				r.host()
				r.write("other/new.yaml", web("new", "10.96.2.1", "10.1.0.7"))
				r.from(sources...)
				r.want("10.96.1.0 . tcp . 80 . 0 : 10.1.0.1 . 8080", "10.96.1.1 . tcp . 80 . 0 : 10.1.0.1 . 8080", "10.96.2.1 . tcp")
				if s := r.board.Status(); !r.hasProblem(reasonMassRemoval) || s.HeldRemovals != 2 {
					t.Errorf("%d held, problems %v", s.HeldRemovals, s.Problems)
				}
			}
			// What is in the new directory moves there, and is no loss.
			r.write("other/0.yaml", web("s0", "10.96.1.0", "10.1.0.1"))
			r.from(sources...)
			if s := r.board.Status(); s.HeldRemovals != 1 {
				t.Errorf("%d held, problems %v", s.HeldRemovals, s.Problems)
			}
			if n := r.release().Services; n != 1 {
				t.Errorf("%d released", n)
			}
			r.step()
			r.want("10.96.1.0 . tcp", "!10.96.1.1 .")
			if r.hasProblem(reasonMassRemoval) {
				t.Errorf("problems %v", r.board.Status().Problems)
			}
		})
	}
}

// A start without --manifests is no reason to forget what files said, and says so.
func TestF07_noDirectory(t *testing.T) {
	r := newRig(t)
	r.host()
	r.fill(2)
	r.step()
	r.start()
	r.opts.Watching, r.opts.Publisher.Dirs = false, nil
	r.withoutDirectories()
	r.host()
	r.step()
	r.want("10.96.1.0 . tcp . 80 . 0 : 10.1.0.1 . 8080")
	if s := r.board.Status(); !r.hasProblem(reasonMassRemoval) || s.HeldRemovals != 2 || !s.Synced {
		t.Errorf("%d held, synced %v, problems %v", s.HeldRemovals, s.Synced, s.Problems)
	}
	r.release()
	r.step()
	if r.services() != 0 || len(r.board.Status().Problems) != 0 {
		t.Errorf("after the release %d Services, problems %v", r.services(), r.board.Status().Problems)
	}
	r.start()
	r.opts.Watching = false
	if r.withoutDirectories(); r.observed.snapshot != nil {
		t.Error("something is looked for although there is nothing")
	}
}

// All Services of a directory that has other files is more than a few of them.
func TestF07_allServices(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("manifests/note.yaml", "# nothing")
	r.fill(5)
	r.step()
	for i := range 5 {
		r.write(fmt.Sprintf("manifests/%d.yaml", i), "")
	}
	r.step()
	if r.services() != 5 || !r.hasProblem(reasonMassRemoval) {
		t.Fatalf("%d Services, problems %v", r.services(), r.board.Status().Problems)
	}
	// The only one that there is may be removed by hand.
	r.release()
	r.step()
	r.write("manifests/web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	r.write("manifests/web.yaml", "")
	r.step()
	if r.services() != 0 || r.hasProblem(reasonMassRemoval) {
		t.Errorf("%d Services, problems %v", r.services(), r.board.Status().Problems)
	}
}

// serviceOf and endpoints are the two documents of web.
func serviceOf(text string) string   { return strings.SplitN(text, "---\n", 2)[0] }
func endpointsOf(text string) string { return strings.SplitN(text, "---\n", 2)[1] }

// Services that lose all their endpoints are lost to their clients.
func TestF07_endpointsAreLost(t *testing.T) {
	pod := func(i int) string {
		return server(fmt.Sprintf("pod%d", i), fmt.Sprintf("s%d", i), fmt.Sprintf("10.1.0.%d", i+1), "")
	}
	slice := func(i int) string { return endpointsOf(web(fmt.Sprintf("s%d", i), "x", fmt.Sprintf("10.1.0.%d", i+1))) }
	for name, test := range map[string]struct{ service, backing func(i int) string }{
		"EndpointSlices": {func(i int) string { return serviceOf(web(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.1.%d", i), "")) }, slice},
		"Pods":           {func(i int) string { return selecting(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.1.%d", i)) }, pod},
		"Endpoints": {func(i int) string { return serviceOf(web(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.1.%d", i), "")) }, func(i int) string {
			return fmt.Sprintf("apiVersion: v1\nkind: Endpoints\nmetadata: {name: s%d}\nsubsets: [{addresses: [{ip: 10.1.0.%d}], ports: [{port: 8080}]}]\n", i, i+1)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.host()
			for i := range 12 {
				r.write(fmt.Sprintf("manifests/services/%d.yaml", i), test.service(i))
				r.write(fmt.Sprintf("manifests/endpoints/%d.yaml", i), test.backing(i))
			}
			r.step()
			r.step()
			// One that goes is not held.
			r.write("manifests/endpoints/3.yaml", "")
			r.step()
			r.step()
			r.want("10.96.1.5 . tcp . 80 . 0 : 10.1.0.6 .", "!10.96.1.3 . tcp . 80 . 0 : 10.1.0.4 .")
			r.clock = r.clock.Add(time.Minute)
			for i := range 12 {
				r.write(fmt.Sprintf("manifests/endpoints/%d.yaml", i), "")
			}
			r.step()
			r.step()
			r.want("10.96.1.5 . tcp . 80 . 0 : 10.1.0.6 .", "10.96.1.11 . tcp . 80 . 0 : 10.1.0.12 .")
			if s := r.board.Status(); !r.hasProblem(reasonMassRemoval) || s.HeldRemovals != 11 {
				t.Errorf("%d held, problems %v", s.HeldRemovals, s.Problems)
			}
			// They come back under other names, which is no loss.
			for i := range 12 {
				r.write(fmt.Sprintf("manifests/endpoints/new-%d.yaml", i), strings.NewReplacer("{name: s", "{name: n", "{name: pod", "{name: new").Replace(test.backing(i)))
			}
			if name != "Endpoints" { // which have the names of their Services
				r.step()
				r.step()
				if r.hasProblem(reasonMassRemoval) {
					t.Errorf("problems %v", r.board.Status().Problems)
				}
			}
			r.release()
			r.step()
			r.step()
			if r.hasProblem(reasonMassRemoval) {
				t.Errorf("after the release: problems %v", r.board.Status().Problems)
			}
		})
	}
}

// Removals that follow each other without a pause are carried out all the same, and who waits is
// told when those that it saw are.
func TestF07_steadyStream(t *testing.T) {
	r := newRig(t)
	r.host()
	r.fill(200)
	r.step()
	synced := func() chan error {
		done := make(chan error, 1)
		go func() { done <- r.board.Synced(t.Context(), 0) }()
		return done
	}
	most, waits := 0, []chan error{}
	for i := range 100 { // one every 300 ms
		r.write(fmt.Sprintf("manifests/%d.yaml", i), "")
		r.write(fmt.Sprintf("manifests/new%d.yaml", i), web(fmt.Sprintf("new%d", i), fmt.Sprintf("10.96.2.%d", i), "10.1.0.2"))
		r.step()
		s := r.board.Status()
		most = max(most, r.services())
		if s.Synced != (s.PendingRemovals == 0) || s.HeldRemovals != 0 || len(s.Problems) != 0 {
			t.Fatalf("%d: %d pending, synced %v (%s), problems %v", i, s.PendingRemovals, s.Synced, s.Reason, s.Problems)
		}
		if s.PendingRemovals > 0 && len(waits) == 0 {
			waits = append(waits, synced())
		}
		for end := r.clock.Add(300 * time.Millisecond); r.clock.Before(end); {
			wait, due := r.until()
			if !due || r.clock.Add(wait).After(end) {
				r.clock = end
				continue
			}
			r.clock = r.clock.Add(wait)
			r.step()
		}
	}
	if len(waits) == 0 || most > 220 {
		t.Fatalf("at most %d Services at a time, %d times something was waited for", most, len(waits))
	}
	if err := <-waits[0]; err != nil {
		t.Errorf("who waited is told %v", err)
	}
}

// Who waits for all that is in the files hears of what is held, and at once.
func TestWaitTellsOfWhatIsHeld(t *testing.T) {
	r := newRig(t)
	r.host()
	r.fill(30)
	r.step()
	if err := r.board.Synced(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		r.write(fmt.Sprintf("manifests/%d.yaml", i), "")
	}
	r.step()
	if err := r.board.Synced(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "20 Services") || !strings.Contains(err.Error(), "svcctl confirm --removals") {
		t.Errorf("it is told %v", err)
	}
	// What a client has written is in force.
	if err := r.board.Synced(t.Context(), r.store.Revision()); err != nil {
		t.Errorf("a client is told %v", err)
	}
}

// A removal that could not be stored is decided upon in the same way again.
func TestRemovalThatCannotBeStored(t *testing.T) {
	r := newRig(t)
	r.host()
	r.fill(40)
	r.step()
	for i := range 15 {
		r.write(fmt.Sprintf("manifests/%d.yaml", i), "")
	}
	r.step()
	r.clock = r.clock.Add(removalQuiet)
	r.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Refuse })
	r.step()
	r.engine.Inject(nil)
	r.step()
	if r.services() != 25 || r.hasProblem(reasonMassRemoval) {
		t.Errorf("%d Services, problems %v", r.services(), r.board.Status().Problems)
	}
}
