package providertest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/discover/remote"
)

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

// Following is a question that is followed until the end of the test.
type Following struct {
	t    testing.TB
	stop func()

	mu       sync.Mutex
	cond     sync.Cond
	answers  []provider.Answer // all
	times    []time.Time       // when they came
	failures []error           // all
}

// Follow asks a question of NAME?PARAMETERS again and again, as the caller of a provider does.
func Follow(t testing.TB, p provider.Provider, question string) *Following {
	t.Helper()
	name, params, _ := strings.Cut(question, "?")
	return FollowQuestion(t, p, provider.Question{Name: name, Params: params})
}

// FollowQuestion is Follow for a question with a port.
func FollowQuestion(t testing.TB, p provider.Provider, q provider.Question) *Following {
	ctx, cancel := context.WithCancel(context.Background())
	f := &Following{t: t}
	f.cond.L = &f.mu
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			err := p.Follow(ctx, q, func(a provider.Answer) { f.note(&a, nil) })
			if err == nil {
				t.Errorf("%v: Follow returned no error", q)
				return
			}
			if ctx.Err() == nil {
				f.note(nil, err)
				_ = remote.Sleep(ctx, 100*time.Millisecond)
			}
		}
	}()
	f.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(patience):
			t.Errorf("%v: Follow did not return", q)
		}
	})
	t.Cleanup(f.stop)
	return f
}

// Stop ends it.
func (f *Following) Stop() { f.stop() }

func (f *Following) note(a *provider.Answer, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a != nil {
		f.answers, f.times = append(f.answers, *a), append(f.times, time.Now())
	} else {
		f.failures = append(f.failures, err)
	}
	f.cond.Broadcast()
}

// wait returns when is holds, and fails after a while.
func (f *Following) wait(what string, is func() bool) {
	f.t.Helper()
	timer := time.AfterFunc(patience, f.cond.Broadcast)
	defer timer.Stop()
	end := time.Now().Add(patience)
	f.mu.Lock()
	defer f.mu.Unlock()
	for !is() {
		if time.Now().After(end) {
			last := "none"
			if n := len(f.answers); n > 0 {
				last = Text(f.answers[n-1])
			}
			f.t.Fatalf("%s did not come; the newest of %d answers: %s; of %d failures: %v", what, len(f.answers), last, len(f.failures), f.failures[max(0, len(f.failures)-1):])
		}
		f.cond.Wait()
	}
}

// Answer waits until the newest answer has these endpoints, as Text has them.
func (f *Following) Answer(endpoints ...string) {
	f.t.Helper()
	slices.Sort(endpoints)
	want := strings.Join(endpoints, "  ")
	f.wait("the answer "+strconv.Quote(want), func() bool {
		return len(f.answers) > 0 && Text(f.answers[len(f.answers)-1]) == want
	})
}

// Fresh does something, and waits for an answer after it has begun, whatever that has.
func (f *Following) Fresh(do func()) {
	f.t.Helper()
	f.mu.Lock()
	n := len(f.answers)
	f.mu.Unlock()
	do()
	f.wait("another answer", func() bool { return len(f.answers) > n })
}

// Changed waits for an answer after the first n that has a number of endpoints, and returns when it came.
func (f *Following) Changed(n, endpoints int) (at time.Time) {
	f.t.Helper()
	f.wait(fmt.Sprint(endpoints, " endpoints"), func() bool {
		i := slices.IndexFunc(f.answers[n:], func(a provider.Answer) bool { return len(a.Endpoints) == endpoints })
		if i >= 0 {
			at = f.times[n+i]
		}
		return i >= 0
	})
	return at
}

// Fails waits for a failure with a text that comes from now on.
func (f *Following) Fails(text string) {
	f.t.Helper()
	f.mu.Lock()
	n := len(f.failures)
	f.mu.Unlock()
	f.wait("a failure with "+strconv.Quote(text), func() bool {
		return slices.ContainsFunc(f.failures[n:], func(err error) bool { return strings.Contains(err.Error(), text) })
	})
}

// Answers are all answers until now.
func (f *Following) Answers() []provider.Answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.answers)
}

// Failures are all failures until now.
func (f *Following) Failures() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.failures)
}

// Text has the endpoints of an answer, sorted: ADDRESS:PORT STATE wWEIGHT pPRIORITY NODE/ZONE, without zero values.
func Text(a provider.Answer) string {
	var all []string
	for _, e := range a.Endpoints {
		text := net.JoinHostPort(e.Address, strconv.Itoa(int(e.Port)))
		if e.Port == 0 {
			text = e.Address
		}
		text += [...]string{provider.Ready: "", provider.NotReady: " down", provider.Terminating: " terminating"}[e.State]
		if e.Weight != 0 {
			text += fmt.Sprint(" w", e.Weight)
		}
		if e.Priority != 0 {
			text += fmt.Sprint(" p", e.Priority)
		}
		if cmp.Or(e.Node, e.Zone) != "" {
			text += " " + e.Node + "/" + e.Zone
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "  ")
}
