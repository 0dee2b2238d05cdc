package ledger

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"svcctl.io/svcctl/appliance/brake"
	"svcctl.io/svcctl/appliance/discover/provider"
)

// Times that apply while endpoints are missing from answers and are not yet removed.
const (
	// lasting is the time for which answers must be empty before the last endpoint of a Service port is removed.
	lasting = 30 * time.Second
	// provedLasting replaces lasting if the answers have Proved set. A daemon that is stopped stops its containers first. The failure to reach the
	// daemon then cancels the removal of their endpoints.
	provedLasting = 2 * time.Second
	// askEvery is the interval at which a question is asked again while endpoints are missing from its answers and not yet removed.
	askEvery = time.Second
)

// Asked is a question to one provider.
type Asked struct {
	Provider string
	Question provider.Question
}

// Key names a claim: a port of a Service whose endpoints are the answer to a question.
type Key struct {
	Service string // "namespace/name"
	Port    string
	Asked
}

// Terms are the parameters of a claim that may change while it exists.
type Terms struct {
	// Hold is how long an endpoint stays in use after it is missing from answers.
	Hold time.Duration
	// Target is the port for endpoints that the provider reports without a port.
	Target uint16
}

// Ledger computes the endpoints of claims from answers and failures. It removes endpoints only when their absence is credible. The times passed to
// its methods must never go back.
type Ledger struct {
	started time.Time
	claims  map[Key]*claim
	asked   map[Asked]*asked
	groups  map[string]*group // by provider
	doubted map[*asked]bool   // questions with a missing endpoint that is still in force
	failing map[*asked]bool   // questions that had no answer yet, or a failure after the last one
	changed map[Key]bool
}

// asked is a question with the state of its answers.
type asked struct {
	of     Asked
	claims []*claim
	begun  time.Time
	good   time.Time // time of the last answer; zero: none yet
	last   []provider.Endpoint
	bad    []string  // the endpoints of the last answer that cannot be used
	empty  time.Time // since when answers have been empty; zero: they are not
	failed time.Time // time of the first failure after good; zero: none
	why    string
}

// claim is a port of a Service with its endpoints in force: those that its EndpointSlices should have.
type claim struct {
	key Key
	Terms
	asked   *asked
	service *service
	inForce []provider.Endpoint // sorted by address and port
	// gone maps the endpoints in force that the last answer lacks to the time for which successive answers have lacked them. Times during which the
	// provider failed do not count.
	gone map[place]time.Duration
	read bool
	// began is the time since which answers have been empty while endpoints are in force; zero: they are not.
	began time.Time
	due   time.Time // when the removal of endpoints takes effect without another answer; zero: never
}

// place identifies an endpoint: its address and port.
type place struct {
	address string
	port    uint16
}

func placeOf(e *provider.Endpoint) place { return place{e.Address, e.Port} }

// service has the claims of one Service on one provider. held is set while its endpoints stay in force because too many Services lost their endpoints
// at once.
type service struct {
	claims  []*claim
	emptied time.Time // since when all claims with endpoints in force have empty answers; zero: not all have
	held    bool
}

// group has the Services of one provider, and those with answers that recently became empty.
type group struct {
	services map[string]*service
	lost     []loss
	most     int // largest number of Services held during the present hold; 0: no hold
}

// loss is a Service whose answers became empty; passed is set when its endpoints were removed.
type loss struct {
	at     time.Time
	of     *service
	passed bool
}

// New returns a Ledger without claims.
func New(now time.Time) *Ledger {
	return &Ledger{
		started: now, claims: map[Key]*claim{}, asked: map[Asked]*asked{}, groups: map[string]*group{}, doubted: map[*asked]bool{}, failing: map[*asked]bool{}, changed: map[Key]bool{},
	}
}

