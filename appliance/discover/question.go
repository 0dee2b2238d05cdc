package discover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/discover/ledger"
	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/discover/remote"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/store/object"
)

const (
	// asksEach is the largest number of questions per second to one provider. Many questions are due at a start, and while endpoints are missing from
	// answers.
	asksEach = 100
	// mostEndpoints is the largest number of endpoints in an answer, longestWhy the longest text of a failure in bytes, mostBad the number of
	// unusable addresses that are named.
	mostEndpoints = 10_000
	longestWhy    = 300
	mostBad       = 5
)

// gate limits the rate of questions to a provider.
type gate struct {
	mu   sync.Mutex
	next time.Time
}

// pass waits until a question may be asked. It returns false if ctx is done.
func (g *gate) pass(ctx context.Context) bool {
	g.mu.Lock()
	now := time.Now()
	if g.next.Before(now) {
		g.next = now
	}
	at := g.next
	g.next = g.next.Add(time.Second / asksEach)
	g.mu.Unlock()
	return remote.Sleep(ctx, at.Sub(now)) == nil
}

// inbox has the questions with results that the main goroutine of the discovery has not fetched yet.
type inbox struct {
	mu   sync.Mutex
	full map[*question]bool
	wake chan struct{} // capacity 1, wakes the main goroutine of the discovery
}

func newInbox() *inbox { return &inbox{full: map[*question]bool{}, wake: make(chan struct{}, 1)} }

func (b *inbox) add(q *question) {
	b.mu.Lock()
	b.full[q] = true
	b.mu.Unlock()
	task.Wake(b.wake)
}

// take returns the questions of the inbox, and empties it.
func (b *inbox) take() map[*question]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.full
	b.full = map[*question]bool{}
	return all
}

// question asks a provider one question repeatedly, until stop is called.
type question struct {
	of   ledger.Asked
	stop context.CancelFunc
	to   *inbox

	mu      sync.Mutex
	again   context.CancelCauseFunc // cancels the running call of Follow
	results []result
}

// result is an answer to a question, or a failure.
type result struct {
	at     time.Time
	answer *provider.Answer
	bad    []string
	why    string
}

var errAgain = errors.New("asked again")

// ask ends the running call of Follow, so that the question is asked again at once.
func (q *question) ask() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.again != nil {
		q.again(errAgain)
	}
}

// put adds a result, and the question to the inbox. Of several answers in a row, or several failures, only the newest is kept.
func (q *question) put(r result) {
	q.mu.Lock()
	if n := len(q.results); n > 0 && (q.results[n-1].answer == nil) == (r.answer == nil) {
		q.results[n-1] = r
	} else {
		q.results = append(q.results, r)
	}
	q.mu.Unlock()
	q.to.add(q)
}

// take returns the results since the last call.
func (q *question) take() []result {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.results
	q.results = nil
	return all
}

// run calls the provider's Follow repeatedly until ctx is done, with a pause after a failure. It adds answers and errors to q.results. turns limits
// the rate of calls.
func (q *question) run(ctx context.Context, p provider.Provider, turns *gate) {
	pause := pauses{}
	for turns.pass(ctx) {
		asked, cancel := context.WithCancelCause(ctx)
		q.mu.Lock()
		q.again = cancel
		q.mu.Unlock()
		err := p.Follow(asked, q.of.Question, func(a provider.Answer) {
			if len(a.Endpoints) > mostEndpoints {
				q.put(result{at: time.Now(), why: fmt.Sprintf("the answer has %d endpoints, and at most %d are taken", len(a.Endpoints), mostEndpoints)})
				return
			}
			pause.reset()
			var bad []string
			a.Endpoints, bad = usable(a.Endpoints)
			q.put(result{at: time.Now(), answer: &a, bad: bad})
		})
		again := errors.Is(context.Cause(asked), errAgain)
		cancel(nil)
		switch {
		case ctx.Err() != nil:
			return
		case again:
			continue
		case err == nil:
			err = errors.New("the provider ended its answer")
		}
		why := err.Error()
		if len(why) > longestWhy {
			why = why[:longestWhy] + "..."
		}
		q.put(result{at: time.Now(), why: why})
		if !pause.wait(ctx) {
			return
		}
	}
}

// usable returns the endpoints of an answer with valid unicast addresses, and why the others are left out.
func usable(all []provider.Endpoint) (good []provider.Endpoint, bad []string) {
	left := 0
	refuse := func(text string) {
		if left++; left <= mostBad {
			bad = append(bad, text)
		}
	}
	for _, e := range all {
		addr, err := netip.ParseAddr(e.Address)
		addr = addr.Unmap()
		why := ""
		switch {
		case err != nil || addr.Zone() != "":
			why = "is no IP address"
		case addr.IsUnspecified():
			why = "is the unspecified address"
		case addr.IsLoopback():
			why = "is a loopback address, which means the box of the one that registered it: have it registered with an address that others reach"
		case addr.IsLinkLocalUnicast():
			why = "is a link-local address"
		case addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
			why = "is no address of one server"
		}
		if why != "" {
			refuse(fmt.Sprintf("%s %s", short(e.Address), why))
			continue
		}
		e.Address = addr.String()
		if e.Node != "" && len(object.NameProblems(e.Node)) > 0 {
			refuse(fmt.Sprintf("the node %s of %s is left out: it is no name of a Node", short(e.Node), e.Address))
			e.Node = ""
		}
		if e.Zone != "" && (len(e.Zone) > 63 || len(object.NameProblems(e.Zone)) > 0) {
			refuse(fmt.Sprintf("the zone %s of %s is left out: it is no name of a zone", short(e.Zone), e.Address))
			e.Zone = ""
		}
		if e.Priority > object.MaxPriority {
			refuse(fmt.Sprintf("the priority %d of %s is taken as %d", e.Priority, e.Address, object.MaxPriority))
			e.Priority = object.MaxPriority
		}
		good = append(good, e)
	}
	if left > mostBad {
		bad = append(bad, fmt.Sprintf("and %d more", left-mostBad))
	}
	return good, bad
}

// short returns a quoted text, cut to 64 bytes.
func short(text string) string {
	if len(text) > 64 {
		text = text[:64] + "..."
	}
	return fmt.Sprintf("%q", text)
}

// jitter returns d changed randomly by up to a tenth, so that the pauses of many questions differ.
func jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }
