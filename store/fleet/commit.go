package fleet

import (
	"bytes"
	"cmp"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet/stream"
)

// committer commits transactions of this box to etcd.
type committer struct {
	follower
	applying  sync.Mutex // one bundle is applied at a time
	questions questions
}

// Commit implements engine.Engine. It writes pairs that only this box uses to the replica.
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

// sharedPart returns the operations of a transaction on keys that boxes share, with Secrets encrypted, and the revision and note of its
// head.
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

// localPart returns the part of a transaction on keys that are stored only in the replica of this box.
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

// commit commits operations to the fleet, with a head of the given revision.
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

// beginCommit prepares a commit: it returns the new head (next) and the head that this one replaces (seen). If the bundle of the present head is not
// applied yet, beginCommit applies it first and waits until that shows. It fails with ErrConflict if this box has received commits that the store has
// not followed yet.
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

// commitWithRetry sends a commit to etcd until its outcome is known. Repeating it is safe: it compares the head, so it can take place only
// once.
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
			return e.refused("etcd refuses the change", err)
		}
		unknown = unknown || isUnknown(err)
		if !sleep(ctx, wait) {
			return fmt.Errorf("%w: %w", engine.ErrUnsettled, err)
		}
	}
}

// sleep waits for d or until ctx is done. It returns true if d has passed.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// wake makes sure that the next receive from a channel of capacity one succeeds.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it has a value
	}
}

// landed records that the pending commit of this box took place, with the etcd modification revision of its head, unless the follower has recorded
// that already.
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

// resolveOutcome waits until the follower has seen whether the pending commit took place, after etcd's answer was lost. The error is ErrConflict if
// another commit came first, or ErrUnsettled if the outcome stays unknown.
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

// errConflict waits until the store can follow the commit that came first, and returns ErrConflict. now is the head of that commit, nil if unknown.
// If the commit does not arrive within followTimeout, it returns an AwayError.
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

// applyBundle applies the bundle of the newest head that this box has.
func (e *committer) applyBundle(ctx context.Context) error {
	e.applying.Lock()
	defer e.applying.Unlock()
	return e.applyBundleOf(ctx, e.newestRead())
}

// runBundles applies bundles in the background until ctx is done, so that the next commit need not.
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

// commitReadable commits a head without operations if Secrets have become readable because a key was added. The store then assigns them a new
// revision, so that readers notice the change.
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

// ErrReplaced means that the shared key has been replaced since it was read.
var ErrReplaced = errors.New("another box has replaced it")

// ReplaceKey sets the value of the shared key with a name. before is the ID that the current key must have, "" if there must be no key yet. The error
// is ErrReplaced if the current key has another ID, an engine.AwayError if nothing was changed, and another one if the outcome is unknown.
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

// putKeys makes one attempt to commit operations on shared keys: it replaces the head h by the head next. If h has a bundle, it only applies the
// bundle. It then waits until this box has followed a head after h.
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

// Accept makes all boxes take over the content of etcd although it is older than theirs or has another history: it commits a head in a new
// epoch, with a revision greater than all that this box has seen.
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
	now, have, content, err := e.everything(ctx)
	if err != nil {
		return err
	}
	// All tokens end: etcd went back to an earlier state, and may lack the latest revocations.
	var ops []operation
	for key := range have {
		if isNamed(key, TokenKey) {
			ops = append(ops, operation{Key: key, Remove: true})
		}
	}
	next := now.next(e.cfg.Box)
	next.Objects, next.Digest = content.after(ops)
	next.Revision, next.Epoch = above(max(now.Revision, read.Revision), max(now.Epoch, read.Epoch))
	switch won, _, err := e.putHead(ctx, now, next, ops); {
	case err != nil:
		return e.errUnreachable(err)
	case !won:
		return &engine.AwayError{Why: "another box has changed something at the same moment: try again"}
	}
	return e.wait(ctx, func() bool { return e.read.Epoch >= next.Epoch })
}

// The limits of one request to etcd, in operations and bytes. The defaults of etcd are 128 operations and 1.5 MiB (etcd.io, "System
// limits").
const (
	maxOperations = 120
	maxRequest    = 1 << 20
	// partSize is the size of the parts of a bundle, in bytes.
	partSize = 1 << 20
	// maxValue is the maximum size of an object in a fleet, in bytes.
	maxValue = 1<<20 + 1<<18
	// maxBundle bounds the decompressed size of a bundle, in bytes.
	maxBundle = 1 << 30
)

// fitsInTxn reports whether a commit fits into one etcd transaction.
func fitsInTxn(ops []operation, note []byte) bool {
	size := len(note)
	for i := range ops {
		size += len(ops[i].Key) + len(ops[i].Value)
	}
	return len(ops) < maxOperations && size <= maxRequest
}