// Claim adds a claim with the endpoints that are stored for it. If the claim exists, it only changes its terms.
func (l *Ledger) Claim(now time.Time, key Key, terms Terms, stored []provider.Endpoint) {
	if c := l.claims[key]; c != nil {
		c.Hold = terms.Hold
		if c.Target != terms.Target {
			moved := slices.Clone(c.inForce)
			for i := range moved {
				if moved[i].Port == c.Target {
					moved[i].Port = terms.Target
				}
			}
			c.Target, c.gone = terms.Target, nil
			l.setInForce(c, moved)
		}
		return
	}
	q := l.asked[key.Asked]
	if q == nil {
		q = &asked{of: key.Asked, begun: now}
		l.asked[key.Asked], l.failing[q] = q, true
	}
	g := l.groups[key.Provider]
	if g == nil {
		g = &group{services: map[string]*service{}}
		l.groups[key.Provider] = g
	}
	s := g.services[key.Service]
	if s == nil {
		s = &service{}
		g.services[key.Service] = s
	}
	c := &claim{key: key, Terms: terms, asked: q, service: s, inForce: unique(stored)}
	q.claims, s.claims, l.claims[key] = append(q.claims, c), append(s.claims, c), c
	l.changed[key] = true
	if !q.good.IsZero() {
		l.take(now, c, 0, false)
		l.doubt(q)
	}
}

// Drop removes a claim and its endpoints.
func (l *Ledger) Drop(key Key) {
	c := l.claims[key]
	if c == nil {
		return
	}
	is := func(other *claim) bool { return other == c }
	q, s, g := c.asked, c.service, l.groups[key.Provider]
	q.claims, s.claims = slices.DeleteFunc(q.claims, is), slices.DeleteFunc(s.claims, is)
	if len(q.claims) == 0 {
		delete(l.asked, key.Asked)
		delete(l.failing, q)
	}
	l.doubt(q)
	if len(s.claims) == 0 {
		delete(g.services, key.Service)
		g.lost = slices.DeleteFunc(g.lost, func(x loss) bool { return x.of == s })
	}
	l.settle(g)
	delete(l.claims, key)
	l.changed[key] = true
}

// Answer applies a complete answer to the claims on its question. bad describes the endpoints that were left out of it as unusable.
func (l *Ledger) Answer(now time.Time, of Asked, a provider.Answer, bad []string) {
	q := l.asked[of]
	if q == nil {
		return
	}
	var passed time.Duration
	if !q.good.IsZero() && q.failed.IsZero() {
		passed = now.Sub(q.good)
	}
	q.good, q.failed, q.why, q.last, q.bad = now, time.Time{}, "", a.Endpoints, bad
	delete(l.failing, q)
	switch {
	case len(a.Endpoints) > 0:
		q.empty = time.Time{}
	case q.empty.IsZero():
		q.empty = now
	}
	for _, c := range q.claims {
		l.take(now, c, passed, a.Proved)
	}
	l.doubt(q)
}

// Fail records that a question failed, and why.
func (l *Ledger) Fail(now time.Time, of Asked, why string) {
	q := l.asked[of]
	if q == nil {
		return
	}
	if q.failed.IsZero() {
		q.failed, l.failing[q] = now, true
	}
	q.why = why
	for _, c := range q.claims {
		c.due = time.Time{}
	}
}

// Tick removes the endpoints whose proved absence has lasted for provedLasting.
func (l *Ledger) Tick(now time.Time) {
	for q := range maps.Clone(l.doubted) {
		for _, c := range q.claims {
			if !c.due.IsZero() && !now.Before(c.due) && !c.service.held {
				l.let(c, nil, 0)
			}
		}
		l.doubt(q)
	}
}

// Release removes the endpoints that are held for a provider, and returns the number of their Services.
func (l *Ledger) Release(name string) (released int) {
	g := l.groups[name]
	if g == nil {
		return 0
	}
	for _, s := range g.services {
		if !s.held {
			continue
		}
		s.held = false
		released++
		for _, c := range s.claims {
			if !c.began.IsZero() {
				l.let(c, nil, 0)
			}
			l.doubt(c.asked)
		}
	}
	g.most, g.lost = 0, nil // the next loss is another step
	return released
}

