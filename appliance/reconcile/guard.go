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

// reasonMassRemoval is the Reason of the problem that removals are held because they look like an accident.
const reasonMassRemoval = "MassRemovalHeld"

const (
	// If several Services vanish, the decision about their removal waits until no further Service has vanished for the duration removalQuiet, but no
	// longer than removalMost.
	removalQuiet = 500 * time.Millisecond
	removalMost  = 2 * time.Second
)

// RemovalGuard holds removals of objects that look like an accident: most Services, or all of their endpoints, vanish from the manifests at once; or
// a manifest directory was emptied, is unavailable, or is no longer configured. Other changes are applied meanwhile. Its methods may be called
// concurrently, since in a fleet the loop is not the only goroutine that stores files.
type RemovalGuard struct {
	off bool // --allow-mass-removal: hold nothing

	mu      sync.Mutex
	sources []watch.Source

	removalState
	before  removalState  // state before the last decision, see Failed
	current atomic.Uint64 // batch while a wait is under way, else 0; read without mu by pending
}

// removalState is the part of a RemovalGuard that a decision changes. Failed restores the state before the decision.
type removalState struct {
	passed   []passage // recent removals that were not held; they count in the next decision
	batch    uint64    // serial number of the wait under way, or of the last one
	waiting  int       // number of vanished Services for which the decision is pending; 0 if no wait is under way
	since    time.Time // when the wait began
	decides  time.Time // when the wait ends with a decision
	most     int       // largest number of Services held at once for their number; 0 if none are
	why      []string  // reasons why removals are held; empty if none are
	held     int       // number of Services that are held
	counted  int       // number of Services that are held because they are many
	ofTotal  int       // total number of Services when counted was set
	objects  int       // number of files with held objects
	released bool      // release was called, so that the next decision holds nothing
}

// passage is a removal of Services that was permitted without being held.
type passage struct {
	at       time.Time
	services int
}

// group is a set of files, and of the Services that vanished with them, with a common reason.
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

// NewRemovalGuard returns a RemovalGuard. If off is set (--allow-mass-removal), it holds nothing.
func NewRemovalGuard(off bool) *RemovalGuard { return &RemovalGuard{off: off} }

// Hold implements store.RemovalGuard for removals at the time now. It returns a function with the decision for each file.
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

// sort groups the files of removals. places holds, by reason, the files whose removals are held because of their directory. rest holds the other
// files, and all holds both.
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

// place returns the reason why removals of a file are held because of its directory, or "" if they are not.
func (b *RemovalGuard) place(file string) string {
	i := slices.IndexFunc(b.sources, func(s watch.Source) bool { return IsBelow(file, s.Dir) })
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

// count decides about the removal of the Services in rest by their number. They vanished from directories that are available. affected is the number
// of all vanished Services.
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

// pass records that a number of Services is removed without being held, and ends the wait.
func (b *RemovalGuard) pass(services int, now time.Time) {
	if services > 0 {
		b.passed = append(b.passed, passage{now, services})
	}
	if b.released {
		b.passed = nil // what comes next is another step
	}
	b.over()
}

// over ends the wait for further removals, because a decision was made.
func (b *RemovalGuard) over() { b.waiting = 0 }

// Failed restores the state from before the last decision. It is called if the decision could not be stored.
func (b *RemovalGuard) Failed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removalState = b.before
	b.publish()
}

// publish stores the serial number of the present wait in b.current, 0 if there is none, so that pending can read it without locking mu.
func (b *RemovalGuard) publish() {
	b.current.Store(0)
	if b.waiting > 0 {
		b.current.Store(b.batch)
	}
}

// pending returns the serial number of the wait under way, 0 if there is none. It does not lock mu.
func (b *RemovalGuard) pending() uint64 { return b.current.Load() }

// settled returns the serial number of the last wait that has ended.
func (b *RemovalGuard) settled() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting > 0 {
		return b.batch - 1
	}
	return b.batch
}

// until returns the time at which the wait under way ends. needed is false if no wait is under way.
func (b *RemovalGuard) until() (at time.Time, needed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.decides, b.waiting > 0
}

// look records the states of the manifest directories. It is called before the files of these directories are stored.
func (b *RemovalGuard) look(sources []watch.Source) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sources = sources
}

// counts returns the number of held Services, and the number of Services for which a decision is pending.
func (b *RemovalGuard) counts() (held, waiting int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held, b.waiting
}

// release makes the next decision hold nothing. It returns the numbers of Services and files that were held, with engaged false if there were none.
func (b *RemovalGuard) release() (services, files int, engaged bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.engaged() {
		return 0, 0, false
	}
	b.released = true
	return b.held, b.objects, true
}

// engaged reports whether any removals are held. The caller must hold mu.
func (b *RemovalGuard) engaged() bool { return len(b.why) > 0 }

// problem returns the problem to report while removals are held. engaged is false if none are.
func (b *RemovalGuard) problem() (p manifest.Problem, engaged bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.engaged() {
		return p, false
	}
	return manifest.Problem{Reason: reasonMassRemoval, Message: strings.Join(b.why, "; ") + "; as that may be an accident, they stay in force: " +
		"put the files back (or correct --manifests), or confirm with `svcctl confirm --removals` that they are to go"}, true
}

// IsBelow reports whether a file is in a directory or one of its subdirectories. It compares only the path names.
func IsBelow(file, dir string) bool {
	rel, err := filepath.Rel(dir, file)
	return err == nil && filepath.IsLocal(rel)
}

// Foresee returns a copy of the guard that decides as this one would at now if the watched directory dir contained the given number of files. The
// copy permits a removal at once where this guard would wait.
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