// encodeBundle encodes a commit for a bundle: the note and the operations, each preceded by its length, compressed.
func encodeBundle(note []byte, ops []operation) ([]byte, error) {
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	w.Write(stream.AppendText(nil, note)) // a bytes.Buffer takes all
	var buffer []byte
	for i := range ops {
		buffer = stream.AppendOp(buffer[:0], &ops[i])
		w.Write(buffer)
	}
	err = w.Close()
	return out.Bytes(), err
}

// decodeBundle is the inverse of encodeBundle.
func decodeBundle(text []byte) (note []byte, ops []operation, err error) {
	plain, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(text)), maxBundle+1))
	if err != nil || len(plain) > maxBundle {
		return nil, nil, fmt.Errorf("read a large commit: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	p := stream.NewParser(plain)
	note = p.Text()
	if ops, err = p.Ops(); err != nil {
		return nil, nil, errors.New("read a large commit: it is cut short")
	}
	return note, ops, nil
}

// writeBundle writes the parts of a large commit under separate keys. Each write compares the head that the commit follows, so it fails once another
// commit came first. Parts have no effect until a head refers to them.
func (e *member) writeBundle(ctx context.Context, seen *head, note []byte, ops []operation) (name string, parts int, err error) {
	text, err := encodeBundle(note, ops)
	if err != nil {
		return "", 0, err
	}
	name = fmt.Sprintf("%016x-%s", seen.mod, newID())
	for from := 0; from == 0 || from < len(text); from += partSize {
		part := text[from:min(len(text), from+partSize)]
		won, _, err := e.compareHead(ctx, seen, clientv3.OpPut(e.key(fmt.Sprintf("%s%s/%06d", bundlePrefix, name, parts)), string(part)))
		if err != nil {
			return "", 0, err
		}
		if !won {
			return "", 0, errOvertaken
		}
		parts++
	}
	return name, parts, nil
}

// readBundle reads the bundle that a head refers to, as of an etcd revision (0 means the newest).
func (e *member) readBundle(ctx context.Context, h *head, at int64) (note []byte, ops []operation, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*callTimeout)
	defer cancel()
	resp, err := e.client.Get(ctx, e.key(bundlePrefix+h.Bundle+"/"), clientv3.WithPrefix(), clientv3.WithRev(at))
	if err != nil {
		return nil, nil, err
	}
	if len(resp.Kvs) != h.Parts {
		return nil, nil, fmt.Errorf("read a large commit: %d of %d parts are there", len(resp.Kvs), h.Parts)
	}
	var text []byte
	for _, kv := range resp.Kvs {
		text = append(text, kv.Value...)
	}
	return decodeBundle(text)
}

// applyBundleOf writes the objects of a head's bundle to their keys, and deletes the parts of the bundle and unused parts, unless there is a newer
// head. Each step compares the head and is idempotent, so several boxes may run it.
func (e *member) applyBundleOf(ctx context.Context, h *head) error {
	if h == nil || h.Bundle == "" {
		return nil
	}
	_, ops, err := e.readBundle(ctx, h, 0)
	if err != nil {
		if now, _, headErr := e.askHead(ctx); headErr == nil && (now == nil || now.mod != h.mod) {
			return nil // another head has replaced it
		}
		return err
	}
	for len(ops) > 0 {
		n, size := 0, 0
		var etcd []clientv3.Op
		for n < len(ops) && n < maxOperations && (n == 0 || size+len(ops[n].Key)+len(ops[n].Value) <= maxRequest) {
			size += len(ops[n].Key) + len(ops[n].Value)
			etcd = append(etcd, e.op(&ops[n]))
			n++
		}
		ops = ops[n:]
		if won, _, err := e.compareHead(ctx, h, etcd...); err != nil {
			return err
		} else if !won {
			return nil // another box has finished it
		}
	}
	done := h.next(e.cfg.Box)
	done.Revision, done.Bundle, done.Parts = h.Revision, "", 0
	value, err := done.encode()
	if err != nil {
		return err
	}
	// Parts of older heads are of no use: h is the newest one.
	_, _, err = e.compareHead(ctx, h, clientv3.OpPut(e.key(headKey), value),
		clientv3.OpDelete(e.key(bundlePrefix), clientv3.WithPrefix()))
	return err
}

// deleteStaleParts deletes the parts of bundles that no head can refer to any more, because their commits came too late or their boxes have stopped.
func (e *member) deleteStaleParts(ctx context.Context) error {
	now, _, err := e.askHead(ctx)
	if err != nil || now == nil {
		return err
	}
	resp, err := e.client.Get(ctx, e.key(bundlePrefix), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return err
	}
	for _, kv := range resp.Kvs {
		var seen int64
		name := strings.TrimPrefix(string(kv.Key), e.key(bundlePrefix))
		if _, err := fmt.Sscanf(name, "%016x-", &seen); err != nil || seen >= now.mod || now.Bundle != "" && strings.HasPrefix(name, now.Bundle+"/") {
			continue
		}
		if _, err := e.client.Delete(ctx, string(kv.Key)); err != nil {
			return err
		}
	}
	return nil
}