// take applies the last answer of its question to a claim. passed is the time since the previous answer, or 0 if a failure came in between. proved is
// Answer.Proved.
func (l *Ledger) take(now time.Time, c *claim, passed time.Duration, proved bool) {
	present := unique(withPorts(c.asked.last, c.Target))
	has := make(map[place]bool, len(present))
	for i := range present {
		has[placeOf(&present[i])] = true
	}
	var gone map[place]time.Duration
	for i := range c.inForce {
		at := placeOf(&c.inForce[i])
		if has[at] {
			continue
		}
		if gone == nil {
			gone = map[place]time.Duration{}
		}
		if before, was := c.gone[at]; was {
			gone[at] = before + passed
		} else {
			gone[at] = 0
		}
	}
	first := !c.read
	c.gone, c.read = gone, true
	if len(present) > 0 || len(c.inForce) == 0 {
		c.began, c.due = time.Time{}, time.Time{}
		l.let(c, present, c.Hold)
		l.mark(now, c)
		return
	}
	switch {
	case !c.began.IsZero():
	case first:
		c.began = l.started // together with all others that are found to be empty
	default:
		c.began = now
	}
	switch {
	case !proved || c.Hold > 0:
		c.due = time.Time{}
	case c.due.IsZero():
		c.due = now.Add(provedLasting)
	}
	l.mark(now, c)
	if !c.service.held {
		l.let(c, nil, max(c.Hold, lasting))
	}
}

// let sets the endpoints in force of a claim to those in present, plus those that have been missing in answers for less than limit.
func (l *Ledger) let(c *claim, present []provider.Endpoint, limit time.Duration) {
	for i := range c.inForce {
		at := placeOf(&c.inForce[i])
		if passed, is := c.gone[at]; !is {
			continue
		} else if passed < limit {
			present = append(present, c.inForce[i])
		} else {
			delete(c.gone, at)
		}
	}
	l.setInForce(c, present)
	if len(c.inForce) > 0 {
		return
	}
	c.began, c.due = time.Time{}, time.Time{}
	g := l.groups[c.key.Provider]
	for i := range g.lost {
		if g.lost[i].of == c.service && c.service.isBare() {
			g.lost[i].passed = true
		}
	}
}

// isBare reports whether no claim of the Service has an endpoint in force.
func (s *service) isBare() bool {
	return !slices.ContainsFunc(s.claims, func(c *claim) bool { return len(c.inForce) > 0 })
}

// mark updates the time since which all claims of a Service have empty answers, after a change of the claim `of`. If too many Services become empty
// at the same time, the loss looks like an accident. mark then holds these Services: their endpoints stay in force.
func (l *Ledger) mark(now time.Time, of *claim) {
	s, g := of.service, l.groups[of.key.Provider]
	was := s.emptied
	s.emptied = time.Time{}
	for _, c := range s.claims {
		if len(c.inForce) > 0 && c.began.IsZero() {
			s.emptied = time.Time{}
			break
		}
		if c.began.After(s.emptied) {
			s.emptied = c.began
		}
	}
	if s.emptied.IsZero() {
		if !s.isBare() { // it is back
			g.lost = slices.DeleteFunc(g.lost, func(x loss) bool { return x.of == s })
			s.held = false
			l.settle(g)
		}
		return
	}
	if !was.IsZero() {
		return
	}
	g.lost = slices.DeleteFunc(g.lost, func(x loss) bool { return x.passed && now.Sub(x.at) >= brake.Step })
	g.lost = append(g.lost, loss{at: s.emptied, of: s})
	together, served := 0, 0
	near := func(x *loss) bool { return x.at.Sub(s.emptied).Abs() < brake.Step }
	for i := range g.lost {
		if near(&g.lost[i]) {
			together++
			if g.lost[i].passed {
				served++
			}
		}
	}
	for _, other := range g.services {
		if !other.isBare() {
			served++
		}
	}
	if !brake.Accident(together, served, together >= served) {
		return
	}
	for i := range g.lost {
		if x := &g.lost[i]; near(x) && !x.passed {
			x.of.held = true
		}
	}
	g.most = max(g.most, g.held())
}

// held returns the number of Services that are held.
func (g *group) held() (n int) {
	for _, s := range g.services {
		if s.held {
			n++
		}
	}
	return n
}

// settle ends the hold of a provider's Services when so many of them have endpoints again that the loss no longer looks like an accident.
func (l *Ledger) settle(g *group) {
	if g.most == 0 || brake.Remains(g.held(), g.most) {
		return
	}
	g.most = 0
	for _, s := range g.services {
		s.held = false
		for _, c := range s.claims {
			l.doubt(c.asked)
		}
	}
}

// setInForce replaces the endpoints in force of a claim, and marks it as changed if they differ.
func (l *Ledger) setInForce(c *claim, to []provider.Endpoint) {
	if to = unique(to); !slices.Equal(c.inForce, to) {
		c.inForce = to
		l.changed[c.key] = true
	}
}

