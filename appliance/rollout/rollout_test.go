package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store/pending"
)

func TestParseSteps(t *testing.T) {
	for text, want := range map[string]string{
		"gw1": "gw1 100%", "gw1+gw2,25%,100%": "gw1+gw2 25% 100%", "25%,50%,100%": "25% 50% 100%", " gw1 , 50%": "gw1 50% 100%", "25%,gw9": "25% gw9 100%",
		"": "!", "gw1,,100%": "!", "50%,25%": "!", "25%,25%": "!", "0%": "!", "101%": "!", "x%": "!", "100%,gw1": "!", "a b": "!", strings.Repeat("a,", 30) + "b": "!",
	} {
		steps, err := ParseSteps(text)
		if got := strings.Join(steps, " "); err != nil != (want == "!") || err == nil && got != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
}

// fleetOf are boxes that are well, and have programmed a revision.
func fleetOf(programmed uint64, names ...string) (boxes []Box) {
	for _, name := range names {
		boxes = append(boxes, Box{Name: name, Present: true, Follows: true, Programmed: programmed})
	}
	return boxes
}

func concerned(object string) bool { return object == "Service default/web" }

// A rollout goes from step to step when all boxes of the step have programmed it and were watched for long enough; each
// reason to stop stops it, and what is no reason does not.
func Test594_what_a_rollout_does_next(t *testing.T) {
	head := Rollout{
		Head: pending.Head{ID: "r", Phase: pending.Programming, Turn: 7, Boxes: []string{"b"}, Revision: 100},
		Plan: Plan{Steps: []string{"b", "50%", "60%", "100%"}, Within: time.Minute, Bake: 2 * time.Minute, Known: map[string][]string{"b": {"Old Service default/web spec"}}},
	}
	baking := func(h *Rollout) { h.Phase = pending.Baking }
	reverts := func(h *Rollout) { h.Reverts = true }
	last := func(h *Rollout) { baking(h); h.Step, h.Boxes = 3, []string{"a", "b", "c", "d"} }
	box := func(name string, change func(b *Box)) func([]Box) []Box {
		return func(boxes []Box) []Box {
			for i := range boxes {
				if boxes[i].Name == name {
					change(&boxes[i])
				}
			}
			return boxes
		}
	}
	has := func(p Problem) func(b *Box) { return func(b *Box) { b.Problems = append(b.Problems, p) } }
	web := "Service default/web"
	for what, c := range map[string]struct {
		head  func(*Rollout)
		boxes func([]Box) []Box
		left  time.Duration
		want  string
	}{
		"all have programmed it":                          {left: time.Second, want: "move Baking step 0 b for 2m0s"},
		"one has not":                                     {boxes: box("b", func(b *Box) { b.Programmed = 99 }), left: time.Second, want: "wait"},
		"one has not in time":                             {boxes: box("b", func(b *Box) { b.Programmed = 99 }), want: "stop: b has not programmed it within 1m0s"},
		"they are watched":                                {head: baking, left: time.Second, want: "wait"},
		"they were watched":                               {head: baking, want: "move Programming step 1 a+b for 1m0s"},
		"a step has no more boxes":                        {head: func(h *Rollout) { baking(h); h.Step, h.Boxes = 1, []string{"a", "b", "c"} }, want: "move Programming step 3 a+b+c+d everyone for 1m0s"},
		"the last step was watched":                       {head: last, want: "finish"},
		"a box of the step is away":                       {boxes: box("b", func(b *Box) { b.Present = false }), left: time.Second, want: "stop: box b does not report"},
		"and when they are watched":                       {head: baking, boxes: box("b", func(b *Box) { b.Present = false }), left: time.Second, want: "stop: box b does not report"},
		"a box of the step never was":                     {head: func(h *Rollout) { h.Boxes = []string{"b", "x"} }, left: time.Second, want: "stop: box x does not report"},
		"another box is away":                             {head: baking, boxes: box("c", func(b *Box) { b.Present = false }), left: time.Second, want: "wait"},
		"and the next step goes on":                       {head: baking, boxes: box("a", func(b *Box) { b.Present = false }), want: "move Programming step 1 b+c for 1m0s"},
		"a box does not follow":                           {boxes: box("b", func(b *Box) { b.Follows, b.Why = false, "KeyMissing" }), left: time.Second, want: "stop: box b does not follow the fleet: KeyMissing"},
		"another does not":                                {head: baking, boxes: box("c", func(b *Box) { b.Follows = false }), left: time.Second, want: "wait"},
		"a box fails":                                     {head: baking, boxes: box("b", func(b *Box) { b.Failing = "no memory" }), left: time.Second, want: "stop: box b fails: no memory"},
		"a new problem":                                   {head: baking, boxes: box("b", has(Problem{Object: web, Reason: "PortInUse", Message: "taken"})), left: time.Second, want: "stop: box b has a new problem, Service default/web PortInUse: taken"},
		"a new problem before all have it":                {boxes: box("b", has(Problem{Object: web, Reason: "PortInUse"})), left: time.Second, want: "stop: box b has a new problem"},
		"a problem of before":                             {head: baking, boxes: box("b", has(Problem{Object: web, Field: "spec", Reason: "Old", Message: "other words"})), left: time.Second, want: "wait"},
		"one of another field":                            {head: baking, boxes: box("b", has(Problem{Object: web, Field: "status", Reason: "Old"})), left: time.Second, want: "stop: box b has a new problem"},
		"a problem of another Service":                    {head: baking, boxes: box("b", has(Problem{Object: "Service default/other", Reason: "PortInUse"})), left: time.Second, want: "wait"},
		"a problem of the box":                            {head: baking, boxes: box("b", has(Problem{Reason: "KernelTooOld"})), left: time.Second, want: "stop: box b has a new problem, KernelTooOld"},
		"a problem of another box":                        {head: baking, boxes: box("c", has(Problem{Object: web, Reason: "PortInUse"})), left: time.Second, want: "wait"},
		"it reverts, and one has not in time":             {head: reverts, boxes: box("b", func(b *Box) { b.Programmed = 99 }), want: "undo: b has not programmed it within 1m0s"},
		"it reverts, and a box is away":                   {head: reverts, boxes: box("b", func(b *Box) { b.Present = false }), left: time.Second, want: "undo: box b does not report any more"},
		"it reverts, and the next step names one unknown": {head: func(h *Rollout) { baking(h); reverts(h); h.Steps = []string{"b", "x", "100%"} }, want: "undo: the next step, x, cannot begin: box x is not known: `svcctl get boxes` names them"},
		"it reverts, and all is well":                     {head: reverts, left: time.Second, want: "move Baking step 0 b for 2m0s"},
		"it is being written":                             {head: func(h *Rollout) { h.Phase, h.Boxes = pending.Gathering, nil }, left: time.Second, want: "wait"},
		"nobody has started it":                           {head: func(h *Rollout) { h.Phase, h.Boxes = pending.Gathering, nil }, want: "undo: it was not started within 5m0s"},
		"it has stopped":                                  {head: func(h *Rollout) { h.Phase = pending.Stopped }, boxes: box("b", func(b *Box) { b.Present = false }), want: "wait"},
		"it is done":                                      {head: func(h *Rollout) { h.Phase = pending.Done }, want: "wait"},
		"the next step names one away":                    {head: func(h *Rollout) { baking(h); h.Steps = []string{"b", "c", "100%"} }, boxes: box("c", func(b *Box) { b.Present = false }), want: "stop: the next step, c, cannot begin: box c does not report"},
		"the next step names one unknown":                 {head: func(h *Rollout) { baking(h); h.Steps = []string{"b", "x", "100%"} }, want: "stop: the next step, x, cannot begin: box x is not known"},
	} {
		h, boxes := head, fleetOf(100, "d", "a", "b", "c")
		if c.head != nil {
			c.head(&h)
		}
		if c.boxes != nil {
			boxes = c.boxes(boxes)
		}
		if got := text(Decide(h, c.left, boxes, concerned)); got != c.want && !(strings.HasPrefix(c.want, "stop") && strings.HasPrefix(got, c.want)) {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
}

func text(n Next) string {
	switch n.Do {
	case Wait:
		return "wait"
	case Finish:
		return "finish"
	case Undo:
		return "undo: " + n.Head.Why
	}
	if n.Head.Phase == pending.Stopped {
		if n.Ends != 0 {
			return "a stop with an end"
		}
		return "stop: " + n.Head.Why
	}
	all := ""
	if n.Head.Everyone {
		all = " everyone"
	}
	return fmt.Sprintf("move %s step %d %s%s for %v", n.Head.Phase, n.Head.Step, strings.Join(n.Head.Boxes, "+"), all, n.Ends)
}

// A box that is late for some looks stops nothing, and one that is away for good does.
func TestPatience(t *testing.T) {
	head := &Rollout{Head: pending.Head{Boxes: []string{"a", "b"}}}
	well, away, cutOff := fleetOf(1, "a", "b", "c"), fleetOf(1, "a", "b", "c"), fleetOf(1, "a", "b", "c")
	away[0].Present, cutOff[1].Follows = false, false
	var p Patience
	for n := range 3 * mostLooks {
		boxes := [][]Box{away, cutOff, well}[n%3]
		if p.Waits(head, boxes) != (n%3 < 2) {
			t.Errorf("look %d at %+v: wrong", n, boxes)
		}
	}
	for n := range mostLooks + 2 {
		if waits := p.Waits(head, away); waits != (n < mostLooks-1) {
			t.Errorf("look %d at a box that is away: waits %v", n, waits)
		}
	}
	well[2].Present = false
	if p.Waits(head, well) {
		t.Error("a box that is not in the step is waited for")
	}
}

// Before a step, reports of before the last move are waited for, for some looks at each; what they say is no reason for a problem to be
// none that is new.
func TestReportsOfBefore(t *testing.T) {
	head := Rollout{pending.Head{Phase: pending.Baking, Turn: 3, Revision: 100, Boxes: []string{"a"}}, Plan{Steps: []string{"a", "100%"}}}
	problem := []Problem{{Object: "Service default/web", Reason: "PortInUse"}}
	late := fleetOf(100, "a", "b", "c")
	late[1].Programmed, late[1].Problems = 99, problem
	if Reported(&head, late) || !Reported(&head, fleetOf(100, "a", "b")) {
		t.Error("who has reported is wrong")
	}
	for what, change := range map[string]func(b *Box){"away": func(b *Box) { b.Present = false }, "cut off": func(b *Box) { b.Follows = false }, "failing": func(b *Box) { b.Failing = "x" }} {
		boxes := fleetOf(100, "a", "b")
		boxes[1].Programmed = 99
		if change(&boxes[1]); !Reported(&head, boxes) {
			t.Errorf("a box that is %s is waited for", what)
		}
	}
	var p Patience
	for turn := range uint64(2) {
		head.Turn = 3 + turn
		for n := range mostLooks + 2 {
			if got := p.Awaits(&head, late); got != (n < mostLooks-1) {
				t.Errorf("look %d in turn %d: %v", n, head.Turn, got)
			}
		}
	}
	if p.Awaits(&head, fleetOf(100, "a", "b", "c")) {
		t.Error("it waits for nobody")
	}
	for programmed, want := range map[uint64]string{99: "stop", 100: "move"} {
		late[1].Programmed = programmed
		next, err := Step(head, 1, late)
		if err != nil {
			t.Fatal(err)
		}
		next.Head.Revision = 100
		late[1].Programmed = 100
		if got := text(Decide(next.Head, time.Second, late, concerned)); !strings.HasPrefix(got, want) {
			t.Errorf("reported at %d, the problem has it %s, want %s", programmed, got, want)
		}
	}
}

// What boxes have reported by the time that they get the changes, or that somebody resumes, is no reason to stop.
func TestKnownProblems(t *testing.T) {
	boxes := fleetOf(100, "a", "b")
	boxes[1].Problems = []Problem{{Object: "Service default/web", Reason: "PortInUse"}}
	head := Rollout{pending.Head{Phase: pending.Baking, Boxes: []string{"a"}}, Plan{Steps: []string{"a", "100%"}, Known: map[string][]string{"a": {"x"}}}}
	next := Decide(head, 0, boxes, concerned)
	if text(Decide(next.Head, time.Second, boxes, concerned)) == "wait" || !slices.Equal(next.Head.Known["a"], []string{"x"}) || len(head.Known) != 1 {
		t.Errorf("the next step is %+v", next)
	}
	if got := next.Head.Phase; got != pending.Programming {
		t.Errorf("the next step is %s", got)
	}
	boxes[0].Problems = []Problem{{Reason: "New"}}
	stop := Decide(next.Head, time.Second, boxes, concerned)
	if !strings.Contains(stop.Head.Why, "box a has a new problem, New") {
		t.Fatalf("a new problem: %s", text(stop))
	}
	resumed := Resume(stop.Head, boxes)
	if resumed.Head.Why != "" || strings.HasPrefix(text(Decide(resumed.Head, time.Second, boxes, concerned)), "stop") {
		t.Errorf("resumed it is %+v", resumed.Head)
	}
	stop.Head.Reverts = true
	if p := Pause(stop.Head, "root"); p.Do != Move || p.Head.Phase != pending.Stopped {
		t.Errorf("paused it is %+v, though nothing has failed", p)
	}
	if p := Pause(resumed.Head, "root"); p.Head.Phase != pending.Stopped || p.Head.Why != "root has paused it" {
		t.Errorf("paused it is %+v", p.Head)
	}
}
