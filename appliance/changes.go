package appliance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
)

// changes is api.Changes: trials and rollbacks of the store. What is about files is done by the loop, which
// knows what they say.
type changes struct{ a *assembly }

// inLoop has the loop do something between two steps, and returns after the step that follows.
func (c changes) inLoop(ctx context.Context, do func(manifest.Files) error) error {
	if c.a.member != nil { // it waits for etcd, and is about no files
		return failureOf(do(nil))
	}
	done := make(chan error, 1)
	failed, err := ask(ctx, c.a.requests.trials, reconcile.TrialAsk{Do: do, Done: done}, done)
	if err != nil {
		return err
	}
	return failureOf(failed)
}

// failureOf turns an error of the store into the answer to a client.
func failureOf(err error) error {
	if newer, is := errors.AsType[*store.NewerChangeError](err); is {
		return wire.NewFailure(http.StatusConflict, wire.ReasonConflict, newer.Error()+"; `svcctl journal` shows what came since")
	}
	away := (*engine.AwayError)(nil)
	conflict := func(text string) error { return wire.NewFailure(http.StatusConflict, wire.ReasonConflict, text) }
	switch {
	case errors.Is(err, store.ErrNoTrial):
		return conflict("nothing waits to be confirmed: the trial is over, or there was none (`svcctl journal` lists what was undone)")
	case errors.Is(err, store.ErrFilesHeld), errors.Is(err, store.ErrTrialOver), errors.Is(err, store.ErrTrialInFleet):
		return conflict(err.Error())
	case errors.Is(err, store.ErrNoChange):
		return wire.NewFailure(http.StatusNotFound, wire.ReasonNotFound, store.ErrNoChange.Error())
	case errors.Is(err, store.ErrExpired):
		return wire.NewFailure(http.StatusGone, wire.ReasonExpired, "the journal does not reach back so far: `svcctl journal --limit 10000` shows what it has")
	case errors.As(err, &away):
		return wire.NewFailure(http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, "nothing was changed: "+away.Error())
	case errors.Is(err, engine.ErrNoSpace):
		return wire.NewFailure(http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, "nothing was changed: "+err.Error())
	}
	return err
}

// Begin implements api.Changes.
func (c changes) Begin(ctx context.Context, user string, files bool, after time.Duration) (wire.Trial, error) {
	if files {
		// What the directories say by now was there before the trial.
		if err := c.a.requests.rescan(ctx); err != nil {
			return wire.Trial{}, err
		}
	}
	err := c.inLoop(ctx, func(manifest.Files) error {
		_, err := c.a.store.BeginTrial(rand.Text(), user, files, after, deadline.Now())
		return err
	})
	if err != nil {
		return wire.Trial{}, err
	}
	state, is := c.a.store.Trial()
	if !is {
		return wire.Trial{}, failureOf(store.ErrNoTrial)
	}
	return *reconcile.TrialStatus(&state, deadline.Now()), nil
}

// Confirm implements api.Changes.
func (c changes) Confirm(ctx context.Context, unchanged string) (t wire.Trial, err error) {
	if err := c.a.store.Fresh(ctx); err != nil { // another box may have begun it just now
		return t, failureOf(err)
	}
	err = c.inLoop(ctx, func(manifest.Files) error {
		state, err := c.a.store.Confirm(unchanged)
		if err == nil {
			t = *reconcile.TrialStatus(&state, deadline.Now())
		}
		return err
	})
	return t, err
}

// Back implements api.Changes.
func (c changes) Back(ctx context.Context) (b wire.RolledBack, err error) {
	if err := c.a.store.Fresh(ctx); err != nil {
		return b, failureOf(err)
	}
	err = c.inLoop(ctx, func(files manifest.Files) error {
		revived, err := c.a.store.GoBack(files)
		b.Objects = revivedOf(revived)
		return err
	})
	return b, err
}

// Rollback implements api.Changes.
func (c changes) Rollback(_ context.Context, q wire.RollbackQuery, user, agent string) (wire.RolledBack, error) {
	if now, _ := c.a.store.Revisions(); q.Revision > now {
		return wire.RolledBack{}, wire.NewFailure(http.StatusBadRequest, wire.ReasonBadRequest, fmt.Sprintf("revision %d is not there yet: the newest one is %d", q.Revision, now))
	}
	by := store.Caller{User: user, Manager: "svcctl", Agent: agent, Trial: q.Trial}
	b, err := c.a.store.Rollback(store.Rollback{Revision: q.Revision, Last: q.Last, By: by, DryRun: q.DryRun != ""})
	if err != nil {
		return wire.RolledBack{}, failureOf(err)
	}
	return wire.RolledBack{Revision: b.Revision, Last: b.Last, DryRun: q.DryRun != "", Objects: revivedOf(b.Objects)}, nil
}

// Export implements api.Changes.
func (c changes) Export(w io.Writer) error { return c.a.store.Export(w, c.a.cfg.Version) }

func revivedOf(all []store.Revived) []wire.Revived {
	list := make([]wire.Revived, len(all))
	for i, r := range all {
		list[i] = wire.Revived{Object: r.Ref.String(), Did: r.Did, Why: r.Why}
	}
	return list
}

// Restore replaces the data directory by an export; no process may serve from it, and with Services in it replace
// must be set. It returns the number of objects and the revision. On an error nothing has changed. Root writes as
// the owner of the directory. keyFile has the key to encrypt it by, "" for none.
func Restore(dataDir, keyFile string, export io.Reader, replace bool) (objects int, revision uint64, err error) {
	var header store.ExportHeader
	key, err := dataKey(keyFile)
	if err != nil {
		return 0, 0, err
	}
	err = engine.AsOwner(dataDir, func() error {
		e, err := engine.OpenSealed(dataDir, key)
		if err != nil {
			return err
		}
		header, err = store.Import(e, export, replace)
		return errors.Join(err, e.Close())
	})
	return header.Objects, header.Revision, err
}

// IsNotEmpty reports whether Restore refused since there are Services already.
func IsNotEmpty(err error) bool { return errors.Is(err, store.ErrNotEmpty) }
