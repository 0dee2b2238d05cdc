package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store/engine"
)

const (
	// retryFollow is the time to wait after an error before the box tries again to follow its fleet.
	retryFollow = 300 * time.Millisecond
	// bundlePatience is the time that other boxes leave to the writer of a bundle to apply it. Then they apply it themselves.
	bundlePatience = 5 * time.Second
)

// follower applies the commits of other boxes to this one.
type follower struct {
	vault
	restart       func() // ends the current watch; nil if there is none
	restarted     restarts
	bundlePending chan struct{} // receives a value when the head may refer to a bundle that is to be applied
}

// checkFleet reads the settings of the fleet from the origin. It returns an error if the fleet is not the one that the box belongs to, or is too new.
// If the fleet has no settings yet, checkFleet writes those of this box. It records in which settings the box and the fleet differ.
func (e *follower) checkFleet(ctx context.Context) error {
	for {
		s, mod, err := e.origin.settings(ctx)
		if err == nil {
			err = e.fits(s)
		}
		if err != nil {
			return err
		}
		if s.Settings != nil || mod == 0 {
			e.agreeOn(s)
			return nil
		}
		// The first box decides which they are.
		s.Settings = e.cfg.Settings
		value, err := json.Marshal(s)
		if err != nil {
			return err
		}
		same := clientv3.Compare(clientv3.ModRevision(e.key(fleetKey)), "=", mod)
		call, cancel := context.WithTimeout(ctx, callTimeout)
		_, err = e.client.Txn(call).If(same).Then(clientv3.OpPut(e.key(fleetKey), string(value))).Commit()
		if cancel(); err != nil {
			return err
		}
	}
}

