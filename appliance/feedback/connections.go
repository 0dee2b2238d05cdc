package feedback

import (
	"net/netip"
	"slices"
)

// Connections follows the connections of a Service port from one look to the next, by the ids of their
// entries in connection tracking. It holds 4 bytes for an entry.
type Connections struct {
	before, now map[netip.AddrPort]*entries
	looked      bool // before is a look
}

// entries are the ids of an endpoint's: in order after a look.
type entries struct{ open, ending []uint32 }

// Count has the connections that a look found at an endpoint.
type Count struct {
	// Open counts connections that neither side has closed. One whose endpoint has not answered yet
	// is among them: otherwise an endpoint that never answers would look idle.
	Open int
	// Began and Ended count the connections that did since the look before.
	Began, Ended int
}

// See takes an entry of the look that is under way.
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
