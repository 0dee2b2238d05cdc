package rollout

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

// Rollout is a set of staged changes with the plan of their rollout.
type Rollout struct {
	pending.Head
	Plan
}

// Plan has the steps and limits of a rollout. It is stored in pending.Head.Plan as JSON.
type Plan struct {
	// Steps are the steps as requested, at least one. Step is the index of the current step.
	Steps []string `json:"steps"`
	Step  int      `json:"step"`
	// Known maps a machine to the IDs of the problems that it already had when it got the changes.
	Known map[string][]string `json:"known,omitempty"`
	// Within is the time in which the machines of a step must program it. Bake is how long they are then observed.
	Within time.Duration `json:"within"`
	Bake   time.Duration `json:"bake"`
	// Reverts is set if a failed step undoes the rollout instead of stopping it.
	Reverts bool `json:"reverts,omitempty"`
}

// Of returns the rollout that is encoded in head. If its plan is invalid, the only step is 100%.
func Of(head pending.Head) Rollout {
	r := Rollout{Head: head}
	if json.Unmarshal(head.Plan, &r.Plan) != nil || len(r.Steps) == 0 {
		r.Steps = []string{"100%"} // another program wrote it
	}
	return r
}

// Stored returns the head with the encoded plan.
func (r Rollout) Stored() pending.Head {
	head := r.Head
	head.Plan, _ = json.Marshal(r.Plan) // strings and numbers always have a form
	return head
}

// Ended returns the head of a rollout that has ended, without Known.
func (r Rollout) Ended() pending.Head {
	r.Known = nil
	return r.Stored()
}

// State is a rollout with the objects that it changes and the affected Services.
type State struct {
	Rollout
	Objects  []object.Ref
	Services []string // "namespace/name"
	Here     bool     // this machine programs the changes
}

// StateOf returns the rollout of a set of pending changes.
func StateOf(s pending.State) State { return State{Of(s.Head), s.Objects, s.Services, s.Here} }

// mostLooks is the number of consecutive checks in which a box of the step must be absent, or out of step with the fleet, before the rollout reacts.
// The lease of a busy box may expire and be renewed.
const mostLooks = 8

// Patience counts checks of the boxes, so that a rollout does not react to a single one. The zero value is ready to use.
type Patience struct {
	unwell map[string]int
	// unheard counts the calls of Awaits since the rollout's last move, which turn identifies (pending.Head.Turn).
	unheard int
	turn    uint64
}

// Waits reports whether it is too early to decide, because a box with the changes is absent or out of step with the fleet, perhaps only briefly. It
// returns true for such a box in fewer than mostLooks consecutive checks. It is called once at each check of the boxes.
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

// Awaits reports whether it is too early for the next step because the boxes' reports may be older than the last move. It is called once at
// each check of the boxes.
func (p *Patience) Awaits(head *Rollout, boxes []Box) (awaits bool) {
	if p.turn != head.Turn {
		p.turn, p.unheard = head.Turn, 0
	}
	p.unheard++
	return p.unheard < mostLooks && !Reported(head, boxes)
}

// Reported reports whether all boxes that follow the fleet have reported their problems since the last move of a rollout. Boxes that are absent or
// failing are not considered.
func Reported(head *Rollout, boxes []Box) bool {
	for i := range boxes {
		if b := &boxes[i]; b.Present && b.Follows && b.Failing == "" && !b.isOf(head) {
			return false
		}
	}
	return true
}

// isOf reports whether the box reported after the last move of a rollout: it has programmed at least the revision of the move.
func (b *Box) isOf(head *Rollout) bool { return b.Programmed >= head.Revision }

// mostSteps is the maximum number of steps of a rollout.
const mostSteps = 20

// ParseSteps parses steps, separated by commas. Each is a share of the boxes, such as 25%, or names of boxes with + between them. The step
// 100% is appended if it is not the last one.
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

// percentOf returns the percentage of a step such as "25%". It returns false for a list of names and for an invalid percentage.
func percentOf(step string) (percent int, is bool) {
	number, is := strings.CutSuffix(step, "%")
	if !is {
		return 0, false
	}
	percent, err := strconv.Atoi(number)
	return percent, err == nil && percent > 0
}

// pick returns the boxes that have the changes after a step, sorted: those in have, which already have them, and present boxes that the step adds.
// everyone is set for the step 100%. The error names a box of the step that is unknown or absent.
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

// Gather is how long a client may take to write the changes of a rollout before it is started.
const Gather = 5 * time.Minute

// Box is the last report of a box.
type Box struct {
	Name    string
	Present bool // its report has not expired
	// Follows is set when the box is up to date with etcd and can write to it. Why is its state if not.
	Follows bool
	Why     string
	// Programmed is the store revision that its kernel implements. Failing is the error that prevents a newer accepted revision; "" if none does.
	Programmed uint64
	Failing    string
	Problems   []Problem
}

// Problem is a problem in the report of a box.
type Problem struct {
	Object, Field, Reason, Message string
}

// id returns a text that identifies a problem by reason, object and field, without its message.
func (p *Problem) id() string { return p.Reason + " " + p.Object + " " + p.Field }

// Do is the action that a decision about a rollout requires.
type Do int

// The actions. Wait means no action until the next check.
const (
	Wait   Do = iota
	Move      // store Next.Head; its phase lasts Next.Ends
	Finish    // end the rollout: all boxes have programmed the changes
	Undo      // revert the rollout: it was not started in time, or failed
)

