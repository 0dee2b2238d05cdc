package diagnose

import (
	"fmt"
	"strings"
)

// rolledOut adds the finding about a rollout in which the Service is. It reports whether this box programs versions other than those
// that the API has, in which case no further finding is possible.
func (d *diagnosis) rolledOut() bool {
	if d.State == nil || d.State.Rollout == nil {
		return false
	}
	r := d.State.Rollout
	level, where := Good, fmt.Sprintf("rollout %s, which is %s in step %d of %d", r.ID, strings.ToLower(r.Phase), r.Step, r.Of)
	next := ""
	if r.Why != "" {
		level, next = Doubt, "`svcctl rollout resume` goes on, `svcctl rollout undo` takes it back"
	}
	if r.New {
		d.add(level, next, "this box serves the new version of %s", where)
	} else {
		d.add(level, next, "this box serves the version before %s: the step has not come to it. `svcctl get` shows the new one", where)
	}
	if r.Why != "" {
		d.details("it stopped: " + r.Why)
	}
	if r.New {
		return false
	}
	if len(d.State.Ports) == 0 {
		d.good("before the rollout nothing was served for it")
		return true
	}
	d.good("before the rollout, and here until it comes, it is served")
	for _, p := range d.State.Ports {
		d.details(fmt.Sprintf("%s %s: %s to %s", p.Protocol, p.Name, strings.Join(p.Frontends, ", "), strings.Join(p.Endpoints, ", ")))
	}
	return true
}
