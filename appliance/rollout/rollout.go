package rollout

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

// Rollout is a staged set of changes with its plan.
type Rollout struct {
	pending.Head
	Plan
}

// Plan is stored as a part of the head.
type Plan struct {
	// Steps are the steps as they were asked for, at least one; Step is the present one, from 0.
	Steps []string `json:"steps"`
	Step  int      `json:"step"`
	// Known are the problems that a machine had when the changes came to it.
	Known map[string][]string `json:"known,omitempty"`
	// Within is the time that the machines of a step have to program it; Bake is how long they are observed afterwards.
	Within time.Duration `json:"within"`
	Bake   time.Duration `json:"bake"`
	// Reverts is set when the rollout is undone where it would stop by itself.
	Reverts bool `json:"reverts,omitempty"`
}

// Of returns the rollout of a head.
func Of(head pending.Head) Rollout {
	r := Rollout{Head: head}
	if json.Unmarshal(head.Plan, &r.Plan) != nil || len(r.Steps) == 0 {
		r.Steps = []string{"100%"} // another program wrote it
	}
	return r
}

// Stored returns the head with the plan.
func (r Rollout) Stored() pending.Head {
	head := r.Head
	head.Plan, _ = json.Marshal(r.Plan) // strings and numbers always have a form
	return head
}

// Ended returns the head of a rollout that is over.
func (r Rollout) Ended() pending.Head {
	r.Known = nil
	return r.Stored()
}

// State is a rollout and what it changes.
type State struct {
	Rollout
	Objects  []object.Ref
	Services []string // "namespace/name"
	Here     bool     // this machine programs the changes
}

// StateOf returns the state of a staged set.
func StateOf(s pending.State) State { return State{Of(s.Head), s.Objects, s.Services, s.Here} }

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

// mostSteps bounds the steps of a rollout.
const mostSteps = 20

// ParseSteps reads steps: with commas between them, each a share of the boxes as 25%, or names of boxes with + between them. What
// does not end with 100% gets that as its last step.
func ParseSteps(text string) (steps []string, err error) {
	share := 0
	for step := range strings.SplitSeq(text, ",") {
		step = strings.TrimSpace(step)
		if step == "" {
			return nil, fmt.Errorf("the steps %q have an empty one: want names of boxes or shares, as gw1+gw2,25%%,100%%", text)
		}
		if percent, is := percentOf(step); is {
			if percent <= share || percent > 100 {
				return nil, fmt.Errorf("the share %s is not more than the one before, or more than 100%%", step)
			}
			share = percent
		} else if strings.ContainsAny(step, "% /") {
			return nil, fmt.Errorf("%q is no name of a box and no share of them: want one as gw1, gw1+gw2 or 25%%", step)
		} else if share == 100 {
			return nil, fmt.Errorf("the step %s comes after all boxes", step)
		}
		steps = append(steps, step)
	}
	if share != 100 {
		steps = append(steps, "100%")
	}
	if len(steps) > mostSteps {
		return nil, fmt.Errorf("%d steps are too many: want at most %d", len(steps), mostSteps)
	}
	return steps, nil
}

// percentOf returns the share of boxes of a step.
func percentOf(step string) (percent int, is bool) {
	number, is := strings.CutSuffix(step, "%")
	if !is {
		return 0, false
	}
	percent, err := strconv.Atoi(number)
	return percent, err == nil && percent > 0
}

// pick returns the boxes that have the changes in a step, sorted, of those that have them already and those that are present. The
// error names boxes of the step that are not.
func pick(step string, have []string, boxes []Box) (picked []string, everyone bool, err error) {
	picked = slices.Clone(have)
	add := func(name string) {
		if !slices.Contains(picked, name) {
			picked = append(picked, name)
		}
	}
	percent, isShare := percentOf(step)
	if !isShare {
		for name := range strings.SplitSeq(step, "+") {
			i := slices.IndexFunc(boxes, func(b Box) bool { return b.Name == name })
			switch {
			case i < 0:
				return nil, false, fmt.Errorf("box %s is not known: `svcctl get boxes` names them", name)
			case !boxes[i].Present:
				return nil, false, fmt.Errorf("box %s does not report: start it, or leave it out", name)
			}
			add(name)
		}
		slices.Sort(picked)
		return picked, false, nil
	}
	var present []string
	for _, b := range boxes {
		if b.Present {
			present = append(present, b.Name)
		}
	}
	slices.Sort(present)
	wanted := (len(present)*percent + 99) / 100
	for _, name := range present {
		if len(picked) < wanted || percent == 100 {
			add(name)
		}
	}
	slices.Sort(picked)
	return picked, percent == 100, nil
}
