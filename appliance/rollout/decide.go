package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/pending"
)

// Gather is the time that a client has to write the changes of a rollout.
const Gather = 5 * time.Minute

// Box is the last report of a box.
type Box struct {
	Name    string
	Present bool // its report has arrived
	// Follows reports whether it has what etcd has, and may write; Why is the reason if not.
	Follows bool
	Why     string
	// Programmed is the revision in its kernel. Failing is the reason why that revision is not in force.
	Programmed uint64
	Failing    string
	Problems   []Problem
}

// Problem is a problem that a box reports.
type Problem struct {
	Object, Field, Reason, Message string
}

// id names a problem as long as it lasts.
func (p *Problem) id() string { return p.Reason + " " + p.Object + " " + p.Field }

// Do is the next action.
type Do int

// The actions of a decision.
const (
	Wait   Do = iota
	Move      // to Head, for Ends
	Finish    // all boxes program the changes
	Undo      // nobody has started it, or it has failed and reverts
)

// Next is a decision.
type Next struct {
	Do   Do
	Head Rollout
	Ends time.Duration // 0: without an end
}

// Decide returns the next action of a rollout. left is the time until the end of its phase, 0 when it is over; concerns reports
// whether a problem of an object is one of the rollout's.
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

// Step has the changes come to the boxes of a step, or of the first one after it that has other boxes than the present one. The problems
// that a new box has reported since the last move are no news then; those of before may be ones that an earlier rollout has brought and
// taken back.
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

// Resume has a rollout that has stopped go on with its step. What the boxes report by now is no reason to stop any more.
func Resume(head Rollout, boxes []Box) Next {
	head.Known = map[string][]string{}
	for _, name := range head.Boxes {
		head.Known[name] = find(boxes, name).known()
	}
	head.Phase, head.Why = pending.Programming, ""
	return Next{Move, head, head.Within}
}

// Pause stops a rollout.
func Pause(head Rollout, user string) Next {
	return stopped(head, cmp.Or(user, "somebody")+" has paused it")
}

// failed ends a step that did not go well.
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

// find returns the report of a box; the zero Report, with Present false, if there is none.
func find(boxes []Box, name string) *Box {
	for i := range boxes {
		if boxes[i].Name == name {
			return &boxes[i]
		}
	}
	return &Box{Name: name}
}

// known are the problems of a box that are no news.
func (b *Box) known() []string {
	ids := make([]string, len(b.Problems))
	for i := range b.Problems {
		ids[i] = b.Problems[i].id()
	}
	return ids
}

// trouble is why a rollout stops at a box; "" when it does not.
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

// late names the boxes that have not programmed a step.
func late(head Rollout, boxes []Box) string {
	var names []string
	for _, name := range head.Boxes {
		if b := find(boxes, name); b.Programmed < head.Revision {
			names = append(names, name)
		}
	}
	return fmt.Sprintf("%s not programmed it within %v", strings.Join(names, ", ")+map[bool]string{true: " has", false: " have"}[len(names) == 1], head.Within)
}