// join checks that etcd has the fleet and the history of this box. It reads all objects if commits cannot be followed from the
// position of the box. The error is the reason that the fleet is not followed.
func (e *follower) join(ctx context.Context) error {
	if err := e.checkFleet(ctx); err != nil {
		return err
	}
	e.between()
	read := e.newestRead() // before the question: a commit of this box may land meanwhile
	now, at, err := e.askHead(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	if now != nil {
		e.state.Of = now.Revision
	}
	e.mu.Unlock()
	if now == nil {
		return &heldError{Emptied, fmt.Sprintf("etcd has no objects of fleet %s any more; what is in force stays: restore etcd's data, or run `svcctl fleet restore DIR`", e.cfg.Fleet)}
	}
	if read == nil {
		return e.reload(ctx)
	}
	if now.Epoch > read.Epoch && now.Revision > read.Revision { // an operator has accepted it
		return e.reload(ctx)
	}
	if now.Revision < read.Revision || now.mod < read.mod || now.Epoch < read.Epoch {
		return e.wentBack(read, now)
	}
	if now.mod == read.mod {
		if now.ID != read.ID {
			return e.wentBack(read, now)
		}
		e.mu.Lock()
		if e.watched = max(e.watched, at); e.read == read {
			e.read = now // with its text, which the replica does not have
		}
		e.mu.Unlock()
		return nil
	}
	return e.checkHistory(ctx, read, now)
}

// checkHistory returns an error unless read, the head that this box last applied, was the head in etcd at the etcd revision of read. If etcd no
// longer has that revision, checkHistory reads all objects.
func (e *follower) checkHistory(ctx context.Context, read, now *head) error {
	switch was, _, err := e.origin.head(ctx, read.mod); {
	case isCompacted(err):
		return e.reload(ctx)
	case err != nil:
		return err
	case was == nil || was.ID != read.ID:
		return e.wentBack(read, now)
	}
	e.mu.Lock()
	e.watched = max(e.watched, read.mod)
	e.mu.Unlock()
	return nil
}

// reload reads all objects as of one revision, and queues the difference to the present ones for the store.
func (e *follower) reload(ctx context.Context) error {
	read := e.newestRead()
	least := int64(0)
	if read != nil {
		least = read.mod
	}
	now, at, have, err := e.origin.state(ctx, least)
	switch {
	case err != nil:
		return err
	case read != nil && (now.Revision < read.Revision || now.Epoch < read.Epoch):
		return e.wentBack(read, now)
	}
	return e.replace(now, at, have)
}

// replace replaces the state by all objects as of one head, if their digest is that of the head.
func (e *follower) replace(now *head, at int64, have map[string][]byte) error {
	fresh := contentOf(have)
	if len(have) != now.Objects || fresh.digest != now.Digest {
		return &heldError{Damaged, fmt.Sprintf("the %d records that etcd has are not the %d that the newest commit left; what is in force stays: "+
			"find the other program that writes below svcctl/%s/; then put back what was there with `svcctl fleet restore` of the data directory of a box that is stopped, or take what etcd has with `svcctl fleet accept`",
			len(have), now.Objects, e.cfg.Fleet)}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.read != nil && (now.mod < e.read.mod && now.Epoch <= e.read.Epoch) {
		return errOvertaken // by a commit of this box
	}
	var ops []operation
	for key, value := range have {
		if err := e.readable([]operation{{Key: key}}); err != nil {
			return err
		}
		if e.content.sums[key] != fresh.sums[key] {
			ops = append(ops, operation{Key: key, Value: value})
		}
	}
	for key := range e.content.sums {
		if _, there := have[key]; !there {
			ops = append(ops, operation{Key: key, Remove: true})
		}
	}
	if e.read != nil && len(ops) > 0 && now.Revision <= e.read.Revision { // other objects at the same revision
		return e.wentBack(e.read, now)
	}
	f, first := followed(ops, now, nil), e.read == nil
	if !first {
		f = e.plainSecrets(f) // before the replica has it
	}
	e.content, e.read, e.watched, e.foreign = fresh, now, at, nil
	e.keep(ops, now)
	e.feed.drop()
	if first {
		e.inbox.taken, e.inbox.published = now.mod, now.mod
		return e.replica.flush() // the store opens on it
	}
	f.Reload = true
	e.enqueue(f)
	return nil
}

// restarts decides when a watch that delivers nothing is restarted.
type restarts struct {
	at       time.Time
	read     int64 // the modification revision of the newest head at the last call of due
	patience time.Duration
}

const (
	// leastPatience is the time after which a watch is restarted if it delivered nothing although there is a newer head. The time
	// grows fourfold with each restart that did not help, up to mostPatience: on a slow connection a large commit takes long.
	leastPatience, mostPatience = 1500 * time.Millisecond, time.Minute
)

// due reports whether to restart the watch now. The caller calls it while etcd has a newer head than this box. read is the modification revision of
// the newest head on this box.
func (r *restarts) due(read int64, now time.Time) bool {
	switch {
	case read != r.read: // something came
		r.read, r.patience = read, max(r.patience/4, leastPatience)
		if r.patience > leastPatience {
			r.at = now
			return false
		}
	case now.Sub(r.at) < r.patience:
		return false
	default:
		r.patience = min(4*r.patience, mostPatience)
	}
	r.at = now
	return true
}

// restartSilent restarts a watch that has delivered nothing for too long (see restarts): the member that serves it may hang.
func (e *follower) restartSilent() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.restart == nil || e.read == nil {
		return
	}
	if e.restarted.due(e.read.mod, time.Now()) {
		e.restart()
	}
}

// restartWatch ends the watch, so that join runs once more and compares the histories.
func (e *follower) restartWatch() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.restart != nil {
		e.restart()
	}
}

// awaitHead waits until the box has followed a head with a modification revision of at least mod, or until the function holds returns true. Meanwhile
// it restarts a watch that delivers nothing.
func (e *follower) awaitHead(ctx context.Context, mod int64, holds func() bool) error {
	for {
		some, cancel := context.WithTimeout(ctx, leastPatience)
		err := e.wait(some, func() bool { return holds() || e.read.mod >= mod })
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		e.restartSilent()
	}
}

// noteAnswer records that the origin answered, and the newest head in its answer.
func (e *follower) noteAnswer(now *head) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state.Answered, e.state.silent = time.Now(), silence{}
	if now != nil {
		e.state.Of = now.Revision
	}
	if e.state.Kind == CutOff && e.restart != nil {
		e.restart()
	}
}

