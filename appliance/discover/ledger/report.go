package ledger

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// How long a failure lasts, and a first answer is awaited, before it is reported.
const (
	patience        = 2 * time.Second
	patienceAtFirst = 10 * time.Second
)

// The states of questions.
const (
	Unread = "unread" // no answer since the start: stored endpoints stay
	Stale  = "stale"  // no answer any more: its endpoints stay
	Empty  = "empty"  // the answer is empty
	Held   = "held"   // it is, together with most others
	Bad    = "bad"    // a part of the answer cannot be used
)

// State is a state that is not the usual one, of one or several questions.
type State struct {
	Word  string
	Why   string
	Since time.Time // the first of them
	// Services counts those concerned; Of are the questions, nil: all of the provider.
	Services int
	Of       []string
}

// Report returns the states of the questions to a provider that are worth a report, and how many Services ask it.
func (l *Ledger) Report(now time.Time, name string) (states []State, services int) {
	type class struct{ word, why string }
	found := map[class]*State{}
	concerned := map[class]map[string]bool{}
	questions := l.Questions(name)
	for _, of := range questions {
		q := l.asked[of]
		add := func(word, why string, since time.Time) {
			k := class{word, why}
			if found[k] == nil {
				found[k], concerned[k] = &State{Word: word, Why: why, Since: since}, map[string]bool{}
			}
			s := found[k]
			if since.Before(s.Since) {
				s.Since = since
			}
			if text := of.Question.String(); !slices.Contains(s.Of[max(0, len(s.Of)-1):], text) { // sorted: those of several ports are neighbors
				s.Of = append(s.Of, text)
			}
			for _, c := range q.claims {
				concerned[k][c.key.Service] = true
			}
		}
		failing := !q.failed.IsZero() && now.Sub(q.failed) >= patience
		isHeld := slices.ContainsFunc(q.claims, func(c *claim) bool { return c.service.held })
		switch {
		case q.good.IsZero() && (now.Sub(q.begun) >= patienceAtFirst || failing && len(q.why) > 0):
			add(Unread, q.why, q.begun)
		case failing:
			add(Stale, q.why, q.failed)
		}
		switch {
		case isHeld:
			add(Held, "", q.empty)
		case !q.empty.IsZero():
			add(Empty, "", q.empty)
		}
		if len(q.bad) > 0 {
			add(Bad, strings.Join(q.bad, "; "), q.begun)
		}
	}
	for k, s := range found {
		s.Services = len(concerned[k])
		if len(s.Of) == len(questions) && len(questions) > 1 {
			s.Of = nil
		}
		states = append(states, *s)
	}
	slices.SortFunc(states, func(a, b State) int { return cmp.Or(cmp.Compare(a.Word, b.Word), cmp.Compare(a.Why, b.Why)) })
	if g := l.groups[name]; g != nil {
		services = len(g.services)
	}
	return states, services
}
