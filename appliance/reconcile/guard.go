package reconcile

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/appliance/brake"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/watch"
)

// reasonMassRemoval is the reason of the problem that Services vanished in a way that looks
// like an accident.
const reasonMassRemoval = "MassRemovalHeld"

const (
	// When many Services vanish, the decision about them waits until none vanished for removalQuiet, at most
	// removalMost.
	removalQuiet = 500 * time.Millisecond
	removalMost  = 2 * time.Second
)

// RemovalGuard keeps objects in force that vanish from the manifests when it looks like an
// accident: most Services at once, or all of their endpoints; a directory that was emptied; a
// directory that is unavailable, or not configured any more. What else changes goes on. Its methods may be
// called concurrently: in a fleet files are stored beside the loop.
type RemovalGuard struct {
	off bool // --allow-mass-removal

	mu      sync.Mutex
	sources []watch.Source

	removalState
	before  removalState  // the last decision
	current atomic.Uint64 // batch, while it is waited; 0: nothing is. It is read while the loop is busy
}

// removalState follows from the decisions so far.
type removalState struct {
	passed   []passage // of the last brake.Step
	batch    uint64    // how often it was waited
	waiting  int       // Services that vanish but are not decided upon; 0: none
	since    time.Time // when the first of them vanished
	decides  time.Time // when they are decided upon
	most     int       // the most Services that are held for their number; 0: none are
	why      []string  // the reasons of holds; empty: nothing is held
	held     int       // Services that are held
	counted  int       // those of them that are for their number
	ofTotal  int       // how many Services there were then
	objects  int       // files of which objects are held
	released bool      // the next decision is to let go
}

// passage is a removal that was let through.
type passage struct {
	at       time.Time
	services int
}

// group holds the files and Services that vanished for one reason.
type group struct {
	files    map[string]bool
	services map[string]bool
}

func (g *group) add(file string, services []string) {
	if g.files == nil {
		g.files, g.services = map[string]bool{}, map[string]bool{}
	}
	g.files[file] = true
	for _, key := range services {
		g.services[key] = true
	}
}

// NewRemovalGuard makes a guard; off lets everything go at once (--allow-mass-removal).
func NewRemovalGuard(off bool) *RemovalGuard { return &RemovalGuard{off: off} }

// Hold is a store.RemovalGuard, at a time.
func (b *RemovalGuard) Hold(r store.Removals, now time.Time) func(file string) store.Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.before = b.removalState
	b.before.passed = slices.Clone(b.passed)
	defer b.publish()
	if len(r.Files) == 0 || b.off || b.released {
		var all group
		for file, services := range r.Files {
			all.add(file, services)
		}
		b.why, b.held, b.objects, b.most, b.counted = nil, 0, 0, 0, 0
		b.pass(len(all.services), now)
		b.released = false
		return func(string) store.Decision { return store.Remove }
	}
	places, rest, all := b.sort(r)
	decision := b.count(r, &rest, len(all.services), now)
	kept, files := map[string]bool{}, 0
	b.why = nil
	for _, why := range slices.Sorted(maps.Keys(places)) {
		for key := range places[why].services {
			kept[key] = true
		}
		files += len(places[why].files)
		b.why = append(b.why, fmt.Sprintf("%s (%d Services)", why, len(places[why].services)))
	}
	if decision == store.Keep {
		for key := range rest.services {
			kept[key] = true
		}
		files += len(rest.files)
		if n := len(rest.services); n != b.counted { // others may come and go, and it stays the same problem
			b.counted, b.ofTotal = n, r.Total
		}
		b.why = append(b.why, fmt.Sprintf("%d of %d Services are in no manifest any more, or none of their endpoints is", b.counted, b.ofTotal))
	} else {
		b.counted = 0
	}
	b.held, b.objects = len(kept), files
	return func(file string) store.Decision {
		if rest.files[file] {
			return decision
		}
		return store.Keep
	}
}

// sort finds the files that are held for the sake of their directories, by the reason, and
// all others.
func (b *RemovalGuard) sort(r store.Removals) (places map[string]*group, rest, all group) {
	places = map[string]*group{}
	for file, services := range r.Files {
		all.add(file, services)
		why := b.place(file)
		if why == "" {
			rest.add(file, services)
			continue
		}
		if places[why] == nil {
			places[why] = &group{}
		}
		places[why].add(file, services)
	}
	return places, rest, all
}

// place returns why objects that vanished from the directory of a file are kept; "" when they are not.
func (b *RemovalGuard) place(file string) string {
	i := slices.IndexFunc(b.sources, func(s watch.Source) bool { return isBelow(file, s.Dir) })
	if i < 0 {
		why := fmt.Sprintf("%s is in no directory that is watched now", filepath.Dir(file))
		for _, s := range b.sources {
			if s.State == watch.StateUnavailable {
				why += fmt.Sprintf(", and %s is unavailable", s.Dir)
			}
		}
		return why
	}
	switch s := b.sources[i]; {
	case s.State == watch.StateUnavailable:
		return fmt.Sprintf("directory %s is unavailable", s.Dir)
	case s.Files == 0:
		return fmt.Sprintf("directory %s has no manifests any more", s.Dir)
	}
	return ""
}

