package announce

import "context"

// judge passes the health of this box and the addresses to advertise to the election.
func (a *announcer) judge() {
	if a.election == nil {
		return
	}
	unwell := len(missing(a.segments.links, a.l2())) > 0 || a.serve.isStale()
	for _, l := range meant(a.segments.links, a.l2(), a.answerable()) {
		unwell = unwell || !l.Carrier
	}
	a.adverts.complete(a.listed())
	a.election.set(unwell, a.adverts.listed())
}

// elected follows the election.
func (a *announcer) elected() {
	answers, master, assert := a.election.outcome()
	another := a.master != master
	if another {
		a.master = master
		a.reports.everything() // it is told with each address
	}
	a.reports.soon()
	a.setPassive(!answers)
	if another && master.IsValid() && !answers {
		for _, p := range a.segments.ports {
			p.Verify()
		}
	}
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
}

// setDrained hands all addresses over, or takes part again. Without an election no other box takes over on
// segments: the addresses are left. An address that is followed is moved by the program that gives it.
func (a *announcer) setDrained(drained bool) {
	if a.drained == drained {
		return
	}
	a.drained = drained
	a.file.everything()
	a.log.Info("this box is drained, or is no more", "drained", drained)
	if a.election != nil && drained {
		a.election.leave(handOver)
	} else if a.election != nil {
		a.election.join()
	}
	a.peers.setDrained(drained)
	for addr := range a.wanted {
		a.place(addr)
	}
	a.reports.everything()
}

// onSegments reports whether addresses are placed on segments: whether they are answered there is decided
// by the election, if there is one.
func (a *announcer) onSegments() bool {
	return !a.drained || a.election != nil || a.cfg.Follow.IsValid()
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
