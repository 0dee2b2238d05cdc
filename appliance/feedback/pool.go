package feedback

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"
)

const (
	// memory is the factor by which the sums of open time and ended connections of an endpoint decay with each call of Look.
	memory = 0.9
	// halved is the number of calls of Look after which the remembered peak of arrivals counts half. The peak is remembered because bursts recur: if
	// few arrivals were expected, a whole burst would go to the least busy endpoint.
	halved = 10
	// most is the largest share of the slots for one of several endpoints, unless its weight requires more. The other endpoints need slots because
	// the total rate of arrivals is estimated from them.
	most = 7.0 / 8
	// doubt is the least number of expected connections at which an endpoint without any observed connection counts as refusing. Connections that it
	// resets at once never have a conntrack entry.
	doubt = 5
)

// Pool assigns the slots of one table to endpoints so that their open connections become proportional to their weights. It distributes the
// connections that are expected until the next Look by water filling: an endpoint of weight w gets as many as bring it to level·w open connections at
// the end of that time, or none if it has more. The level is chosen so that all expected connections are distributed. The duration of connections
// follows from Little's law: open connections divided by connections that end per second.
type Pool struct {
	members []*member // in the order passed to Set
	slots   []netip.AddrPort
	coming  float64 // expected new connections per second
}

type member struct {
	at     netip.AddrPort
	weight float64
	slots  int
	// Decaying sums of the time that connections were open, in seconds, and of the number of connections that ended.
	open, ended float64
	// refuses is set while the endpoint seems to refuse connections: none of those sent to it are observed.
	refuses bool
	count   Count
}

// Set sets the endpoints of the pool with their weights, and the endpoint in each slot. Endpoints that stay keep their counts.
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

// take sets the slots of the pool, and counts those of each endpoint.
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

// Slots returns the endpoint in each slot. The slice is immutable.
func (p *Pool) Slots() []netip.AddrPort { return p.slots }

// Holds reports whether the pool has exactly these endpoints and weights, in this order.
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

// Look takes the counts of a scan of open connections, and assigns the slots for the time until the next scan. elapsed is the time since the previous
// scan. Look reports whether the slots changed.
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

// suspect marks the endpoints that seem to refuse connections: far fewer began there than at other endpoints in proportion to their slots. began is
// the number of connections that began at all endpoints.
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

// isEven reports whether the slots may stay as they are: the numbers of open connections differ no more than by chance, and no endpoint refuses.
// began is the number of connections that began since the previous call of Look.
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

// fill distributes the connections that are expected to begin (coming) within a time in seconds. It returns the number for each endpoint, or nil if
// no endpoint gets any.
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

// bound limits the wanted numbers of connections: endpoints that seem to refuse get at most the share of their weight, and no single
// endpoint gets all slots.
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

// Joined returns the endpoint in each slot of a table with size slots, for the time until the next Look. It is called after the endpoints of the pool
// changed. Endpoints that stay keep their shares relative to each other, and new ones get the share of their weight.
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

// apportion returns the number of slots for each share, by the method of largest remainders. Each gets at least one, so that the kernel's
// table has all endpoints.
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

// Whole is the full share of an endpoint's weight, in thousandths, which the endpoint has after its slow start. Least is the share at the beginning
// of a slow start.
const (
	Whole = 1000
	Least = Whole / 10
)

// steps is the number of steps in which the share grows during a slow start. A step takes at least a second.
const steps = 50

// Step returns the time between two steps of a slow start. over is the duration of the slow start.
func Step(over time.Duration) time.Duration { return max(time.Second, over/steps) }

// Ramp returns the share of an endpoint's weight, in thousandths, at the given age of the endpoint. over is the duration of the slow start. The share
// is age divided by over, rounded down to a whole step, and at least Least. After the slow start it is Whole.
func Ramp(age, over time.Duration) uint32 {
	if over <= 0 || age >= over {
		return Whole
	}
	step := Step(over)
	return max(Least, uint32(Whole*(age/step*step)/over))
}

// Connections counts the connections of a Service port that began and ended between two scans, by the IDs of their conntrack entries. It takes 4
// bytes for each entry.
type Connections struct {
	before, now map[netip.AddrPort]*entries
	looked      bool // before has the result of a complete scan
}

// entries has the IDs of the conntrack entries of an endpoint, sorted after the scan.
type entries struct{ open, ending []uint32 }

// Count has the numbers of connections that a scan found at an endpoint.
type Count struct {
	// Open counts connections that neither side has closed. It includes those that the endpoint has not answered yet: otherwise an endpoint that
	// never answers would look idle.
	Open int
	// Began and Ended count the connections that began and ended since the previous scan.
	Began, Ended int
}

// See adds an entry of the scan in progress.
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

// Forget discards the scan in progress, which failed.
func (c *Connections) Forget() { c.now = nil }

// Done ends a scan, and returns the counts of all endpoints with connections. It returns nil after the first scan, which cannot show which
// connections began.
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

// inOrder returns the IDs sorted and without duplicates, since a scan may return an entry twice.
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

// missing returns the number of ids that are not in others, which is sorted.
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