// doubt adds the question to l.doubted if a claim on it has endpoints in force that the last answer lacks. Otherwise it removes the question.
func (l *Ledger) doubt(q *asked) {
	delete(l.doubted, q)
	for _, c := range q.claims {
		if len(c.gone) > 0 {
			l.doubted[q] = true
		}
	}
}

// again returns the time at which a question must be asked again because endpoints are missing in the last answer; zero if that is not necessary.
func (q *asked) again() (at time.Time) {
	if !q.failed.IsZero() {
		return at // it is asked again anyway
	}
	for _, c := range q.claims {
		if len(c.gone) == 0 || c.service.held || !c.due.IsZero() {
			continue
		}
		next := q.good.Add(askEvery)
		if c.began.IsZero() {
			var longest time.Duration
			for _, passed := range c.gone {
				longest = max(longest, passed)
			}
			next = q.good.Add(max(askEvery, c.Hold-longest))
		}
		if at.IsZero() || next.Before(at) {
			at = next
		}
	}
	return at
}

// Again returns the questions that must be asked now, because endpoints are missing in the last answer.
func (l *Ledger) Again(now time.Time) (all []Asked) {
	for q := range l.doubted {
		if at := q.again(); !at.IsZero() && !now.Before(at) {
			all = append(all, q.of)
		}
	}
	slices.SortFunc(all, compareAsked)
	return all
}

// Next returns the earliest time after now at which Tick, Again or Report has another result without a new answer; zero: never.
func (l *Ledger) Next(now time.Time) (at time.Time) {
	sooner := func(t time.Time) {
		if t.After(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	soon := func(t time.Time) { // an overdue one comes as soon as it may
		if least := now.Add(time.Millisecond); t.Before(least) && !t.IsZero() {
			t = least
		}
		sooner(t)
	}
	for q := range l.doubted {
		soon(q.again())
		for _, c := range q.claims {
			if !c.service.held {
				soon(c.due)
			}
		}
	}
	for q := range l.failing {
		if q.good.IsZero() {
			sooner(q.begun.Add(patienceAtFirst))
		}
		if !q.failed.IsZero() {
			sooner(q.failed.Add(patience))
		}
	}
	return at
}

// Endpoints returns the endpoints in force of a claim, sorted by address and port. The caller must not change them.
func (l *Ledger) Endpoints(key Key) []provider.Endpoint {
	if c := l.claims[key]; c != nil {
		return c.inForce
	}
	return nil
}

// Claims returns the claims on a question, in the order in which they began.
func (l *Ledger) Claims(of Asked) (keys []Key) {
	if q := l.asked[of]; q != nil {
		for _, c := range q.claims {
			keys = append(keys, c.key)
		}
	}
	return keys
}

// Has reports whether a claim exists.
func (l *Ledger) Has(key Key) bool { return l.claims[key] != nil }

// Changed returns the claims whose endpoints have changed since the last call.
func (l *Ledger) Changed() (keys []Key) {
	keys = slices.Collect(maps.Keys(l.changed))
	clear(l.changed)
	return keys
}

func compareAsked(a, b Asked) int {
	return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Question.Name, b.Question.Name), cmp.Compare(a.Question.Params, b.Question.Params), cmp.Compare(a.Question.Port, b.Question.Port))
}

// withPorts returns a copy of the endpoints. Those without a port get the given one.
func withPorts(list []provider.Endpoint, port uint16) []provider.Endpoint {
	list = slices.Clone(list)
	for i := range list {
		if list[i].Port == 0 {
			list[i].Port = port
		}
	}
	return list
}

// unique sorts endpoints in place and removes duplicates of an address and port. Of these it keeps the one with the better state, then the
// lower priority, then the larger weight.
func unique(list []provider.Endpoint) []provider.Endpoint {
	slices.SortStableFunc(list, func(a, b provider.Endpoint) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port), cmp.Compare(a.State, b.State), cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.Weight, a.Weight),
			cmp.Compare(a.Node, b.Node), cmp.Compare(a.Zone, b.Zone))
	})
	return slices.CompactFunc(list, func(a, b provider.Endpoint) bool { return placeOf(&a) == placeOf(&b) })
}
