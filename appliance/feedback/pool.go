package feedback

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"
)

const (
	// memory is the factor by which the sums of an endpoint's life decay at each look.
	memory = 0.9
	// halved is the number of looks after which the largest number of arrivals counts half. A burst
	// is expected again for a while: if few arrivals were expected, a burst would go to the one
	// endpoint that is least busy.
	halved = 10
	// most is the largest share of the slots that one endpoint gets among several, unless its weight gives it
	// more: the total rate of arrivals is estimated from those at the other endpoints.
	most = 7.0 / 8
	// doubt is the number of missing connections at an endpoint from which it counts as refusing:
	// an endpoint that resets its clients never has an entry.
	doubt = 5
)

// Pool has the endpoints in the slots of one table, and the counts of each.
//
// An interval's connections are shared out by water filling: with n open connections of which e live on,
// an endpoint of weight w gets what lifts it to level·w at the end of the interval, or nothing if it is
// above. The level is the one at which all that is expected to come is given out. How long a
// connection lives is Little's law: connections open, over connections that end.
type Pool struct {
	members []*member // in the order of Set
	slots   []netip.AddrPort
	coming  float64 // connections that are expected in a second
}

type member struct {
	at     netip.AddrPort
	weight float64
	slots  int
	// Decaying sums: of the time that connections were open, in seconds, and of those that ended.
	open, ended float64
	// refuses is set while it is sent connections that are not seen.
	refuses bool
	count   Count
}

// Set sets the endpoints of the pool, with their weights, and the endpoint in each slot. Counts of
// endpoints that stay are kept.
func (p *Pool) Set(endpoints []netip.AddrPort, weights []uint32, slots []netip.AddrPort) {
	known := make(map[netip.AddrPort]*member, len(p.members))
	for _, m := range p.members {
		known[m.at] = m
	}
	p.members = make([]*member, len(endpoints))
	for i, at := range endpoints {
		m := known[at]
		if m == nil {
			m = &member{at: at}
		}
		m.weight = float64(weights[i])
		p.members[i] = m
	}
	p.take(slots)
}

// take makes slots those of the pool.
func (p *Pool) take(slots []netip.AddrPort) {
	p.slots = slots
	n := make(map[netip.AddrPort]int, len(p.members))
	for _, at := range slots {
		n[at]++
	}
	for _, m := range p.members {
		m.slots = n[m.at]
	}
}

// Slots returns the endpoint of each slot. The slice is never changed afterwards.
func (p *Pool) Slots() []netip.AddrPort { return p.slots }

// Holds reports whether the pool has these endpoints, with these weights, in this order.
func (p *Pool) Holds(endpoints []netip.AddrPort, weights []uint32) bool {
	if len(endpoints) != len(p.members) {
		return false
	}
	for i, m := range p.members {
		if m.at != endpoints[i] || m.weight != float64(weights[i]) {
			return false
		}
	}
	return true
}

// Look takes what a look found, some time after the one before, and sets the slots for the
// time until the next. It reports whether they changed.
func (p *Pool) Look(elapsed time.Duration, counts map[netip.AddrPort]Count) (changed bool) {
	seconds := elapsed.Seconds()
	if len(p.members) < 2 || seconds <= 0 {
		return false
	}
	began, ended := 0, 0
	for _, m := range p.members {
		m.count = counts[m.at]
		m.open = memory*m.open + float64(m.count.Open)*seconds
		m.ended = memory*m.ended + float64(m.count.Ended)
		began += m.count.Began
		ended += m.count.Ended
	}
	p.coming = max(float64(began)/seconds, p.coming*math.Pow(0.5, 1.0/halved))
	p.suspect(began)
	coming := p.coming * seconds
	if coming == 0 || began+ended == 0 || p.isEven(float64(began)) {
		return false
	}
	wanted := p.fill(seconds, coming)
	if wanted == nil {
		return false
	}
	index := make(map[netip.AddrPort]int, len(p.members))
	for i, m := range p.members {
		index[m.at] = i
	}
	slots := move(p.slots, index, apportion(p.bound(wanted), len(p.slots)), p.members)
	if slices.Equal(slots, p.slots) {
		return false
	}
	p.take(slots)
	return true
}

// suspect finds endpoints that are sent connections which are not seen, by the numbers of the others.
func (p *Pool) suspect(began int) {
	for _, m := range p.members {
		others := float64(len(p.slots) - m.slots)
		if others == 0 || m.slots == 0 {
			m.refuses = m.refuses && m.count.Open == 0
			continue
		}
		switch expected := float64(began-m.count.Began) * float64(m.slots) / others; {
		case m.count.Open > 0 || float64(m.count.Began) > expected/2:
			m.refuses = false
		case expected >= doubt && m.count.Began == 0:
			m.refuses = true
		}
	}
}

