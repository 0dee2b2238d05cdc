package appliance

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/pending"
)

// changes serves the API operations for trials, rollbacks and exports of the store. Changes that affect manifest files run in the loop,
// which holds the content of the files.
type changes struct{ *assembly }

func (c changes) endpoints() []api.Endpoint {
	return []api.Endpoint{
		api.Answer(wire.BeginTrial, c.begin),
		api.Answer(wire.ConfirmTrial, func(r *http.Request, _ wire.None) (wire.Trial, error) {
			t, err := c.confirm(r.Context(), "")
			if err == nil {
				c.log.Info("the trial is confirmed", "objects", len(t.Objects), "files", len(t.Files), "user", api.UserOf(r))
			}
			return t, err
		}),
		api.Answer(wire.EndTrial, func(r *http.Request, q wire.EndQuery) (wire.Trial, error) { return c.confirm(r.Context(), q.ID) }),
		api.Answer(wire.UndoTrial, c.undo),
		api.Answer(wire.Rollback, c.rollback),
		api.Handle(wire.Export.Operation, c.export),
	}
}

// inLoop calls `do` between two iterations of the loop, and returns after the next iteration. In a fleet it calls `do` at once, with the zero
// manifest.Files.
func (c changes) inLoop(ctx context.Context, do func(manifest.Files) error) error {
	if c.member != nil { // it waits for etcd, and is about no files
		return failureOf(do(manifest.Files{}))
	}
	done := make(chan error, 1)
	failed, err := ask(ctx, c.requests.loop, reconcile.Trial(do, done), done)
	if err != nil {
		return err
	}
	return failureOf(failed)
}

// failureOf converts an error of the store to an error for clients of the API.
func failureOf(err error) error {
	if newer, is := errors.AsType[*store.NewerChangeError](err); is {
		return wire.Conflict("%v; `svcctl journal` shows what came since", newer)
	}
	var other *pending.StagedError
	switch away := (*engine.AwayError)(nil); {
	case errors.Is(err, pending.ErrNoTimed):
		return wire.Conflict("nothing waits to be confirmed: the trial is over, or there was none (`svcctl journal` lists what was undone)")
	case errors.Is(err, pending.ErrFilesHeld), errors.Is(err, pending.ErrTimedOver), errors.Is(err, pending.ErrFilesShared),
		errors.As(err, &other), errors.Is(err, pending.ErrAlone), errors.Is(err, pending.ErrNoStaged), errors.Is(err, pending.ErrMoved):
		return wire.Conflict("%v", err)
	case errors.Is(err, store.ErrNoChange):
		return wire.NotFound("%v", store.ErrNoChange)
	case errors.Is(err, store.ErrExpired):
		return wire.NewFailure(http.StatusGone, wire.ReasonExpired, "the journal does not reach back so far: `svcctl journal --limit 10000` shows what it has")
	case errors.As(err, &away), errors.Is(err, engine.ErrNoSpace):
		return wire.Unavailable("nothing was changed: %v", err)
	}
	return err
}

// begin begins a trial, or changes the end of the running one.
func (c changes) begin(r *http.Request, q wire.TrialQuery) (t wire.Trial, err error) {
	ctx, user := r.Context(), api.UserOf(r)
	if q.Files {
		// What the directories have at the call was there before the trial.
		if err := c.requests.rescan(ctx); err != nil {
			return t, err
		}
	}
	err = c.inLoop(ctx, func(manifest.Files) error {
		_, err := c.store.BeginTimed(rand.Text(), user, q.Files, q.For, deadline.Now())
		return err
	})
	if err != nil {
		return t, err
	}
	state, is := c.store.Pending(pending.Timed)
	if !is {
		return t, failureOf(pending.ErrNoTimed)
	}
	t = *reconcile.TrialStatus(&state, deadline.Now())
	c.log.Info("a trial has begun: its changes are undone unless confirmed", "ends", t.Ends, "files", t.CoversFiles, "user", user)
	return t, nil
}

// confirm ends the trial and keeps its changes. If unchanged is the ID of a trial, it does so only if that trial is running and has no
// change.
func (c changes) confirm(ctx context.Context, unchanged string) (t wire.Trial, err error) {
	if err := c.store.Fresh(ctx); err != nil { // another box may have begun it just now
		return t, failureOf(err)
	}
	err = c.inLoop(ctx, func(manifest.Files) error {
		state, err := c.store.Confirm(unchanged)
		if err == nil {
			t = *reconcile.TrialStatus(&state, deadline.Now())
		}
		return err
	})
	return t, err
}

// undo ends the trial and reverts its changes.
func (c changes) undo(r *http.Request, _ wire.None) (b wire.RolledBack, err error) {
	if err := c.store.Fresh(r.Context()); err != nil {
		return b, failureOf(err)
	}
	err = c.inLoop(r.Context(), func(files manifest.Files) error {
		revived, err := c.store.GoBack(files)
		b.Objects = revivedOf(revived)
		return err
	})
	if err == nil {
		c.log.Info("the trial was undone", "objects", len(b.Objects), "user", api.UserOf(r))
	}
	return b, err
}