// Next is a decision about a rollout: the action, and for Move the new head and the duration of its phase.
type Next struct {
	Do   Do
	Head Rollout
	Ends time.Duration // 0 means unlimited
}

// Decide returns the next action of a rollout. left is the remaining time of its phase, at most 0 when the phase is over. concerns reports whether a
// problem of an object is attributed to the rollout.
func Decide(head Rollout, left time.Duration, boxes []Box, concerns func(object string) bool) Next {
	switch head.Phase {
	case pending.Gathering:
		if left <= 0 {
			head.Why = fmt.Sprintf("it was not started within %v", Gather)
			return Next{Do: Undo, Head: head}
		}
		return Next{}
	case pending.Programming, pending.Baking:
	default:
		return Next{}
	}
	programmed := true
	for _, name := range head.Boxes {
		b := find(boxes, name)
		if why := b.trouble(head.Known[name], concerns); why != "" {
			return failed(head, why)
		}
		programmed = programmed && b.Programmed >= head.Revision
	}
	switch {
	case head.Phase == pending.Programming && programmed:
		head.Phase = pending.Baking
		return Next{Move, head, max(head.Bake, time.Millisecond)}
	case head.Phase == pending.Programming && left <= 0:
		return failed(head, late(head, boxes))
	case head.Phase == pending.Programming, left > 0:
		return Next{}
	case head.Step == len(head.Steps)-1:
		return Next{Do: Finish, Head: head}
	}
	next, err := Step(head, head.Step+1, boxes)
	if err != nil {
		return failed(head, fmt.Sprintf("the next step, %s, cannot begin: %v", head.Steps[head.Step+1], err))
	}
	return next
}

// Step starts a step: it adds the boxes of the step to the rollout. Steps that add no boxes are skipped. If an added box has reported since the last
// move, the problems in its report do not count as caused by the changes. An older report is ignored, because its problems may come from an earlier
// rollout and be solved by now.
func Step(head Rollout, step int, boxes []Box) (Next, error) {
	for ; ; step++ {
		picked, everyone, err := pick(head.Steps[step], head.Boxes, boxes)
		if err != nil {
			return Next{}, err
		}
		if len(picked) == len(head.Boxes) && step < len(head.Steps)-1 {
			continue
		}
		head.Known = maps.Clone(head.Known)
		if head.Known == nil {
			head.Known = map[string][]string{}
		}
		for _, name := range picked {
			if b := find(boxes, name); !slices.Contains(head.Boxes, name) && b.isOf(&head) {
				head.Known[name] = b.known()
			}
		}
		head.Step, head.Boxes, head.Everyone = step, picked, everyone
		head.Phase, head.Why = pending.Programming, ""
		return Next{Move, head, head.Within}, nil
	}
}

// Resume continues a stopped rollout at its step. Problems that the boxes report at this time do not stop it again.
func Resume(head Rollout, boxes []Box) Next {
	head.Known = map[string][]string{}
	for _, name := range head.Boxes {
		head.Known[name] = find(boxes, name).known()
	}
	head.Phase, head.Why = pending.Programming, ""
	return Next{Move, head, head.Within}
}

// Pause stops a rollout at the request of a user; "" if the user is not identified.
func Pause(head Rollout, user string) Next {
	return stopped(head, cmp.Or(user, "somebody")+" has paused it")
}

// failed stops or undoes a rollout because a step failed, depending on Reverts.
func failed(head Rollout, why string) Next {
	if !head.Reverts {
		return stopped(head, why)
	}
	head.Why = why
	return Next{Do: Undo, Head: head}
}

func stopped(head Rollout, why string) Next {
	head.Phase, head.Why = pending.Stopped, why
	return Next{Move, head, 0}
}

// find returns the last report of a box. If there is none, it returns a Box with Present false.
func find(boxes []Box, name string) *Box {
	for i := range boxes {
		if boxes[i].Name == name {
			return &boxes[i]
		}
	}
	return &Box{Name: name}
}

// known returns the IDs of the problems that a box reports. A rollout that comes to the box later does not count them as its own.
func (b *Box) known() []string {
	ids := make([]string, len(b.Problems))
	for i := range b.Problems {
		ids[i] = b.Problems[i].id()
	}
	return ids
}

// trouble returns why a rollout must stop because of a box; "" if it need not. known has the problems from before the rollout.
func (b *Box) trouble(known []string, concerns func(object string) bool) string {
	switch {
	case !b.Present:
		return fmt.Sprintf("box %s does not report any more", b.Name)
	case !b.Follows:
		return fmt.Sprintf("box %s does not follow the fleet: %s", b.Name, b.Why)
	case b.Failing != "":
		return fmt.Sprintf("box %s fails: %s", b.Name, b.Failing)
	}
	for i := range b.Problems {
		p := &b.Problems[i]
		if slices.Contains(known, p.id()) || p.Object != "" && !concerns(p.Object) {
			continue
		}
		return fmt.Sprintf("box %s has a new problem, %s: %s", b.Name, strings.TrimSpace(p.Object+" "+p.Reason), p.Message)
	}
	return ""
}

// late returns a message that names the boxes which have not programmed a step in time.
func late(head Rollout, boxes []Box) string {
	var names []string
	for _, name := range head.Boxes {
		if b := find(boxes, name); b.Programmed < head.Revision {
			names = append(names, name)
		}
	}
	return fmt.Sprintf("%s not programmed it within %v", strings.Join(names, ", ")+map[bool]string{true: " has", false: " have"}[len(names) == 1], head.Within)
}