// isEven reports whether connections differ by no more than chance does for those that come and go
// between two looks. Nothing is moved then.
func (p *Pool) isEven(began float64) bool {
	open, weight := 0.0, 0.0
	for _, m := range p.members {
		open += float64(m.count.Open)
		weight += m.weight
	}
	off := 0.0
	for _, m := range p.members {
		d := float64(m.count.Open) - open*m.weight/weight
		off += d * d
	}
	return off <= began/2 && !slices.ContainsFunc(p.members, func(m *member) bool { return m.refuses })
}

// fill returns how many connections each endpoint is to get of those that come within some seconds; nil when
// none has a use for any.
func (p *Pool) fill(seconds, coming float64) []float64 {
	stay := make([]float64, len(p.members)) // of those that are open, how many live on
	per := make([]float64, len(p.members))  // how many have to come for one that is open at the end
	low, high := 0.0, 0.0
	for i, m := range p.members {
		life := (m.open + seconds) / (m.ended + 0.5)
		lives := math.Exp(-seconds / life)
		stay[i] = float64(m.count.Open) * lives
		per[i] = seconds / (life * (1 - lives))
		if m.weight > 0 {
			high = max(high, (stay[i]+coming/per[i])/m.weight)
		}
	}
	share := make([]float64, len(p.members))
	give := func(level float64) (sum float64) {
		for i, m := range p.members {
			share[i] = max(0, (level*m.weight-stay[i])*per[i])
			sum += share[i]
		}
		return sum
	}
	for range 60 {
		if level := (low + high) / 2; give(level) < coming {
			low = level
		} else {
			high = level
		}
	}
	if give(high) == 0 {
		return nil
	}
	return share
}

// bound keeps endpoints that seem to refuse at the share of their weight at most, and one alone from all slots.
func (p *Pool) bound(wanted []float64) []float64 {
	sum, weight := 0.0, 0.0
	for i, m := range p.members {
		sum += wanted[i]
		weight += m.weight
	}
	limit := func(m *member) float64 {
		fair := m.weight / weight
		if m.refuses {
			return fair
		}
		return max(most, fair)
	}
	over, room := 0.0, 0.0 // of the sum
	for i, m := range p.members {
		if wanted[i] /= sum; wanted[i] > limit(m) {
			over += wanted[i] - limit(m)
			wanted[i] = limit(m)
		} else {
			room += m.weight
		}
	}
	if over == 0 || room == 0 {
		return wanted
	}
	for i, m := range p.members {
		if wanted[i] < limit(m) {
			wanted[i] += over * m.weight / room
		}
	}
	return wanted
}

func move(slots []netip.AddrPort, index map[netip.AddrPort]int, wanted []int, members []*member) []netip.AddrPort {
	left := slices.Clone(wanted)
	next, free := make([]netip.AddrPort, len(slots)), []int(nil)
	for i, at := range slots {
		if m, is := index[at]; is && left[m] > 0 {
			next[i] = at
			left[m]--
		} else {
			free = append(free, i)
		}
	}
	m := 0
	for _, i := range free {
		for left[m] == 0 {
			m++
		}
		next[i] = members[m].at
		left[m]--
	}
	return next
}

// Joined returns the endpoint in each slot after the pool's endpoints changed, until the next look:
// endpoints that stay keep their shares relative to each other, and new ones get the share of their
// weight.
func (p *Pool) Joined(endpoints []netip.AddrPort, weights []uint32, size int) []netip.AddrPort {
	known := make(map[netip.AddrPort]*member, len(p.members))
	for _, m := range p.members {
		known[m.at] = m
	}
	// Slots and weights of the endpoints that stay, where a changed weight counts as it is now; and
	// the weights of all.
	held, stays, weight := 0.0, 0.0, 0.0
	shares, index := make([]float64, len(endpoints)), make(map[netip.AddrPort]int, len(endpoints))
	members := make([]*member, len(endpoints))
	for i, at := range endpoints {
		index[at], members[i] = i, &member{at: at}
		weight += float64(weights[i])
		if m := known[at]; m != nil && m.weight > 0 {
			shares[i] = float64(m.slots) / m.weight * float64(weights[i])
			held += shares[i]
			stays += float64(weights[i])
		}
	}
	if weight == 0 {
		return nil
	}
	for i, at := range endpoints {
		if m := known[at]; m != nil && held > 0 {
			shares[i] *= stays / held / weight
		} else {
			shares[i] = float64(weights[i]) / weight
		}
	}
	old := p.slots
	if len(old) != size {
		old = make([]netip.AddrPort, size)
	}
	return move(old, index, apportion(shares, size), members)
}

