package reconcile

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/watch"
)

// reasonMassRemoval is the reason of the problem that many Services vanished at once.
const reasonMassRemoval = "MassRemovalHeld"

const (
	// Up to fewRemovals Services may vanish whatever their part is.
	fewRemovals = 10
	// What vanishes within removalStep is one step: a directory is not deleted at once.
	removalStep = 10 * time.Second
	// When more than a few vanish, the rest of them is waited for as long as they keep
	// vanishing: nothing more is seen for removalQuiet.
	removalQuiet = 500 * time.Millisecond
)

// RemovalGuard keeps Services in force that vanish from the manifests in such numbers that it
// looks like an accident: a directory emptied by a script, a checkout that failed, a volume
// that was unmounted. What else changes goes on.
type RemovalGuard struct {
	off bool

	passed   []passage // of the last removalStep
	waiting  int       // Services that vanish but are not decided upon; 0: none
	decides  time.Time // when they are
	held     int       // Services that are kept in force, while the brake is engaged
	engaged  bool
	why      string   // while it is engaged
	emptied  []string // directories without manifests
	released bool     // the next decision is to let go
}

// NewRemovalGuard makes a guard; off lets everything go at once (--allow-mass-removal).
func NewRemovalGuard(off bool) *RemovalGuard { return &RemovalGuard{off: off} }

// passage is a removal that was let through.
type passage struct {
	at       time.Time
	services int
}

// massRemoval reports whether the loss of so many of so many Services looks like an accident.
func massRemoval(gone, of int) bool { return gone > fewRemovals && 2*gone > of }

// Hold is store.Config.Hold.
func (b *RemovalGuard) Hold(r store.Removals, now time.Time) bool {
	recent := 0
	kept := b.passed[:0]
	for _, p := range b.passed {
		if now.Sub(p.at) < removalStep {
			kept = append(kept, p)
			recent += p.services
		}
	}
	b.passed = kept
	gone, of := recent+r.Services, recent+r.Total
	emptied := b.emptiedBy(r)
	switch {
	case len(r.Files) == 0, b.off, b.released:
		return b.pass(r, now)
	case emptied != "":
		return b.engage(r, fmt.Sprintf("directory %s has no manifests any more", emptied))
	case massRemoval(gone, of), b.engaged && r.Services > fewRemovals:
		return b.engage(r, fmt.Sprintf("%d of %d Services are in no manifest any more", r.Services, r.Total))
	case gone <= fewRemovals, b.waiting == r.Services && !now.Before(b.decides):
		return b.pass(r, now)
	}
	if b.waiting != r.Services {
		b.waiting, b.decides = r.Services, now.Add(removalQuiet)
	}
	b.held, b.engaged = 0, false
	return true
}

func (b *RemovalGuard) pass(r store.Removals, now time.Time) bool {
	if r.Services > 0 {
		b.passed = append(b.passed, passage{now, r.Services})
	}
	if b.released {
		b.passed = nil // what comes next is another step
	}
	b.waiting, b.held, b.engaged, b.released = 0, 0, false, false
	return false
}

func (b *RemovalGuard) engage(r store.Removals, why string) bool {
	if !b.engaged || b.held != r.Services { // others may come and go, and it stays the same problem
		b.why = why
	}
	b.waiting, b.held, b.engaged = 0, r.Services, true
	return true
}

// look notes which of the watched directories hold no manifest.
func (b *RemovalGuard) look(sources []watch.Source) {
	b.emptied = b.emptied[:0]
	for _, s := range sources {
		if s.Files == 0 {
			b.emptied = append(b.emptied, s.Dir)
		}
	}
}

// emptiedBy is the directory that has no manifests left after a removal, if one has not.
func (b *RemovalGuard) emptiedBy(r store.Removals) string {
	for _, dir := range b.emptied {
		for file := range r.Files {
			if strings.HasPrefix(file, dir+string(filepath.Separator)) {
				return dir
			}
		}
	}
	return ""
}

// until is when a decision is due, if one is.
func (b *RemovalGuard) until() (at time.Time, needed bool) { return b.decides, b.waiting > 0 }

// problem is what the status says while the brake is engaged.
func (b *RemovalGuard) problem() (p manifest.Problem, engaged bool) {
	if !b.engaged {
		return p, false
	}
	return manifest.Problem{Reason: reasonMassRemoval, Message: b.why + "; as that may be an accident, they stay in force: " +
		"put the files back, or confirm with `svcctl release` that they are to go"}, true
}