// follow joins the fleet and applies its commits until an error.
func (e *follower) follow(ctx context.Context) error {
	watch, stop := context.WithCancel(ctx)
	defer stop()
	e.mu.Lock()
	e.restart = stop
	read, watched := e.read, e.watched
	e.mu.Unlock()
	err := e.origin.follow(watch, read, watched, func(it *transaction) error { return e.applyTransaction(ctx, it) })
	e.mu.Lock()
	e.restart = nil // nothing ends the reading of all objects
	e.mu.Unlock()
	if errors.Is(err, errGap) || isCompacted(err) {
		e.cfg.Log.Warn("reads all of the fleet's objects again", "err", err)
		return e.resume(ctx)
	}
	return err
}

// resume reads all objects after commits were missed, if etcd has the history of this box.
func (e *follower) resume(ctx context.Context) error {
	e.mu.Lock()
	before := e.read
	e.mu.Unlock()
	if err := e.join(ctx); err != nil {
		return err
	}
	e.mu.Lock()
	again := e.read == before
	e.mu.Unlock()
	if again { // join has read nothing, as the histories agree
		return e.reload(ctx)
	}
	return nil
}

// applyTransaction applies one transaction of etcd: new settings, a commit, or writes without a head.
func (e *follower) applyTransaction(ctx context.Context, it *transaction) (err error) {
	if it.settings != nil {
		err = e.applySettings(it.settings)
	}
	switch h := it.head; {
	case err != nil:
		return err
	case h != nil:
		e.mu.Lock()
		seen, mine := h.mod <= e.read.mod, e.inflight != nil && e.inflight.id == h.ID
		e.mu.Unlock()
		if h.Bundle != "" && !seen && !mine && !e.IsLeaf() {
			if it.note, it.ops, err = e.readBundle(ctx, h, h.mod); err != nil {
				return err
			}
		}
		if err := e.applyCommit(it); err != nil {
			return err
		}
	case len(it.ops) > 0: // a bundle is applied, which was followed already
		e.noteForeign(it.ops, it.mod)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watched = max(e.watched, it.watched)
	return nil
}

// applyCommit applies a commit to the state of this box. The error is errGap if the commit does not directly follow the newest one on this box.
func (e *follower) applyCommit(it *transaction) error {
	h, ops := it.head, it.ops
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case h.mod <= e.read.mod:
		return nil // our own, or of before a reload
	case h.Epoch != e.read.Epoch || h.Previous != e.read.ID:
		return errGap
	case e.inflight != nil && e.inflight.id == h.ID:
		e.land(h)
		return nil
	}
	if err := e.readable(ops); err != nil {
		return err
	}
	if objects, digest := e.content.after(ops); objects != h.Objects || digest != h.Digest {
		return errGap
	}
	before := e.read
	given := e.plainSecrets(followed(ops, h, it.note)) // before the replica has it
	e.content.apply(ops)
	e.forgetForeign(ops)
	e.read = h
	e.keep(ops, h)
	e.feed.add(h, ops, it.note)
	e.state.Of = max(e.state.Of, h.Revision)
	if h.Revision == before.Revision && len(ops) == 0 {
		e.idle() // a bundle was unfolded
		e.signal()
		return nil
	}
	e.enqueue(given)
	if h.Bundle != "" && e.origin.refusal() == nil {
		time.AfterFunc(bundlePatience, func() {
			if e.newestRead().Bundle != "" {
				wake(e.bundlePending)
			}
		})
	}
	return nil
}

// land records that the pending commit of this box took place and makes its head h the newest one. The commit is not queued for the store, which
// already has it. e.mu must be held.
func (e *follower) land(h *head) {
	e.inflight.landed = h
	e.content.apply(e.inflight.ops)
	e.forgetForeign(e.inflight.ops)
	e.keep(e.inflight.ops, h)
	e.feed.add(h, e.inflight.ops, e.inflight.note)
	e.read, e.inbox.taken, e.inbox.busy = h, h.mod, true
	e.watched = max(e.watched, h.mod)
	e.signal()
	if h.Bundle != "" {
		wake(e.bundlePending)
	}
}

const (
	// firstWait bounds the time that a start with a replica waits for etcd.
	firstWait = 2 * time.Second
	// awaitEvery is the interval at which a box without a replica tries to join its fleet.
	awaitEvery = time.Second
)

