package fleet

import (
	"context"
	"errors"
	"fmt"

	"svcctl.io/svcctl/store/engine"
)

// question is the question for the newest head that readers wait for together.
type question struct {
	answered chan struct{}
	now      *head // nil: there is none
	err      error
}

// questions are those under way.
type questions struct {
	asked *question // nil: none is
	next  *question // to be asked after it, as asked may miss a write that was answered since; nil: no reader waits
}

// Fresh implements engine.Shared. While etcd does not answer, it fails without asking; concurrent readers share one question.
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

// newestHead returns the newest head as of a time after the call.
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

// joinQuestion returns the next question to be asked. The error is why none is.
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

// askNext asks the next question. e.mu must be held.
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
