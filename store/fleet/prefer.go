package fleet

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// A leaf that had to leave a core box goes back to it when that has answered for a while. Without that, a restart of each core box, one
// after the other, would end with all leaves at one of them.

const (
	// probeEvery is the interval at which a leaf asks the core boxes that it prefers to the one that it follows.
	probeEvery = 10 * time.Second
	// returnAfter is how long such a core box has to answer each probe before a leaf goes back, and up to twice as long, by a hash of
	// the name of the leaf: those of one core box do not come back together.
	returnAfter = time.Minute
	// mostReturn bounds that time where it grows, see coreSelector.left.
	mostReturn = time.Hour
	// settled is, in such times, how long a core box has to serve after a return for the next one to be as quick.
	settled = 10
)

// coreSelector decides when a leaf goes back to a core box that it prefers to the one that it asks. Core boxes are numbers, from 0, which
// it prefers most. Times are the caller's.
type coreSelector struct {
	least, most time.Duration // the bounds of the time for which a core box has to answer
	cores       []preferred
}

// preferred is the record of a core box that the leaf prefers.
type preferred struct {
	since time.Time     // since when it has answered each probe; zero: it has not answered the last one
	wait  time.Duration // for how long it has to
	back  time.Time     // when the leaf went back to it; zero: it came here in another way
}

// newCoreSelector returns that of a leaf. The times above are divided by pace.
func newCoreSelector(leaf string, cores int, pace time.Duration) coreSelector {
	sum := sha256.Sum256([]byte(leaf))
	share := float64(binary.BigEndian.Uint32(sum[:])) / (1 << 32)
	least := returnAfter + time.Duration(share*float64(returnAfter))
	p := coreSelector{least: least / pace, most: mostReturn / pace, cores: make([]preferred, cores)}
	for i := range p.cores {
		p.cores[i].wait = p.least
	}
	return p
}

// probed notes whether a core box that the leaf does not follow has answered.
func (p *coreSelector) probed(core int, answered bool, now time.Time) {
	switch c := &p.cores[core]; {
	case !answered:
		c.since = time.Time{}
	case c.since.IsZero():
		c.since = now
	}
}

// better returns the core box to go back to from another one, if there is any.
func (p *coreSelector) better(at int, now time.Time) (core int, is bool) {
	for i := range at {
		if c := &p.cores[i]; !c.since.IsZero() {
			return i, now.Sub(c.since) >= c.wait // not first to one that is preferred less, and then to this one
		}
	}
	return 0, false
}

// returned notes that the leaf went back to a core box.
func (p *coreSelector) returned(core int, now time.Time) {
	p.cores[core].back = now
}

// left notes that a core box does not serve. One that fails soon after the return has to answer for twice as long before the next one.
func (p *coreSelector) left(core int, now time.Time) {
	c := &p.cores[core]
	switch {
	case c.back.IsZero():
	case now.Sub(c.back) < settled*c.wait:
		c.wait = min(2*c.wait, p.most)
	default:
		c.wait = p.least
	}
	c.since, c.back = time.Time{}, time.Time{}
}
