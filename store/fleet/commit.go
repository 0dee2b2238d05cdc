package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"svcctl.io/svcctl/store/engine"
)

// Commit implements engine.Engine. What is not shared goes to the replica alone.
func (e *Engine) Commit(t engine.Transaction) error {
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
		if err := e.commit(ctx, ops, revision, note, t.CompareRevision); err != nil {
			e.unsettled(err)
			return err
		}
	}
	local := localPart(&t)
	e.Keep(local)
	if revision == 0 && len(ops) == 0 {
		return e.replica.flush() // who asks for nothing else wants to know that it is on disk
	}
	return nil
}

// unsettled has further commits refused at once, after one that nobody has answered, until the origin answers something.
func (e *Engine) unsettled(err error) {
	if !errors.Is(err, engine.ErrUnsettled) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.silent.write = &engine.AwayError{Why: fmt.Sprintf("%s has not answered the change before this one", e.origin.from())}
}

// sharedPart gives the operations on objects in a transaction, sealed, with the head.
func (e *Engine) sharedPart(t *engine.Transaction) (ops []operation, revision uint64, note []byte, err error) {
	for i := range t.Puts {
		p := &t.Puts[i]
		switch {
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
			ops = append(ops, operation{key: p.Key, value: value})
		}
	}
	for _, key := range t.Deletes {
		if isContent(key) {
			ops = append(ops, operation{key: key, remove: true})
		}
	}
	return ops, revision, note, nil
}

// localPart is a transaction without what is shared.
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
func (e *Engine) commit(ctx context.Context, ops []operation, revision uint64, note []byte, before uint64) (err error) {
	next, seen, err := e.depart(ctx, ops, revision, note, before)
	if err != nil {
		return err
	}
	defer func() {
		if e.arrive() {
			err = nil // who waited for an answer has given up, and the follower has seen it
		}
	}()
	all := []clientv3.Op{}
	if fits(ops, note) {
		for i := range ops {
			all = append(all, e.op(&ops[i]))
		}
	} else {
		next.Bundle, next.Parts, err = e.writeBundle(ctx, seen, note, ops)
		switch {
		case errors.Is(err, errOvertaken):
			return e.lost(nil)
		case err != nil:
			return e.away(err) // no head names the parts
		}
		next.Note = nil
	}
	value, err := next.encode()
	if err != nil {
		return err
	}
	all = append(all, clientv3.OpPut(e.key(headKey), value))
	return e.settle(ctx, seen, next, all)
}

// depart waits until the store may commit on what it has followed, and gives the next head.
func (e *Engine) depart(ctx context.Context, ops []operation, revision uint64, note []byte, before uint64) (next, seen *head, err error) {
	for {
		e.mu.Lock()
		bundle := e.read.Bundle != ""
		if err := cmp.Or(e.state.refusal(), e.silent.write); err != nil {
			e.mu.Unlock()
			return nil, nil, err
		}
		if len(e.queue) > 0 {
			e.mu.Unlock()
			return nil, nil, engine.ErrConflict
		}
		if !bundle {
			break
		}
		mod := e.read.mod
		e.mu.Unlock()
		if err := e.unfold(ctx); err != nil {
			return nil, nil, e.away(err)
		}
		if err := e.wait(ctx, func() bool { return e.read.mod != mod || len(e.queue) > 0 }); err != nil {
			return nil, nil, e.away(err)
		}
	}
	defer e.mu.Unlock()
	if before != e.read.Revision {
		return nil, nil, fmt.Errorf("commit: the store stands at revision %d, and what it follows at %d", before, e.read.Revision)
	}
	next = &head{Revision: revision, ID: newID(), Previous: e.read.ID, Box: e.cfg.Box, Epoch: e.read.Epoch, Format: e.read.Format, Note: note}
	next.Objects, next.Digest = e.content.after(ops)
	e.flight = &flight{id: next.ID, ops: slices.Clone(ops), note: note}
	return next, e.read, nil
}

// arrive ends a flight, and reports whether it landed: the store has it then, and never gets it by Follow.
func (e *Engine) arrive() (landed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	landed = e.flight.landed != nil
	e.flight = nil
	return landed
}

