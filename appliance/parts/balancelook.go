package parts

import (
	"context"
	"slices"
	"time"

	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/feedback"
	"svcctl.io/svcctl/nft"
)

const (
	// lookAtLeast is the time from one look to the next; see conntrack.RestFor too.
	lookAtLeast = time.Second
	// lookAgain is the time until a look that failed is tried again.
	lookAgain = 5 * time.Second
)

// Run implements reconcile.Part.
func (b *Balance) Run(ctx context.Context, changed func()) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return b.sampler.Close()
		case <-b.kick:
		case <-timer.C:
		}
		grown := b.grow(time.Now())
		looked, told := b.lookIfDue(time.Now())
		if grown || looked || told {
			changed()
		}
		timer.Stop()
		if at := b.due(); !at.IsZero() {
			timer.Reset(time.Until(at))
		}
	}
}

// grow has the Services planned again whose endpoints get more weight, and reports whether there are any.
func (b *Balance) grow(now time.Time) (some bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, at := range b.ports {
		if !at.step.IsZero() && !now.Before(at.step) {
			at.step = now.Add(feedback.Step(at.over))
			b.again[at.service], some = true, true
		}
	}
	return some
}

// due returns the time of the next look or step; the zero Time: none.
func (b *Balance) due() (at time.Time) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	soonest := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	looks := false
	for _, p := range b.ports {
		soonest(p.step)
		looks = looks || p.hasTable()
	}
	if looks {
		soonest(b.next)
	}
	return at
}

func (at *balanced) hasTable() bool {
	return slices.ContainsFunc(at.pools[:], func(p *feedback.Pool) bool { return p != nil })
}

// lookIfDue looks at the open connections, if it is time for that. It reports whether Services are to be
// planned again, and whether Problems changed.
func (b *Balance) lookIfDue(now time.Time) (again, told bool) {
	b.mu.Lock()
	var list []*balanced
	var ports []*nft.ServicePort
	for _, at := range b.ports {
		if at.hasTable() {
			list, ports = append(list, at), append(ports, at.port)
		}
	}
	box, last := b.box, b.err
	due := !now.Before(b.next)
	b.mu.Unlock()
	if len(list) == 0 {
		if err := b.sampler.Close(); err != nil {
			b.log.Debug("close the connection tracking table", "err", err)
		}
		return false, b.tell(nil)
	}
	if !due {
		return false, false
	}
	err := b.sampler.Look(conntrack.NewAsked(&box, ports), func(t conntrack.Tracked) {
		list[t.Port].connections.See(t.Endpoint, t.ID, t.Ending)
	})
	took := time.Since(now)
	b.mu.Lock()
	b.next = now.Add(max(lookAtLeast, (conntrack.RestFor+1)*took))
	if err != nil {
		b.next = now.Add(lookAgain)
	}
	for _, at := range list {
		if err != nil {
			at.connections.Forget()
			continue
		}
		if b.evenOut(at, now) {
			b.again[at.service], again = true, true
		}
	}
	b.mu.Unlock()
	switch {
	case err != nil && last == nil:
		b.log.Warn("open connections are not counted; it is tried again", "err", err, "retry", lookAgain)
	case err == nil && last != nil:
		b.log.Info("open connections are counted again")
	}
	return again, b.tell(err)
}

// evenOut sets the slots of a port's tables by what a look found, and reports whether one changed. The caller
// holds mu.
func (b *Balance) evenOut(at *balanced, now time.Time) (changed bool) {
	counts, elapsed := at.connections.Done(), now.Sub(at.looked)
	at.looked = now
	if counts == nil {
		return false
	}
	for _, pool := range at.pools {
		if pool != nil && pool.Look(elapsed, counts) {
			changed = true
		}
	}
	return changed
}

// tell keeps what became of the last look, and reports whether that is news.
func (b *Balance) tell(err error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	news := (err == nil) != (b.err == nil)
	b.err = err
	return news
}