// CatchUp follows the commits that were made while this box was off, so that the store has them before its first decision. It takes at most
// firstWait. It must be called before Run.
func (e *follower) CatchUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstWait)
	defer cancel()
	err := e.join(ctx)
	e.note(err)
	if err != nil {
		e.cfg.Log.Info("the start goes on with the replica", "fleet", e.cfg.Fleet, "err", err)
		return
	}
	now, _, err := e.askHead(ctx)
	if err != nil || now == nil {
		return
	}
	followed := make(chan struct{})
	ctx, stop := context.WithCancel(ctx)
	go func() {
		defer close(followed)
		if err := e.follow(ctx); err != nil && ctx.Err() == nil {
			e.cfg.Log.Debug("the start goes on without what was missed", "err", err) // Run tries again
		}
	}()
	_ = e.wait(ctx, func() bool { return e.read.mod >= now.mod }) // Run follows the rest
	stop()
	<-followed
}

// Await returns at once if the replica has the objects of the fleet. Otherwise it waits until they have been read from the origin; meanwhile the
// State is Waiting. It must be called before the store is opened.
func (e *follower) Await(ctx context.Context) error {
	for e.newestRead() == nil {
		err := e.join(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if e.note(err); err == nil {
			break
		}
		if !sleep(ctx, awaitEvery) {
			return ctx.Err()
		}
	}
	if err := e.loadKeys(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	// The store opens on the replica, which has all that was read.
	e.inbox.queue, e.inbox.taken, e.inbox.published = nil, e.read.mod, e.read.mod
	return nil
}

// question is one read of the newest head. Several callers may wait for its result.
type question struct {
	answered chan struct{}
	now      *head // nil if the fleet has no head
	err      error
}

// questions holds the current read of the head and the next one.
type questions struct {
	asked *question // the current read; nil if there is none
	next  *question // the read that begins when asked ends, for callers that came after asked began; nil if there are none
}

// Fresh implements engine.Shared. Concurrent callers share one read of the head. While etcd does not answer, it fails at once.
func (e *committer) Fresh(ctx context.Context) error {
	now, err := e.newestHead(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	s := e.state
	e.mu.Unlock()
	s.differs, s.blind = "", false // it follows all the same
	switch refusal := s.refusal(); {
	case refusal != nil:
		return refusal
	case now == nil:
		return &engine.AwayError{Why: "etcd has no objects of the fleet"}
	}
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	err = e.awaitHead(ctx, now.mod, func() bool { return false })
	if err == nil {
		err = e.wait(ctx, func() bool { return e.inbox.published >= now.mod })
	}
	if err != nil {
		return &engine.AwayError{Why: fmt.Sprintf("revision %d of etcd has not come yet", now.Revision)}
	}
	return nil
}

// newestHead returns the newest head, read after the call began.
func (e *committer) newestHead(ctx context.Context) (*head, error) {
	q, err := e.joinQuestion()
	if err != nil {
		return nil, err
	}
	select {
	case <-q.answered:
		return q.now, q.err
	case <-ctx.Done():
		return nil, &engine.AwayError{Why: "the newest revision is not known yet: " + ctx.Err().Error()}
	}
}

// joinQuestion returns the next read of the head, which begins after the call. The error is the reason that none is made.
func (e *committer) joinQuestion() (*question, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.state.Kind == CutOff:
		return nil, e.state.refusal()
	case e.state.silent.read != nil:
		return nil, e.state.silent.read
	case e.questions.next == nil:
		e.questions.next = &question{answered: make(chan struct{})}
	}
	q := e.questions.next
	if e.questions.asked == nil {
		e.askNext()
	}
	return q, nil
}

// askNext begins the next read of the head. e.mu must be held.
func (e *committer) askNext() {
	q := e.questions.next
	e.questions.asked, e.questions.next = q, nil
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		now, _, err := e.askHead(ctx)
		_, held := errors.AsType[*heldError](err)
		silent := err != nil && (NoAnswer(err) || e.IsLeaf() && !held)
		if err != nil {
			err = e.errUnreachable(err)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		q.now, q.err = now, err
		close(q.answered)
		next := e.questions.next
		e.questions.asked = nil
		switch {
		case silent:
			e.state.silent.read = err
			if next != nil { // it would wait as long
				e.questions.next, next.err = nil, err
				close(next.answered)
			}
		case next != nil:
			e.askNext()
		}
	}()
}