// settle sends a commit until it is known what became of it: the same one each time, which can
// happen only once.
func (e *Engine) settle(ctx context.Context, seen, next *head, all []clientv3.Op) error {
	unknown, try := false, firstTry
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		call, cancel := context.WithTimeout(ctx, try)
		won, now, err := e.guarded(call, seen, all...)
		cancel()
		try *= 2
		switch {
		case err == nil && won, err == nil && now != nil && now.ID == next.ID: // the answer of an earlier try was lost
			e.landed(next, now.mod)
			return nil
		case err == nil && !unknown:
			return e.lost(now)
		case err == nil:
			return e.whose()
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

// landed notes that the flight under way took place, if the follower has not done so.
func (e *Engine) landed(next *head, mod int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	next.mod = mod
	switch {
	case e.flight.landed != nil:
	case e.read.mod >= mod: // what was read as a whole has it, and the store follows that next
		e.flight.landed, e.busy = next, true
	default:
		e.land(next)
	}
}

// land makes the flight under way what was read last. The store has it without following. e.mu must be held.
func (e *Engine) land(h *head) {
	e.flight.landed = h
	e.content.apply(e.flight.ops)
	e.corrected(e.flight.ops)
	e.keep(e.flight.ops, h)
	e.leaves.add(h, e.flight.ops, e.flight.note)
	e.read, e.taken, e.busy = h, h.mod, true
	e.known = max(e.known, h.mod)
	e.signal()
	if h.Bundle != "" {
		e.tidy()
	}
}

// tidy has a bundle unfolded beside all else, so that the next commit need not wait for all of it.
func (e *Engine) tidy() {
	select {
	case e.untidy <- struct{}{}:
	default: // it is going to be
	}
}

// keep notes for the replica what a head has made of the objects. e.mu must be held.
func (e *Engine) keep(ops []operation, h *head) {
	// A cursor always has a form as JSON.
	_ = e.replica.stand(ops, cursor{e.fleetID, h.mod, h.ID, h.Epoch, h.Objects, h.Digest, h.Bundle, h.Parts, h.Format}, h.Revision)
}

// whose finds out whether a head is the result of the commit under way, whose answer was lost.
// Nothing else can have come before it.
func (e *Engine) whose() error {
	ctx, cancel := context.WithTimeout(context.Background(), followTimeout)
	defer cancel()
	err := e.wait(ctx, func() bool { return e.flight.landed != nil || len(e.queue) > 0 || e.state.refusal() != nil })
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.flight.landed != nil:
		return nil
	case err == nil && len(e.queue) > 0 && !e.queue[0].Reload && !e.queue[0].Again:
		return engine.ErrConflict
	}
	return engine.ErrUnsettled
}

// isUnknown reports whether a call that failed may have taken place.
func isUnknown(err error) bool {
	switch codeOf(err) {
	case codes.ResourceExhausted, codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return false
	}
	return true
}

// NoAnswer reports whether a call failed because no answer came, of which the client of etcd knows no more.
func NoAnswer(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || codeOf(err) == codes.Unavailable || codeOf(err) == codes.DeadlineExceeded
}

// codeOf is the status of a call that failed, codes.Unknown when it has none.
func codeOf(err error) codes.Code {
	var etcd rpctypes.EtcdError
	if errors.As(err, &etcd) {
		return etcd.Code()
	}
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return codes.Unknown
}

// refused turns etcd's refusal of a commit into the store's error.
func (e *Engine) refused(err error) error {
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return fullError{err}
	}
	if isDenied(err) {
		return &engine.AwayError{Why: e.denied(err)}
	}
	return &engine.AwayError{Why: fmt.Sprintf("etcd refuses the change: %v", err)}
}

// fullError is engine.ErrNoSpace of etcd.
type fullError struct{ cause error }

func (e fullError) Error() string {
	return "etcd is full (" + e.cause.Error() + "): compact and defragment it, then disarm the alarm (etcdctl alarm disarm); nothing in force is lost"
}

func (e fullError) Unwrap() []error { return []error{engine.ErrNoSpace, e.cause} }

// away is for a commit, or a question, that was not sent.
func (e *Engine) away(err error) error {
	if e.client == nil {
		return &engine.AwayError{Why: e.origin.silence(err)}
	}
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return fullError{err}
	}
	if isDenied(err) {
		return &engine.AwayError{Why: e.denied(err)}
	}
	if NoAnswer(err) {
		return &engine.AwayError{Why: e.origin.silence(err)}
	}
	return &engine.AwayError{Why: fmt.Sprintf("etcd does not answer: %v", err)}
}

// lost waits for what came before a commit that was refused for it: now, nil if that is not known.
func (e *Engine) lost(now *head) error {
	ctx, cancel := context.WithTimeout(context.Background(), followTimeout)
	defer cancel()
	mod := int64(math.MaxInt64)
	if now != nil {
		mod = now.mod
	}
	if err := e.awaitHead(ctx, mod, func() bool { return len(e.queue) > 0 || e.state.refusal() != nil }); err != nil {
		return &engine.AwayError{Why: "another box has changed something, and this box has not heard of it yet"}
	}
	return engine.ErrConflict
}