// count decides, by their number, on Services that vanished from directories that are available.
func (b *RemovalGuard) count(r store.Removals, rest *group, affected int, now time.Time) store.Decision {
	b.passed = slices.DeleteFunc(b.passed, func(p passage) bool { return now.Sub(p.at) >= brake.Step })
	recent := 0
	for _, p := range b.passed {
		recent += p.services
	}
	n := len(rest.services)
	gone, of := recent+n, recent+r.Total
	switch {
	case brake.Accident(gone, of, n > 0 && affected >= r.Declared), b.most > 0 && brake.Remains(n, b.most):
		b.most = max(b.most, n)
		b.over()
		return store.Keep
	case gone <= brake.Few, b.waiting == n && !now.Before(b.decides), b.waiting > 0 && !now.Before(b.since.Add(removalMost)):
		b.most = 0
		b.pass(n, now)
		return store.Remove
	}
	if b.waiting == 0 {
		b.since = now
		b.batch++
	}
	if b.waiting != n {
		b.waiting, b.decides = n, now.Add(removalQuiet)
		if last := b.since.Add(removalMost); last.Before(b.decides) {
			b.decides = last
		}
	}
	b.most = 0
	return store.Wait
}

// pass records that so many Services are removed.
func (b *RemovalGuard) pass(services int, now time.Time) {
	if services > 0 {
		b.passed = append(b.passed, passage{now, services})
	}
	if b.released {
		b.passed = nil // what comes next is another step
	}
	b.over()
}

// over ends a wait.
func (b *RemovalGuard) over() { b.waiting = 0 }

// Failed undoes the last decision, as the store did not take the files.
func (b *RemovalGuard) Failed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removalState = b.before
	b.publish()
}

// publish makes the number of the wait readable without the lock.
func (b *RemovalGuard) publish() {
	b.current.Store(0)
	if b.waiting > 0 {
		b.current.Store(b.batch)
	}
}

// pending returns the number of the wait that is under way, by which its end is recognized; 0: none
// is. It may be called at any time.
func (b *RemovalGuard) pending() uint64 { return b.current.Load() }

// settled is the last wait that is over.
func (b *RemovalGuard) settled() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting > 0 {
		return b.batch - 1
	}
	return b.batch
}

// until returns the time at which a decision is due, if one is.
func (b *RemovalGuard) until() (at time.Time, needed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.decides, b.waiting > 0
}

// look takes the states of the directories, before files of them are stored.
func (b *RemovalGuard) look(sources []watch.Source) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sources = sources
}

// counts are the Services that are held, and those that are not decided upon.
func (b *RemovalGuard) counts() (held, waiting int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held, b.waiting
}

// release makes the next decision end all holds, and returns how many Services and files are held.
func (b *RemovalGuard) release() (services, files int, engaged bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.engaged() {
		return 0, 0, false
	}
	b.released = true
	return b.held, b.objects, true
}

// engaged reports whether something is held. mu must be held.
func (b *RemovalGuard) engaged() bool { return len(b.why) > 0 }

// problem returns the problem of the status while removals are held; false: none are.
func (b *RemovalGuard) problem() (p manifest.Problem, engaged bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.engaged() {
		return p, false
	}
	return manifest.Problem{Reason: reasonMassRemoval, Message: strings.Join(b.why, "; ") + "; as that may be an accident, they stay in force: " +
		"put the files back (or correct --manifests), or confirm with `svcctl confirm --removals` that they are to go"}, true
}

// isBelow reports whether a file is in a directory or below it.
func isBelow(file, dir string) bool {
	rel, err := filepath.Rel(dir, file)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// Foresee returns a guard that decides at a time as this one would, if a watched directory had so many files. It
// changes nothing; what would be waited for is over.
func (b *RemovalGuard) Foresee(dir string, files int, now time.Time) store.RemovalGuard {
	b.mu.Lock()
	defer b.mu.Unlock()
	copied := &RemovalGuard{off: b.off, sources: slices.Clone(b.sources), removalState: b.removalState}
	copied.passed, copied.why = slices.Clone(b.passed), slices.Clone(b.why)
	for i := range copied.sources {
		if copied.sources[i].Dir == dir {
			copied.sources[i].Files = files
		}
	}
	return func(r store.Removals) func(string) store.Decision {
		decide := copied.Hold(r, now)
		return func(file string) store.Decision {
			if decide(file) == store.Keep {
				return store.Keep
			}
			return store.Remove
		}
	}
}
