package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/store/engine"
)

// committer makes the commits of this box.
type committer struct {
	follower
	applying  sync.Mutex // one bundle is applied at a time
	questions questions
}

// Commit implements engine.Engine. Pairs of this box alone go to the replica.
func (e *committer) Commit(t engine.Transaction) error {
	ops, revision, note, err := e.sharedPart(&t)
	if err != nil {
		return err
	}
	if revision != 0 || len(ops) > 0 {
		if err := e.origin.refusal(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
		defer cancel()
		err := e.commit(ctx, ops, revision, note, t.CompareRevision)
		if errors.Is(err, engine.ErrUnsettled) { // further commits are refused at once, until the origin answers
			e.mu.Lock()
			e.state.silent.write = &engine.AwayError{Why: fmt.Sprintf("%s has not answered the change before this one", e.origin.from())}
			e.mu.Unlock()
		}
		if err != nil {
			return err
		}
	}
	e.Keep(localPart(&t))
	if revision == 0 && len(ops) == 0 {
		return e.replica.flush() // alone, it is to be on disk when the call returns
	}
	return nil
}

// sharedPart returns the operations of a transaction on what boxes share, sealed, and the revision and note of its head.
func (e *committer) sharedPart(t *engine.Transaction) (ops []operation, revision uint64, note []byte, err error) {
	for i := range t.Puts {
		switch p := &t.Puts[i]; {
		case p.Key == headKey:
			revision, note = p.Revision, p.Value
		case isContent(p.Key):
			value, err := e.cfg.seal(p.Key, p.Value)
			if err != nil {
				return nil, 0, nil, &engine.AwayError{Why: err.Error()}
			}
			if len(value) > maxValue {
				return nil, 0, nil, &engine.AwayError{Why: fmt.Sprintf("%s takes %d bytes, and a fleet keeps objects of up to %d", p.Key, len(value), maxValue)}
			}
			ops = append(ops, operation{Key: p.Key, Value: value})
		}
	}
	for _, key := range t.Deletes {
		if isContent(key) {
			ops = append(ops, operation{Key: key, Remove: true})
		}
	}
	return ops, revision, note, nil
}

// localPart returns the part of a transaction that belongs to this box alone.
func localPart(t *engine.Transaction) (local engine.Transaction) {
	for i := range t.Puts {
		if !isShared(t.Puts[i].Key) {
			local.Puts = append(local.Puts, t.Puts[i])
		}
	}
	for _, key := range t.Deletes {
		if !isShared(key) {
			local.Deletes = append(local.Deletes, key)
		}
	}
	return local
}

// commit makes operations the next commit of the fleet.
func (e *committer) commit(ctx context.Context, ops []operation, revision uint64, note []byte, before uint64) (err error) {
	next, seen, err := e.beginCommit(ctx, ops, revision, note, before)
	if err != nil {
		return err
	}
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.inflight.landed != nil {
			err = nil // also without an answer in time: the follower has seen it, and the store does not get it by Follow
		}
		e.inflight = nil
	}()
	if !fitsInTxn(ops, note) {
		next.Bundle, next.Parts, err = e.writeBundle(ctx, seen, note, ops)
		switch {
		case errors.Is(err, errOvertaken):
			return e.errConflict(nil)
		case err != nil:
			return e.errUnreachable(err) // no head names the parts
		}
		next.Note, ops = nil, nil
	}
	return e.commitWithRetry(ctx, seen, next, ops)
}

// beginCommit waits until the store may commit on what it has followed, and returns the next head and the one that it follows on.
func (e *committer) beginCommit(ctx context.Context, ops []operation, revision uint64, note []byte, before uint64) (next, seen *head, err error) {
	for {
		e.mu.Lock()
		bundle := e.read.Bundle != ""
		if err := cmp.Or(e.state.refusal(), e.state.silent.write); err != nil {
			e.mu.Unlock()
			return nil, nil, err
		}
		if len(e.inbox.queue) > 0 {
			e.mu.Unlock()
			return nil, nil, engine.ErrConflict
		}
		if !bundle {
			break
		}
		mod := e.read.mod
		e.mu.Unlock()
		if err := e.applyBundle(ctx); err != nil {
			return nil, nil, e.errUnreachable(err)
		}
		if err := e.wait(ctx, func() bool { return e.read.mod != mod || len(e.inbox.queue) > 0 }); err != nil {
			return nil, nil, e.errUnreachable(err)
		}
	}
	defer e.mu.Unlock()
	if before != e.read.Revision {
		return nil, nil, fmt.Errorf("commit: the store stands at revision %d, and what it follows at %d", before, e.read.Revision)
	}
	next = e.read.next(e.cfg.Box)
	next.Revision, next.Note = revision, note
	next.Objects, next.Digest = e.content.after(ops)
	e.inflight = &inflightCommit{id: next.ID, ops: slices.Clone(ops), note: note}
	return next, e.read, nil
}

