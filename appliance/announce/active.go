package announce

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// judge tells the election how well this box is.
func (a *announcer) judge() {
	if a.election == nil {
		return
	}
	unwell := len(missing(a.segments.links, a.cfg.L2)) > 0 || !a.lost.IsZero() && time.Since(a.lost) >= stale
	for _, l := range meant(a.segments.links, a.cfg.L2, a.ranges) {
		unwell = unwell || !l.Carrier
	}
	a.election.set(unwell, slices.SortedFunc(maps.Keys(a.wanted), netip.Addr.Compare))
}

// elected follows the election.
func (a *announcer) elected() {
	answers, master, assert := a.election.outcome()
	if a.master != master {
		a.master = master
		a.reports.everything() // it is told with each address
	}
	a.setPassive(!answers)
	if assert && answers {
		for _, p := range a.segments.ports {
			p.Refresh()
		}
	}
}

// setPassive leaves all addresses to another box, or takes them.
func (a *announcer) setPassive(passive bool) {
	a.passive = passive
	for _, p := range a.segments.ports {
		p.SetPassive(passive)
	}
	later(&a.save, savePause)
}

// leave begins to hand over: to the winner of the election, and to who else the peers have routes to.
func (a *announcer) leave(ctx context.Context) {
	if a.election != nil && !a.passive {
		a.election.leave(handOver)
	}
	a.peers.leave(ctx)
}

// hasLeft reports whether what leave began is over.
func (a *announcer) hasLeft() bool { return a.peers.left == nil && (a.election == nil || a.passive) }
