package rollout

import "svcctl.io/svcctl/store"

// mostLooks is at how many looks in a row a box of the step is not heard of, or does not follow, before that is believed: the
// lease of a busy box may end and come back.
const mostLooks = 8

// Patience counts looks at boxes. The zero Patience is one that has not looked yet.
type Patience struct{ unwell map[string]int }

// Waits reports whether it is too early to decide, as a box of the step may only be late. It is called once for each look.
func (p *Patience) Waits(head *store.Rollout, boxes []Box) (waits bool) {
	now := map[string]int{}
	for _, name := range head.Boxes {
		if b := find(boxes, name); b.Present && b.Follows {
			continue
		}
		now[name] = p.unwell[name] + 1
		waits = waits || now[name] < mostLooks
	}
	p.unwell = now
	return waits
}
