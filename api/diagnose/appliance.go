package diagnose

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// programmed checks that the present version is in the kernel.
func (d *diagnosis) programmed() {
	for _, p := range d.problems() {
		if p.Reason == refusedByKernel {
			d.add(Bad, "change the Service; if it looks right, that is a fault of svcctl: please report it", "the kernel does not take it: %s", p.Message)
			return
		}
	}
	programmed := d.Status.Revision.Programmed
	wide := ""
	if d.Wide {
		wide = fmt.Sprintf(" (revision %d; all up to %d is programmed)", d.version(), programmed)
	}
	switch {
	case !d.Status.Ready:
		d.add(Bad, "wait: `svcctl wait --for ready`", "the appliance is not ready: %s", d.Status.Reason)
	case d.Status.RulesAway:
		d.add(Bad, "stop the program that changes them: `svcctl status` names it", "its rules are not in the kernel: %s", cmp.Or(strings.TrimPrefix(d.Status.Reason, "the rules are not in force: "),
			"another program has changed the tables of svcctl, and they are about to be repaired"))
	case d.State != nil && d.State.NotStored != nil:
		at := d.State.NotStored
		d.add(Bad, "`svcctl status` names the reason; it is tried again by itself", "the present content of %s is not stored yet, and an earlier version is in force: %s", at.File, at.Why)
	case d.isNewer():
		d.add(Bad, "wait, and look at `svcctl status`: `svcctl wait --for synced`", "its present version is not in the kernel yet%s", wide)
	default:
		d.good("its present version is in the kernel%s", wide)
	}
}

// boxReasons are problems of the box, which may keep any Service from
// answering, with their effect and the next step.
var boxReasons = map[string]struct{ what, next string }{
	"MassRemovalHeld":     {"what vanished from the manifests, or endpoints from the answers of a provider, is kept in force", "put the files or the provider right, or confirm the removal: `svcctl confirm --removals`"},
	"UnknownServicesHeld": {"what the kernel serves and no object declares is kept in force", "put the data directory back, or apply the objects again, or confirm the removal: `svcctl confirm --removals`"},
	"DiskFull":            {"changes cannot be stored", "free space on that disk"},
	"DiskFailed":          {"changes cannot be stored", "put the disk right, then `systemctl restart svcctl`"},
	"Host":                {"a setting of the box", "`svcctl doctor` has details"},
}

// appliance adds findings about the box itself.
func (d *diagnosis) appliance() {
	found := false
	for _, p := range d.Status.Problems {
		switch of, is := boxReasons[p.Reason]; {
		case p.Object != "":
			continue
		case p.Reason == "ForeignInterference":
			what, _, _ := strings.Cut(p.Message, ": stop that program")
			d.add(Bad, "stop that program, or keep it off the tables ip svcctl and ip6 svcctl", "another program changes the tables again and again, and clients fail whenever it does: %s", what)
		case is:
			d.add(Doubt, of.next, "%s: %s", of.what, p.Message)
		default:
			continue
		}
		found = true
	}
	if !d.Status.Synced && d.Status.Ready && d.Status.Reason != "" && !d.Status.RulesAway {
		d.add(Doubt, "", "the appliance is behind: %s", d.Status.Reason)
		return
	}
	if !found {
		d.good("the settings of the box are as they should be; rules of other programs are not looked at: see `svcctl doctor`")
	}
}

// going adds a finding about a Service that is being deleted and still serves because of its
// finalizers.
func (d *diagnosis) going() {
	meta := &d.Service.Metadata
	if meta.DeletionTimestamp == nil {
		return
	}
	d.add(Doubt, "the program that set them has to remove them; if that was a controller of a cluster, which does not run here, remove metadata.finalizers: `svcctl edit svc/"+
		d.Name+" -n "+d.Namespace+"`",
		"it is being deleted, since %s, and serves until its finalizers are gone: %s", meta.DeletionTimestamp.UTC().Format(time.RFC3339), strings.Join(meta.Finalizers, ", "))
}

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
		level, next = Doubt, "`svcctl fleet rollout resume` goes on, `svcctl fleet rollout undo` takes it back"
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