// commitWithRetry sends a commit until its outcome is known. It is the same one each time, which can take place only once.
func (e *committer) commitWithRetry(ctx context.Context, seen, next *head, ops []operation) error {
	unknown, try := false, firstTry
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		call, cancel := context.WithTimeout(ctx, try)
		won, now, err := e.putHead(call, seen, next, ops)
		cancel()
		try *= 2
		switch {
		case err == nil && won, err == nil && now != nil && now.ID == next.ID: // the answer of an earlier try was lost
			e.landed(next, now.mod)
			return nil
		case err == nil && !unknown:
			return e.errConflict(now)
		case err == nil:
			return e.resolveOutcome()
		case !isUnknown(err) && !unknown:
			return e.refused(err)
		}
		unknown = unknown || isUnknown(err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", engine.ErrUnsettled, err)
		case <-time.After(wait):
		}
	}
}

// landed notes that the commit under way took place, if the follower has not done so.
func (e *committer) landed(next *head, mod int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	next.mod = mod
	switch {
	case e.inflight.landed != nil:
	case e.read.mod >= mod: // a state that was read has it, and the store follows that next
		e.inflight.landed, e.inbox.busy = next, true
	default:
		e.land(next)
	}
}

// resolveOutcome waits for the follower to find the outcome of the commit under way, the answer to which was lost.
func (e *committer) resolveOutcome() error {
	ctx, cancel := context.WithTimeout(context.Background(), followTimeout)
	defer cancel()
	err := e.wait(ctx, func() bool { return e.inflight.landed != nil || len(e.inbox.queue) > 0 || e.state.refusal() != nil })
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.inflight.landed != nil:
		return nil
	case err == nil && len(e.inbox.queue) > 0 && !e.inbox.queue[0].Reload && !e.inbox.queue[0].Again:
		return engine.ErrConflict
	}
	return engine.ErrUnsettled
}

// errConflict returns the error of a commit that lost to another one, once the store can follow that: now, nil if it is not known.
func (e *committer) errConflict(now *head) error {
	ctx, cancel := context.WithTimeout(context.Background(), followTimeout)
	defer cancel()
	mod := int64(math.MaxInt64)
	if now != nil {
		mod = now.mod
	}
	if err := e.awaitHead(ctx, mod, func() bool { return len(e.inbox.queue) > 0 || e.state.refusal() != nil }); err != nil {
		return &engine.AwayError{Why: "another box has changed something, and this box has not received it yet"}
	}
	return engine.ErrConflict
}

// applyBundle is applyBundleOf for the head that this box stands at.
func (e *committer) applyBundle(ctx context.Context) error {
	e.applying.Lock()
	defer e.applying.Unlock()
	return e.applyBundleOf(ctx, e.newestRead())
}

// runBundles applies bundles until ctx is done, so that the next commit need not wait for all of one.
func (e *committer) runBundles(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.bundlePending:
		}
		if err := e.applyBundle(ctx); err != nil && ctx.Err() == nil {
			e.cfg.Log.Debug("a large commit is not applied yet; the next commit does it", "err", err)
		}
	}
}

// commitReadable hands secret objects to the store that can be opened now, with a commit of no objects, since readers see a
// change by its revision. It does nothing while there are none.
func (e *committer) commitReadable(ctx context.Context) error {
	if e.client == nil { // a leaf gets them with the next commit of any box
		return nil
	}
	e.mu.Lock()
	h, can := e.read, len(e.openable()) > 0
	follows := e.state.Kind == Following && len(e.inbox.queue) == 0
	e.mu.Unlock()
	if !can || !follows || h.Bundle != "" {
		return nil
	}
	_, _, err := e.putHead(ctx, h, h.next(e.cfg.Box), nil) // another commit that comes first has the same effect
	return err
}

