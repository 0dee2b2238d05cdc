package rollout

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

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
