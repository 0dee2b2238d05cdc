package watch

import (
	"sync/atomic"
	"time"
)

// Between two snapshots are at least paceLeast, in which several changes become one, and
// restFor times as long as the last one took, up to paceMost: making one costs a copy of
// the list of files. While a thousand files change in a second, one of them waits for
// little more than the disk, and all of them take half a CPU.
const (
	paceLeast = 4 * time.Millisecond
	paceMost  = 50 * time.Millisecond
	restFor   = 20
)

// publisher hands out snapshots, the newest one only.
type publisher struct {
	snapshots chan *Snapshot // of capacity one
	changed   bool           // since the last snapshot
	began     time.Time      // when the oldest change of a file that is in none was noticed; zero: there is none
	previous  *Snapshot      // nil: there was none
	next      time.Time      // not before
	published atomic.Uint64
}

// change notes that there is something for a snapshot, which began at a time.
func (p *publisher) change(began time.Time) {
	p.changed = true
	if p.began.IsZero() || began.Before(p.began) {
		p.began = began
	}
}

// due reports whether a snapshot is to be made.
func (p *publisher) due(now time.Time) bool { return p.changed && !now.Before(p.next) }

// publish hands out what make gives, if it differs from the snapshot before.
func (p *publisher) publish(make func() *Snapshot, now time.Time) {
	began := time.Now()
	next := make()
	next.Noticed = p.began
	p.changed, p.began = false, time.Time{}
	if p.previous != nil && next.equal(p.previous) {
		return
	}
	pace := min(paceMost, max(paceLeast, restFor*time.Since(began)))
	p.previous, p.next = next, now.Add(pace)
	p.published.Add(1)
	select { // Only this goroutine sends: after taking an unread one there is room.
	case unread := <-p.snapshots:
		if !unread.Noticed.IsZero() {
			next.Noticed = unread.Noticed
		}
	default:
	}
	p.snapshots <- next
}
