package announce

import (
	"net/netip"
	"time"
)

// How long a route that was withdrawn stays away: each time that it comes and goes twice as long, and
// as at first when it stayed for a minute.
const (
	firstPause = time.Second
	lastPause  = time.Minute
	calm       = time.Minute
)

// damper decides when routes that were withdrawn may come back, so that an endpoint that flaps does not have all
// routers compute anew again and again. It is told the time.
type damper struct {
	flaps   map[netip.Prefix]flap
	sweepAt int // at how many flaps old ones are forgotten
}

// flap is the last withdrawal of a route.
type flap struct {
	pause time.Duration
	back  time.Time // when the route may come back
}

func newDamper() damper { return damper{map[netip.Prefix]flap{}, 64} }

// withdrawn notes that a route was withdrawn.
func (d *damper) withdrawn(route netip.Prefix, now time.Time) {
	f := d.flaps[route]
	if f.pause = min(2*f.pause, lastPause); f.pause == 0 || f.isOver(now) {
		f.pause = firstPause
	}
	f.back = now.Add(f.pause)
	d.flaps[route] = f
	if len(d.flaps) < d.sweepAt {
		return
	}
	for other, f := range d.flaps {
		if f.isOver(now) {
			delete(d.flaps, other)
		}
	}
	d.sweepAt = 2*len(d.flaps) + 64
}

// isOver reports whether a flap counts for nothing any more.
func (f flap) isOver(now time.Time) bool { return now.Sub(f.back) > calm }

// notBefore returns the time from which a route may come back; in the past for one that may be there.
func (d *damper) notBefore(route netip.Prefix) time.Time { return d.flaps[route].back }
