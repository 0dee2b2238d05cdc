package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"svcctl.io/svcctl/store/engine"
)

// question is the question for the newest head that readers wait for together.
type question struct {
	answered chan struct{}
	now      *head // nil: there is none
	err      error
}

// silence has what callers found before the beat has decided that the box is cut off: each of them would wait anew.
// Any answer of the origin ends it.
type silence struct {
	read  error // why the last question was not answered
	write error // why the last commit was not
}

// questions are those under way.
type questions struct {
	asked *question // nil: none is
	next  *question // what is asked after it: asked may not know of a write that was answered since; nil: nobody waits
}

// Fresh implements engine.Shared. While etcd does not answer, it fails without asking; what readers ask at once is one
// question.
func (e *Engine) Fresh(ctx context.Context) error {
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
		err = e.wait(ctx, func() bool { return e.published >= now.mod })
	}
	if err != nil {
		return &engine.AwayError{Why: fmt.Sprintf("revision %d of etcd has not come yet", now.Revision)}
	}
	return nil
}

// newestHead is the newest head, as of a time after the call.
func (e *Engine) newestHead(ctx context.Context) (*head, error) {
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

// joinQuestion returns the next question to be asked, or why none is.
func (e *Engine) joinQuestion() (*question, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.state.kind == CutOff:
		return nil, e.state.refusal()
	case e.silent.read != nil:
		return nil, e.silent.read
	case e.questions.next == nil:
		e.questions.next = &question{answered: make(chan struct{})}
	}
	q := e.questions.next
	if e.questions.asked == nil {
		e.askNext()
	}
	return q, nil
}

// askNext asks the next question. e.mu must be held.
func (e *Engine) askNext() {
	q := e.questions.next
	e.questions.asked, e.questions.next = q, nil
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		now, _, err := e.askHead(ctx)
		silent := err != nil && e.isSilence(err)
		if err != nil {
			err = e.away(err)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		q.now, q.err = now, err
		close(q.answered)
		next := e.questions.next
		e.questions.asked = nil
		switch {
		case silent:
			e.silent.read = err
			if next != nil { // it would wait as long
				e.questions.next, next.err = nil, err
				close(next.answered)
			}
		case next != nil:
			e.askNext()
		}
	}()
}

// isSilence reports whether a question failed because nobody answered.
func (e *Engine) isSilence(err error) bool {
	held := (*heldError)(nil)
	return NoAnswer(err) || e.client == nil && !errors.As(err, &held)
}

// noteForeign looks at what a transaction without a head has done to objects. That is how a large commit is unfolded, which
// leaves etcd with what this box has. Anything else was written by somebody else: it is not followed, and a box without a replica would
// not find what the newest commit left. mod is the revision of etcd.
func (e *Engine) noteForeign(ops []operation, mod int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if mod <= e.read.mod { // as of before what this box has
		return
	}
	for i := range ops {
		op := &ops[i]
		has, is := e.content.sums[op.key]
		if op.remove && !is || !op.remove && is && has == sumOf(op.key, op.value) {
			delete(e.foreign, op.key)
			continue
		}
		if e.foreign == nil {
			e.foreign = map[string]bool{}
		}
		e.foreign[op.key] = true
		what := "written"
		if op.remove {
			what = "removed"
		}
		e.cfg.Log.Warn("somebody else than the boxes of the fleet has "+what+" a key in etcd; it is not followed", "key", e.key(op.key))
		e.signal()
	}
}

// corrected forgets what somebody else has written where a commit has written it since. e.mu must be held.
func (e *Engine) corrected(ops []operation) {
	for i := range ops {
		delete(e.foreign, ops[i].key)
	}
}

// foreignKeys names the keys that another program has written or removed; "": none. e.mu must be held.
func (e *Engine) foreignKeys() string {
	switch keys := slices.Sorted(maps.Keys(e.foreign)); len(keys) {
	case 0:
		return ""
	case 1:
		return e.key(keys[0])
	default:
		return fmt.Sprintf("%s and %d more", e.key(keys[0]), len(keys)-1)
	}
}