// ErrReplaced means that the key in force is not the one that was to be replaced.
var ErrReplaced = errors.New("another box has replaced it")

// ReplaceKey makes a value the one that all boxes have under a name, in place of the one with an ID, "" for none.
// Errors: ErrReplaced; engine.AwayError when nothing was changed, and others when that is not known.
func (e *committer) ReplaceKey(ctx context.Context, name, before string, value []byte) error {
	if err := e.origin.refusal(); err != nil {
		return err
	}
	if err := e.Sharing(); err != nil {
		return &engine.AwayError{Why: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	id := newID()
	put := operation{Key: sealedPrefix + name + "/" + id}
	var err error
	if put.Value, err = e.cfg.Keys.Seal(put.Key, value); err != nil {
		return &engine.AwayError{Why: err.Error()}
	}
	for {
		e.mu.Lock()
		h, has, refusal, shut := e.read, e.keys[name].id, e.state.refusal(), e.state.unreadable
		ops := []operation{put}
		if before != "" {
			ops = append(ops, operation{Key: sealedPrefix + name + "/" + before, Remove: true})
		}
		next := h.next(e.cfg.Box)
		next.Objects, next.Digest = e.content.after(ops)
		e.mu.Unlock()
		switch {
		case has == id:
			return nil // it took place, whatever was answered
		case refusal != nil:
			return refusal
		case shut != "":
			return &engine.AwayError{Why: shut}
		case has != before:
			return ErrReplaced
		}
		switch err := e.putKeys(ctx, h, next, ops); {
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", engine.ErrUnsettled, err)
		case err != nil:
			return e.errUnreachable(err)
		}
	}
}

// putKeys tries once to make a head with operations on shared keys follow on h, and waits until this box has followed a head after
// h.
func (e *committer) putKeys(ctx context.Context, h, next *head, ops []operation) error {
	if h.Bundle != "" {
		if err := e.applyBundle(ctx); err != nil {
			return err
		}
	} else if _, _, err := e.putHead(ctx, h, next, ops); err != nil && !isUnknown(err) {
		return err
	} // else it is seen in what follows
	return e.wait(ctx, func() bool { return e.read.mod != h.mod || e.state.refusal() != nil })
}

// Accept makes the content of etcd that of all boxes, although it went back or has another history: it gets a revision above all
// that this box has seen, by which the other boxes accept it.
func (e *committer) Accept(ctx context.Context) error {
	if err := e.origin.refusal(); err != nil {
		return err
	}
	now, _, err := e.askHead(ctx)
	if err != nil {
		return e.errUnreachable(err)
	}
	if now == nil {
		return &engine.AwayError{Why: fmt.Sprintf("etcd has no objects of fleet %s: there is nothing to accept; run `svcctl fleet restore DIR`", e.cfg.Fleet)}
	}
	e.mu.Lock()
	s, read := e.state, e.read
	e.mu.Unlock()
	if !s.Held() {
		return &engine.AwayError{Why: "nothing is held: this box follows what etcd has"}
	}
	if s.Kind == OtherOne || s.Kind == Emptied {
		return &engine.AwayError{Why: s.Why}
	}
	if now.Bundle != "" {
		if err := e.applyBundleOf(ctx, now); err != nil {
			return e.errUnreachable(err)
		}
		if now, _, err = e.askHead(ctx); err != nil || now == nil {
			return e.errUnreachable(err)
		}
	}
	next, ops, err := e.count(ctx, now)
	if err != nil {
		return err
	}
	next.Revision, next.Epoch = above(max(now.Revision, read.Revision), max(now.Epoch, read.Epoch))
	won, _, err := e.putHead(ctx, now, next, ops)
	switch {
	case err != nil:
		return e.errUnreachable(err)
	case !won:
		return &engine.AwayError{Why: "another box has changed something at the same moment: try again"}
	}
	return e.wait(ctx, func() bool { return e.read.Epoch >= next.Epoch })
}