// apportion shares slots out by the method of largest remainders. Everybody has one at least: so the
// kernel's table names all endpoints.
func apportion(shares []float64, slots int) []int {
	out := make([]int, len(shares))
	left, sum := slots, 0.0
	for _, s := range shares {
		sum += s
	}
	// Those with less than one share get one, which makes the shares of others smaller.
	for again := true; again; {
		again = false
		for i, s := range shares {
			if out[i] == 0 && s*float64(left) <= sum {
				out[i], left, sum, again = 1, left-1, sum-s, true
			}
		}
	}
	type remainder struct {
		member int
		rest   float64
	}
	var rests []remainder
	over := left
	for i, s := range shares {
		if out[i] == 0 {
			exact := s / sum * float64(left)
			out[i] = int(exact)
			over -= out[i]
			rests = append(rests, remainder{i, exact - float64(out[i])})
		}
	}
	slices.SortStableFunc(rests, func(a, b remainder) int { return cmp.Compare(b.rest, a.rest) })
	for i := 0; over > 0; i++ { // what rounding leaves is less than one for each
		out[rests[i%len(rests)].member]++
		over--
	}
	return out
}

// Whole is the share of its weight that an endpoint has which is not new, and Least that of one that has
// just come.
const (
	Whole = 1000
	Least = Whole / 10
)

// steps is in how many steps a share grows, unless that would be more than one a second.
const steps = 50

// Step returns the time between two steps of a slow start.
func Step(over time.Duration) time.Duration { return max(time.Second, over/steps) }

// Ramp returns the share of its weight, in thousandths, that an endpoint of an age has whose slow start takes
// so long: the age's share of that time in whole steps, and Least at least.
func Ramp(age, over time.Duration) uint32 {
	if over <= 0 || age >= over {
		return Whole
	}
	step := Step(over)
	return max(Least, uint32(Whole*(age/step*step)/over))
}

// Connections follows the connections of a Service port from one look to the next, by the ids of their
// entries in connection tracking. It holds 4 bytes for an entry.
type Connections struct {
	before, now map[netip.AddrPort]*entries
	looked      bool // before is a look
}

// entries are the ids of the connection tracking entries of an endpoint, sorted when a scan has ended.
type entries struct{ open, ending []uint32 }

// Count has the connections that a look found at an endpoint.
type Count struct {
	// Open counts connections that neither side has closed. One whose endpoint has not answered yet
	// is among them: otherwise an endpoint that never answers would look idle.
	Open int
	// Began and Ended count the connections that did since the look before.
	Began, Ended int
}

// See counts an entry of the scan that is under way.
func (c *Connections) See(endpoint netip.AddrPort, id uint32, ending bool) {
	if c.now == nil {
		c.now = map[netip.AddrPort]*entries{}
	}
	e := c.now[endpoint]
	if e == nil {
		e = &entries{}
		c.now[endpoint] = e
	}
	if ending {
		e.ending = append(e.ending, id)
	} else {
		e.open = append(e.open, id)
	}
}

// Forget drops the look that is under way.
func (c *Connections) Forget() { c.now = nil }

// Done ends a look and gives the counts of all endpoints that have any, nil after the first look: then it
// is not known what began.
func (c *Connections) Done() (counts map[netip.AddrPort]Count) {
	for _, e := range c.now {
		e.open, e.ending = inOrder(e.open), inOrder(e.ending)
	}
	if c.looked {
		counts = make(map[netip.AddrPort]Count, len(c.now))
		for endpoint, e := range c.now {
			counts[endpoint] = e.since(c.before[endpoint])
		}
		for endpoint, e := range c.before {
			if c.now[endpoint] == nil && len(e.open) > 0 {
				counts[endpoint] = (&entries{}).since(e)
			}
		}
	}
	c.before, c.now, c.looked = c.now, nil, true
	return counts
}

// inOrder sorts ids. A look may meet an entry twice.
func inOrder(ids []uint32) []uint32 {
	slices.Sort(ids)
	return slices.Compact(ids)
}

func (e *entries) since(before *entries) Count {
	if before == nil {
		before = &entries{}
	}
	opened := missing(e.open, before.open)
	brief := 0 // began and ended since
	for _, id := range e.ending {
		if !has(before.ending, id) && !has(before.open, id) {
			brief++
		}
	}
	return Count{Open: len(e.open), Began: opened + brief, Ended: missing(before.open, e.open) + brief}
}

// missing counts those of some ids that are not among others.
func missing(ids, others []uint32) (n int) {
	for _, id := range ids {
		if !has(others, id) {
			n++
		}
	}
	return n
}

func has(ids []uint32, id uint32) bool {
	_, found := slices.BinarySearch(ids, id)
	return found
}
