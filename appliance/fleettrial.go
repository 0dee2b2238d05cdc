package appliance

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/pending"
)

// The end of a trial in a fleet. Going back is a commit, which the box with the turn makes. A change that cuts a box
// off from etcd must not stay in force there for good, so a box without the outcome of a trial whose time
// is over programs the state before the trial, from a copy of the objects, until it has the outcome. That is as sound as any other
// state of a box that is cut off: the fleet had it, and it allocates nothing.

const (
	// trialPollInterval is the interval at which a trial that has ended is checked: the turn may arrive without an event, and etcd
	// may be away.
	trialPollInterval = time.Second
	// trialPatience is the time for which a box that follows its fleet leaves the rollback to the box with the turn.
	trialPatience = 10 * time.Second
)

// previousView has the store that is planned instead of the store itself while the outcome of a trial that has ended is
// not known.
type previousView struct {
	pools *objectPools
	back  atomic.Pointer[store.Store] // nil: the objects of the store are in force
}

// objects returns the store that is planned instead; nil: the objects of the store are in force.
func (h *previousView) objects() *store.Store { return h.back.Load() }

// hold puts into force, on this box, the objects as they will be when the trial is rolled back.
func (h *previousView) hold(m *member) error {
	back, _, err := m.store.Fork()
	if err != nil {
		return err
	}
	if _, err := back.GoBack(nil); err != nil {
		return err
	}
	made, err := controllersOf(*m.cfg, back)
	if err != nil {
		return err
	}
	h.pools.hold(made.plan)
	h.back.Store(back)
	return nil
}

// release puts the objects of the store into force again. It reports whether they were not.
func (h *previousView) release() bool {
	if h.back.Swap(nil) == nil {
		return false
	}
	h.pools.release()
	return true
}

// endTrials ends trials whose time is over.
func (m *member) endTrials(ctx context.Context) error {
	for ctx.Err() == nil {
		published, changed := m.store.Published(), m.engine.Changes()
		m.checkTrial()
		var ends <-chan time.Time
		if left, is := m.store.PendingLeft(pending.Timed); is {
			ends = time.After(max(left, trialPollInterval))
		}
		select {
		case <-ctx.Done():
		case <-ends:
		case <-published:
		case <-changed:
		}
	}
	return nil
}

// checkTrial rolls back a trial whose time is over, or puts the state before it into force on this box.
func (m *member) checkTrial() {
	if left, is := m.store.PendingLeft(pending.Timed); !is || left > 0 {
		m.over = time.Time{}
		m.showStore()
		return
	}
	if m.over.IsZero() {
		m.over = time.Now()
	}
	s := m.engine.State()
	switch held := m.held.objects() != nil; {
	case !s.Follows():
		m.holdBack(nil)
	case held || m.HasTurn() || time.Since(m.over) > trialPatience:
		if err := m.goBack(); err != nil && s.Kind == fleet.Following { // etcd is full, say
			m.holdBack(err)
		} else { // it is known, or it is under way and this box may not end it
			m.showStore()
		}
	}
}

// goBack takes a trial back for all boxes, unless another box was first, or has confirmed it.
func (m *member) goBack() error {
	revived, err := m.store.GoBack(nil)
	switch {
	case errors.Is(err, pending.ErrNoTimed):
		return nil
	case err != nil:
		m.log.Warn("the trial is over, and did not go back yet", "err", err)
		return err
	}
	m.log.Warn("the trial was not confirmed in time: it went back", "objects", len(revived))
	return nil
}

// holdBack has what was in force before the trial in force on this box alone.
func (m *member) holdBack(why error) {
	if m.held.objects() != nil {
		return
	}
	if why == nil {
		why = errors.New("this box has no connection to its fleet")
	}
	if err := m.held.hold(m); err != nil {
		if text := fmt.Sprint(err); text != m.notHeld {
			m.notHeld = text
			m.log.Error("the trial is over, and what was in force before cannot be put into force on this box", "err", err)
		}
		return
	}
	m.notHeld = ""
	m.log.Warn("the trial is over, and it is not known whether it was confirmed: what was in force before is in force on this box", "why", why)
	m.wakeLoop()
}

// showStore has the objects of the store in force.
func (m *member) showStore() {
	if m.held.release() {
		m.log.Info("what became of the trial is known, and in force")
		m.wakeLoop()
	}
}

// wakeLoop wakes the loop, once there is one.
func (m *member) wakeLoop() {
	if wake := m.wake.Load(); wake != nil {
		(*wake)()
	}
}
