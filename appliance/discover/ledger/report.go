package ledger

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// patience is the time for which a failure must last before it is reported. patienceAtFirst is the time for which the first answer may be missing
// before that is reported.
const (
	patience        = 2 * time.Second
	patienceAtFirst = 10 * time.Second
	// mostReasons is the largest number of reasons that a report lists.
	mostReasons = 16
)

// Report returns the states of a provider's questions that are worth a report (failures, empty and unusable answers), and the number of Services with
// claims on the provider.
func (l *Ledger) Report(now time.Time, name string) (states []wire.DiscoveredState, services int) {
	type class struct{ word, why string }
	found := map[class]*wire.DiscoveredState{}
	concerned := map[class]map[string]bool{}
	var questions []Asked
	for of := range l.asked {
		if of.Provider == name {
			questions = append(questions, of)
		}
	}
	slices.SortFunc(questions, compareAsked)
	for _, of := range questions {
		q := l.asked[of]
		add := func(word, why string, since time.Time) {
			k := class{word, why}
			if found[k] == nil && len(found) >= mostReasons {
				k.why = "for more reasons than are listed"
			}
			if found[k] == nil {
				found[k], concerned[k] = &wire.DiscoveredState{State: word, Why: k.why, Since: since}, map[string]bool{}
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
		case failing:
			add(wire.DiscoveredStale, q.why, q.failed)
		case q.good.IsZero() && now.Sub(q.begun) >= patienceAtFirst:
			add(wire.DiscoveredUnread, "", q.begun)
		}
		switch {
		case isHeld:
			add(wire.DiscoveredHeld, "", q.empty)
		case !q.empty.IsZero():
			add(wire.DiscoveredEmpty, "", q.empty)
		}
		if len(q.bad) > 0 {
			add(wire.DiscoveredBad, strings.Join(q.bad, "; "), q.begun)
		}
	}
	for k, s := range found {
		s.Services = len(concerned[k])
		if len(s.Of) == len(questions) && len(questions) > 1 {
			s.Of = nil
		}
		states = append(states, *s)
	}
	slices.SortFunc(states, func(a, b wire.DiscoveredState) int {
		return cmp.Or(cmp.Compare(a.State, b.State), cmp.Compare(a.Why, b.Why))
	})
	if g := l.groups[name]; g != nil {
		services = len(g.services)
	}
	return states, services
}
