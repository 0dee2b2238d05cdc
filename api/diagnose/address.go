package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

// Nobody returns the findings about an address, or a port of this box, that no Service serves.
func Nobody(f Facts) []Finding {
	d := &diagnosis{Facts: f}
	q := f.Question
	what := q.Address.String()
	if !q.Address.IsValid() {
		what = fmt.Sprintf("port %d%s of this box", q.Port, slashed(q.Protocol))
	}
	onBox := slices.ContainsFunc(f.Box, func(a wire.BoxAddress) bool { return a.Address == what })
	switch {
	case onBox && q.Port != 0:
		d.add(Bad, "`svcctl get services -A` lists the node ports, as 30080 of 80:30080/TCP", "%s is an address of this box, and no Service has the node port %d%s", what, q.Port, slashed(q.Protocol))
	case onBox:
		d.add(Bad, "give the port too, as "+netip.AddrPortFrom(q.Address, 30080).String(), "%s is an address of this box: of Services, only node ports answer there", what)
	default:
		d.add(Bad, "`svcctl get services -A -o wide` lists the Services with their addresses", "no Service answers at %s", what)
	}
	if f.Allocations != nil && !onBox {
		d.place(q)
	}
	for _, p := range f.Status.Problems {
		if p.Severity == wire.SeverityError && q.Address.IsValid() && strings.Contains(p.Message, q.Address.String()) {
			d.add(Bad, "fix it where it is written", "a problem names it: %s", p.String())
		}
	}
	d.appliance()
	return d.findings
}

// place adds a finding about the address of q, which no Service serves: the Service that holds it, the allocation range in which it lies, or that it
// lies in none.
func (d *diagnosis) place(q Question) {
	for _, pool := range d.Allocations.Pools {
		for _, h := range pool.Holders {
			if q.Address.IsValid() && h.Value == q.Address.String() {
				d.add(Bad, "wait for it, or run `svcctl admin alloc check`", "it is held by %s, which does not answer on it", strings.Join(h.Services, ", "))
				return
			}
		}
		if q.Address.IsValid() && object.InAddressRange(q.Address, pool.Range) {
			if pool.Kind == wire.PoolClusterIP {
				d.add(Doubt, "", "it lies in the range of cluster IPs %s and no Service has it: clients get no answer", pool.Range)
			} else {
				d.add(Doubt, "", "it lies in the pool of load balancer IPs %s and no Service has it: clients get no answer, unless it is on a network of the box", pool.Range)
			}
			return
		}
	}
	if q.Address.IsValid() {
		d.add(Doubt, portHint(q.Address), "it lies in none of the appliance's ranges: packets to it are not ours")
	}
}

// portHint returns a hint on how to write a port, if the last group of an IPv6 address may be meant as one; otherwise "".
func portHint(addr netip.Addr) string {
	text := addr.String()
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return ""
	}
	before, err := netip.ParseAddr(text[:i])
	if port, wrong := strconv.ParseUint(text[i+1:], 10, 16); err != nil || wrong != nil || port == 0 {
		return ""
	}
	return fmt.Sprintf("if %s is meant as a port, write [%s]:%s", text[i+1:], before, text[i+1:])
}

// HealthPort returns the findings about the health-check node port of a Service, at the address of the question.
func HealthPort(f Facts) []Finding {
	d := &diagnosis{Facts: f}
	d.good("port %d is the health-check node port of Service %s/%s: it answers HTTP with 200 while the Service has a local endpoint, else with 503",
		f.Question.Port, f.Namespace, f.Name)
	d.details("clients of the Service do not use it: load balancers in front of this box ask there; see `svcctl explain svc/" + f.Name + " -n " + f.Namespace + "` for its addresses and ports")
	if f.Question.Address.IsValid() {
		d.answersAt()
	}
	d.appliance()
	return d.findings
}

// Backend is a Service that has the address among its endpoints, with the state of that endpoint.
type Backend struct {
	Service string // "namespace/name"
	Slice   string
	// Conditions are the conditions of the endpoint in its EndpointSlice.
	Conditions object.EndpointConditions
	// Health holds the results of the endpoint's health checks; nil if it has none.
	Health []wire.EndpointHealth
}

// text describes the state of the endpoint in the Service, and returns the level of that finding.
func (b *Backend) text() (string, Level) {
	if ready := b.Conditions.Ready; ready != nil && !*ready {
		if terminating := b.Conditions.Terminating; terminating != nil && *terminating {
			return "terminating, as EndpointSlice " + b.Slice + " has it", Doubt
		}
		return "not ready, as EndpointSlice " + b.Slice + " has it", Doubt
	}
	worst, level := "", Good
	for i := range b.Health {
		e := &b.Health[i]
		switch _, text, _ := strings.Cut(verdictText(e), " is "); e.State {
		case wire.HealthUp:
			worst = cmp.Or(worst, text)
		case wire.HealthDown:
			worst, level = text, Bad
		case wire.HealthOut:
			if level < Bad {
				worst, level = "taken out: `svcctl in` lets it in again", Doubt
			}
		default:
			if level < Bad {
				worst, level = text, Doubt
			}
		}
	}
	if worst == "" {
		return "ready, as EndpointSlice " + b.Slice + " has it; no health check asks it", Good
	}
	return worst, level
}

// Endpoint returns the findings about an address that is an endpoint of Services, but not an address of one. backends
// must not be empty.
func Endpoint(f Facts, backends []Backend) []Finding {
	d := &diagnosis{Facts: f}
	var lines []string
	worst, first := Good, 0
	for i := range backends {
		text, level := backends[i].text()
		lines = append(lines, backends[i].Service+": "+text)
		if level > worst {
			worst, first = level, i
		}
	}
	of := backends[first].Service
	namespace, name, _ := strings.Cut(of, "/")
	switch n := len(backends); {
	case n == 2:
		of += " and 1 other Service"
	case n > 2:
		of += fmt.Sprintf(" and %d other Services", n-1)
	}
	_, state, _ := strings.Cut(lines[first], ": ")
	next := ""
	if worst > Good {
		next = "look at that server; `svcctl explain svc/" + name + " -n " + namespace + "` follows the Service"
	}
	d.add(worst, next, "%s is an endpoint of %s: %s", f.Question.Address, of, state)
	if len(lines) > 1 {
		d.details(shortened(lines)...)
	}
	d.good("clients do not connect to it: they connect to an address of a Service, as `svcctl get svc -A` lists them")
	d.leaves(f.Question.Address, backends)
	d.appliance()
	return d.findings
}

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

// going adds a finding about a Service that is being deleted and is still served because of its finalizers.
func (d *diagnosis) going() {
	meta := &d.Service.Metadata
	if meta.DeletionTimestamp == nil {
		return
	}
	d.add(Doubt, "the program that set them has to remove them; if that was a controller of a cluster, which does not run here, remove metadata.finalizers: `svcctl edit svc/"+
		d.Name+" -n "+d.Namespace+"`",
		"it is being deleted, since %s, and serves until its finalizers are gone: %s", meta.DeletionTimestamp.UTC().Format(time.RFC3339), strings.Join(meta.Finalizers, ", "))
}

// rolledOut adds a finding about the rollout that changes the Service, if any. It reports whether this box programs other versions than those in the
// API; then further findings would not apply.
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
