package rollout

// mostLooks is at how many looks in a row a box of the step is absent, or does not follow, before that is believed: the
// lease of a busy box may end and come back.
const mostLooks = 8

// Patience counts looks at boxes. The zero Patience is one that has not looked yet.
type Patience struct {
	unwell map[string]int
	// unheard counts the looks at which a box had not reported since the move turn.
	unheard int
	turn    uint64
}

// Waits reports whether it is too early to decide, as a box of the step may only be late. It is called once for each look.
func (p *Patience) Waits(head *Rollout, boxes []Box) (waits bool) {
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

// Awaits reports whether it is too early for the next step, as what boxes have reported may be of before the last move. It is called once
// for each look.
func (p *Patience) Awaits(head *Rollout, boxes []Box) (awaits bool) {
	if p.turn != head.Turn {
		p.turn, p.unheard = head.Turn, 0
	}
	p.unheard++
	return p.unheard < mostLooks && !Reported(head, boxes)
}

// Reported reports whether all boxes that follow have reported their problems since the last move of a rollout.
func Reported(head *Rollout, boxes []Box) bool {
	for i := range boxes {
		if b := &boxes[i]; b.Present && b.Follows && b.Failing == "" && !b.isOf(head) {
			return false
		}
	}
	return true
}

// isOf reports whether a report is of a time after the last move.
func (b *Box) isOf(head *Rollout) bool { return b.Programmed >= head.Revision }