// rollback restores objects as they were at a revision, or reverts the last changes.
func (c changes) rollback(r *http.Request, q wire.RollbackQuery) (wire.RolledBack, error) {
	if now, _ := c.store.Revisions(); q.Revision > now {
		return wire.RolledBack{}, wire.BadRequest("revision %d is not there yet: the newest one is %d", q.Revision, now)
	}
	by := store.Caller{User: api.UserOf(r), Manager: "svcctl", Agent: r.UserAgent(), Trial: q.Trial}
	b, err := c.store.Rollback(store.Rollback{Revision: q.Revision, Last: q.Last, By: by, DryRun: q.DryRun != ""})
	if err != nil {
		return wire.RolledBack{}, failureOf(err)
	}
	if q.DryRun == "" {
		c.log.Info("rolled back", "revision", b.Revision, "objects", len(b.Objects), "user", by.User)
	}
	return wire.RolledBack{Revision: b.Revision, Last: b.Last, DryRun: q.DryRun != "", Objects: revivedOf(b.Objects)}, nil
}

// export writes the whole content of the store as lines of JSON. An incomplete export lacks the last line, so that a reader detects it.
func (c changes) export(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/jsonl")
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodHead {
		return
	}
	c.log.Info("everything that is stored is exported", "user", api.UserOf(r))
	if err := c.store.Export(w, c.cfg.Version); err != nil {
		c.log.Warn("an export was not finished", "err", err)
		panic(http.ErrAbortHandler) // the client sees that the answer is cut
	}
}

func revivedOf(all []store.Revived) []wire.Revived {
	list := make([]wire.Revived, len(all))
	for i, r := range all {
		list[i] = wire.Revived{Object: r.Ref.String(), Did: r.Did, Why: r.Why}
	}
	return list
}

// Restore replaces the content of the data directory with an export, and returns the number of objects and the revision. No process may
// serve from the directory. Unless replace is set, it refuses a directory with Services. keyFile is the file of the encryption key, "" for
// none. As root it writes as the owner of the directory. On an error nothing has changed.
func Restore(dataDir, keyFile string, export io.Reader, replace bool) (objects int, revision uint64, err error) {
	var header store.ExportHeader
	key, err := dataKey(keyFile)
	if err != nil {
		return 0, 0, err
	}
	err = engine.AsOwner(dataDir, func() error {
		e, err := engine.OpenFile(dataDir, key)
		if err != nil {
			return err
		}
		header, err = store.Import(e, export, replace)
		return errors.Join(err, e.Close())
	})
	return header.Objects, header.Revision, err
}

// IsNotEmpty reports whether an error of Restore means that the directory has Services already.
func IsNotEmpty(err error) bool { return errors.Is(err, store.ErrNotEmpty) }

// The end of a trial in a fleet. Going back is a commit, which the box with the turn makes. A change that cuts a box
// off from etcd must not stay in force there for good, so a box without the outcome of a trial whose time
// is over programs the state before the trial, from a copy of the objects, until it has the outcome. That is as sound as any other
// state of a box that is cut off: the fleet had it, and it allocates nothing.

const (
	// trialPollInterval is the interval at which an ended trial is checked again, because no event may announce that this box now runs the
	// controllers of the fleet, or that etcd is back.
	trialPollInterval = time.Second
	// trialPatience is how long a box leaves the rollback of an ended trial to the box that runs the controllers of the fleet.
	trialPatience = 10 * time.Second
)

// previousView gives the loop of this box a copy of the store without the changes of a trial. It is used when the trial has ended, but its
// rollback is not stored in the fleet yet.
type previousView struct {
	pools *objectPools
	back  atomic.Pointer[store.Store] // nil: the store itself is in force
}

// objects returns the copy that is in force instead of the store; nil if the store itself is in force.
func (h *previousView) objects() *store.Store { return h.back.Load() }

// hold puts a copy of the store into force on this box, with the trial rolled back.
func (h *previousView) hold(m *member) error {
	back, _, err := m.store.Fork()
	if err != nil {
		return err
	}
	if _, err := back.GoBack(manifest.Files{}); err != nil {
		return err
	}
	made, err := controllersOf(*m.cfg, back, control.NewEndpoints(m.cfg.EndpointsFacts(), back))
	if err != nil {
		return err
	}
	h.pools.hold(made.plan)
	h.back.Store(back)
	return nil
}

// release puts the store itself back into force. It reports whether a copy was in force.
func (h *previousView) release() bool {
	if h.back.Swap(nil) == nil {
		return false
	}
	h.pools.release()
	return true
}

// endTrials rolls back expired trials until ctx is done.
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

// checkTrial rolls back an expired trial. If the rollback cannot be stored, it puts the objects from before the trial into force on this
// box alone.
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

// goBack rolls the trial back in the store of the fleet. It does nothing if another box already rolled it back or confirmed it.
func (m *member) goBack() error {
	revived, err := m.store.GoBack(manifest.Files{})
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

// holdBack puts the objects from before the trial into force on this box alone. why is the reason for the log; nil means that this box has
// no connection to its fleet.
func (m *member) holdBack(why error) {
	if m.held.objects() != nil {
		return
	}
	why = cmp.Or(why, errors.New("this box has no connection to its fleet"))
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

// showStore puts the objects of the store back into force on this box, if a copy was in force.
func (m *member) showStore() {
	if m.held.release() {
		m.log.Info("what became of the trial is known, and in force")
		m.wakeLoop()
	}
}

// wakeLoop wakes the reconcile loop. It does nothing before the loop exists.
func (m *member) wakeLoop() {
	if wake := m.wake.Load(); wake != nil {
		(*wake)()
	}
}
