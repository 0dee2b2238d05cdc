package remote

import (
	"context"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/discover/provider"
)

// A Hub runs one stream of events for all questions that are followed. An event is a trigger: the questions that it concerns are asked
// again, and their lists are the answers.
type Hub struct {
	// Pace is the least time between two lists of one question.
	Pace time.Duration
	// Again is after what time a question is asked once more after an event: the list of some servers is behind their events.
	Again time.Duration

	mu     sync.Mutex
	run    *Events   // nil: none
	failed time.Time // the last run
}

// rest is how long after a failure the next run of a stream begins, however many questions ask for it.
const rest = 200 * time.Millisecond

// Events is one run of a stream.
type Events struct {
	ready, ended chan struct{}
	opened       sync.Once
	err          error // after ended
	stop         context.CancelFunc

	mu        sync.Mutex
	followers map[*follower]struct{}
}

type follower struct {
	question provider.Question
	wake     chan struct{} // has room for one
}

// Ready is called by a stream from when on no event is missed.
func (e *Events) Ready() { e.opened.Do(func() { close(e.ready) }) }

// Wake has those questions asked again that an event concerns.
func (e *Events) Wake(concerns func(provider.Question) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for f := range e.followers {
		if concerns(f.question) {
			select {
			case f.wake <- struct{}{}:
			default:
			}
		}
	}
}

// Follow passes the list of a question to take when the stream is ready, and after each event that concerns it. The first question begins
// the stream, and the last one ends it. A stream that ends is the failure of all questions.
func (h *Hub) Follow(ctx context.Context, q provider.Question, take func(provider.Answer), stream func(context.Context, *Events) error, list func(context.Context) (provider.Answer, error)) error {
	h.mu.Lock()
	wait := rest - time.Since(h.failed)
	h.mu.Unlock()
	if wait > 0 {
		if err := Sleep(ctx, wait); err != nil {
			return err
		}
	}
	f := &follower{q, make(chan struct{}, 1)}
	e := h.join(ctx, f, stream)
	defer h.leave(e, f)
	select {
	case <-e.ready:
	case <-e.ended:
		return e.err
	case <-ctx.Done():
		return ctx.Err()
	}
	var again <-chan time.Time
	for {
		var answer provider.Answer
		var err error
		listed := make(chan struct{})
		go func() { // most questions wait, and need no stack of a size for this
			defer close(listed)
			answer, err = list(ctx)
		}()
		if <-listed; err != nil {
			return err
		}
		take(answer)
		if err := Sleep(ctx, h.Pace); err != nil {
			return err
		}
		select {
		case <-f.wake:
			again = nil
			if h.Again > 0 {
				again = time.After(h.Again)
			}
		case <-again:
			again = nil
		case <-e.ended:
			return e.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (h *Hub) join(ctx context.Context, f *follower, stream func(context.Context, *Events) error) *Events {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.run == nil {
		// The stream is also of the questions that come after this one.
		streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		e := &Events{ready: make(chan struct{}), ended: make(chan struct{}), stop: cancel, followers: map[*follower]struct{}{}}
		h.run = e
		go func() {
			err := stream(streamCtx, e)
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.run == e {
				h.run, h.failed = nil, time.Now()
			}
			e.err = err
			cancel()
			close(e.ended)
		}()
	}
	h.run.mu.Lock()
	defer h.run.mu.Unlock()
	h.run.followers[f] = struct{}{}
	return h.run
}

func (h *Hub) leave(e *Events, f *follower) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.followers, f)
	if len(e.followers) > 0 {
		return
	}
	e.stop()
	if h.run == e {
		h.run = nil
	}
}
