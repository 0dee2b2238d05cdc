package resolve

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// Reasons of Problems about health checks.
const (
	ReasonInvalidAnnotation = "InvalidAnnotation"
	ReasonEndpointDown      = "EndpointDown"
	ReasonFailingOpen       = "FailingOpen"
)

// Port identifies a port of a Service in one IP family.
type Port struct {
	Service string // "namespace/name"
	Name    string // "" for a port without a name
	// Protocol is the protocol as in manifests, such as "TCP".
	Protocol string
	Family   nft.Family
}

// Checked is an endpoint of one port that has a health check.
type Checked struct {
	Port     Port
	Endpoint netip.AddrPort
	Target   health.Target
	// Start is the state of the verdict on Target. If there is no verdict yet, it is the state that the check starts with.
	Start health.State
	// State is the state that was used when the Service was resolved.
	State health.State
	// Why, Assumed and Asked are the fields of health.Verdict with these names.
	Why            string
	Assumed, Asked bool
	// Text is the check in the form in which the annotation or Pod specifies it.
	Text string
}

// Demoted is an endpoint that is not used although its conditions permit it: svcctl.io/out excludes it, its health check has not found it up, or it
// is dead and ejected.
type Demoted struct {
	Port     string
	Protocol string
	Addr     netip.AddrPort
	// Out is set if svcctl.io/out excludes the endpoint.
	Out bool
}

// prepareChecks reads the Service's annotations for health checks, and svcctl.io/out. It is called before the endpoints are collected.
func (r *resolver) prepareChecks() {
	var refused []health.Refusal
	if r.plan, refused = health.Parse(r.Service); r.plan != nil {
		r.out.ResetDown = r.plan.Reset
	}
	var bad *health.Refusal
	if r.taken, bad = health.Out(r.Service); bad != nil {
		refused = append(refused, *bad)
	}
	if r.plan == nil && r.Pods != nil {
		r.plan = health.Unasked(r.Service)
		r.probes.unasked = r.plan != nil
	}
	r.readEject()
	for _, f := range refused {
		reason := reasonNoEffect
		if !f.Idle {
			reason = ReasonInvalidAnnotation
			r.isWrong(f.Field)
		}
		r.warn(r.ref, f.Field, reason, "%s", f.Text)
	}
}

// judge lowers the states of endpoints that svcctl.io/out excludes, that health checks have not found up, or that are dead and ejected. If too few
// usable endpoints are left, it restores the states of all but the excluded ones, as if there were no checks.
func (r *resolver) judge(endpoints map[portKey][]endpoint) {
	if r.plan == nil && r.taken == nil && r.Observed.Dead == nil && !r.out.Eject {
		return
	}
	for i := range r.Service.Spec.Ports {
		for _, family := range nft.Families {
			port := &r.Service.Spec.Ports[i]
			proto, _ := nft.ProtocolNamed(port.Protocol)
			key := portKey{port.Name, proto, family}
			if len(endpoints[key]) == 0 || len(r.vips) > 0 && !r.vips.of(family).cluster.IsValid() && !r.borrows(i, key.otherFamily(), endpoints) {
				continue // no address of the Service leads there
			}
			for list := range byBackend(endpoints[key]) {
				r.judged = list[0].backend
				for i := range list {
					if e := &list[i]; r.taken[e.addr.Addr()] && e.state > unfit {
						e.state, e.said, e.out = unfit, unfit, true
					}
				}
				if r.plan != nil && r.plan.Ports[i] != nil {
					r.ask(i, key, list)
				}
				if proto == nft.TCP && (r.plan == nil || r.plan.Ports[i] == nil || r.probes.unasked) {
					r.bury(i, key, list)
				}
				for j := range list {
					if e := &list[j]; e.said == ready && e.state < draining || e.out {
						r.out.Demoted = append(r.out.Demoted, Demoted{port.Name, port.Protocol, e.addr, e.out})
					}
				}
			}
		}
	}
	if r.judged = ""; r.backends != nil { // an endpoint of two backends is judged in both
		r.out.Checked, r.out.Demoted, r.out.Dead = once(r.out.Checked), once(r.out.Demoted), once(r.out.Dead)
	}
	r.reportProbes()
}

// ask lowers the states of a port's endpoints according to the verdicts of their health checks.
func (r *resolver) ask(index int, key portKey, list []endpoint) {
	port := &r.Service.Spec.Ports[index]
	spec := r.plan.Ports[index]
	name := Port{r.ref.Key(), port.Name, port.Protocol, key.family}
	var start func(*endpoint) health.State // made when it is first needed
	var down []string
	var isNew bool
	var checked, up int
	var tally assumptions
	for i := range list {
		e := &list[i]
		if e.state == unfit {
			continue
		}
		questions := r.questions(index, spec, e)
		if len(questions) == 0 {
			continue
		}
		var all answers
		for _, q := range questions {
			verdict := r.verdict(&q.target)
			c := Checked{Port: name, Endpoint: e.addr, Target: q.target, Text: q.text, Start: verdict.State, Why: verdict.Why}
			if !verdict.Known {
				if start == nil {
					start = r.starts(name, port, slices.Clone(list))
				}
				c.Start = start(e)
			}
			c.State, c.Assumed, c.Asked = c.Start, verdict.Assumed || !verdict.Known && c.Start == health.Up, verdict.Asked
			all.add(&c, verdict.Verdict)
			r.out.Checked = append(r.out.Checked, c)
		}
		tally.add(all.state, all.assumed, i)
		checked++
		switch all.state {
		case health.Up:
			up++
			continue
		case health.New:
			isNew = true
		case health.Down:
			down = append(down, downText(e.addr, all.verdict))
		}
		e.state, e.notUp = failed, true
	}
	if checked == 0 {
		return
	}
	r.reportDown(index, down, checked)
	if tally.undecided() {
		// After a restart of a box that fails open each would go by itself, and come back with the last.
		r.out.Waiting = true
		for _, i := range tally.fallen {
			list[i].state, list[i].notUp = list[i].said, false
		}
	}
	r.failOpen(index, list, isNew, checked, up, down)
}

// verdict returns the verdict on a Target. If there is none, it adds the Target to Output.Demand and returns the zero Verdict. It first tries the
// element of Observed.Verdicts after the last one found, since these usually have the same order as the endpoints.
func (r *resolver) verdict(t *health.Target) Verdict {
	all := r.Observed.Verdicts
	if r.nextVerdict < len(all) && *all[r.nextVerdict].Target == *t {
		r.nextVerdict++
		return all[r.nextVerdict-1]
	}
	if r.verdicts == nil {
		r.verdicts = make(map[health.Target]int, len(all))
		for i := range all {
			r.verdicts[*all[i].Target] = i
		}
	}
	i, observed := r.verdicts[*t]
	if !observed {
		r.out.Demand.Targets = append(r.out.Demand.Targets, new(*t))
		return Verdict{}
	}
	r.nextVerdict = i + 1
	return all[i]
}

// answers combines the verdicts of all checks of one endpoint into the worst state.
type answers struct {
	state   health.State
	assumed bool           // a verdict with this state is assumed
	verdict health.Verdict // first verdict with this state
	any     bool
}

func (a *answers) add(c *Checked, v health.Verdict) {
	rank := func(s health.State) int { return slices.Index([]health.State{health.Up, health.New, health.Down}, s) }
	switch worse := rank(c.State) - rank(a.state); {
	case !a.any || worse > 0:
		*a = answers{c.State, c.Assumed, v, true}
	case worse == 0:
		a.assumed = a.assumed || c.Assumed
	}
}

// assumptions summarizes the health states of a port's endpoints. An endpoint is assumed to be up if it started in state Up and has not passed a
// check since the process started (health.Verdict.Assumed).
type assumptions struct {
	proven bool  // the check of an endpoint has passed
	open   bool  // an endpoint is still assumed to be up
	fallen []int // indexes of endpoints that were assumed to be up and are down
}

func (a *assumptions) add(state health.State, assumed bool, index int) {
	switch {
	case state == health.Up && assumed:
		a.open = true
	case state == health.Up:
		a.proven = true
	case state == health.Down && assumed:
		a.fallen = append(a.fallen, index)
	}
}

// undecided reports whether endpoints that were assumed to be up are down, others are still assumed to be up, and no check has passed.
func (a *assumptions) undecided() bool { return a.open && !a.proven && len(a.fallen) > 0 }

// downText formats an endpoint that is down, with the reason in parentheses.
func downText(addr netip.AddrPort, v health.Verdict) string {
	if v.Why == "" {
		return addr.String()
	}
	return fmt.Sprintf("%s (%s)", addr, v.Why)
}

// maxNamed is the maximum number of endpoints that a problem's message lists.
const maxNamed = 5

func (r *resolver) reportDown(index int, down []string, checked int) {
	if len(down) == 0 {
		return
	}
	r.warn(r.ref, fmt.Sprintf("spec.ports[%d]", index), ReasonEndpointDown, "%s: %s down: %s; `svcctl health svc/%s -n %s` has the times",
		r.portText(index), of(len(down), checked), First(down, maxNamed), r.ref.Name, r.ref.Namespace)
	r.cause(down)
}

// maxCauses is the maximum number of endpoints in the Cause of a problem.
const maxCauses = 100

// cause sets the Cause of the most recently added problem: the endpoints in down, at most maxCauses of them.
func (r *resolver) cause(down []string) {
	r.out.Problems[len(r.out.Problems)-1].Cause = strings.Join(down[:min(len(down), maxCauses)], "; ")
}

func (r *resolver) portText(index int) string {
	port := &r.Service.Spec.Ports[index]
	text := "port " + port.Name
	if port.Name == "" {
		text = fmt.Sprintf("port %d", port.Port)
	}
	if r.judged != "" {
		text += ", backend " + r.judged
	}
	return text
}

// of formats the start of a sentence about n endpoints of all, with its verb: "1 of 4 endpoints is", "2 of 4 endpoints are".
func of(n, all int) string {
	what, verb := "endpoints", "are"
	if all == 1 {
		what = "endpoint"
	}
	if n == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%d of %d %s %s", n, all, what, verb)
}

// allOf returns phrases for all n endpoints of a port: as the subject of a sentence with its verb ("both endpoints are"), and as an object ("both of
// them").
func allOf(n int) (are, them string) {
	switch n {
	case 1:
		return "its only endpoint is", "it"
	case 2:
		return "both endpoints are", "both of them"
	}
	return fmt.Sprintf("all %d endpoints are", n), "all of them"
}

// failOpen makes all checked endpoints of a port usable, as their objects specify, if no endpoint is usable or the fraction of usable ones is less
// than Plan.MinHealthy. Endpoints of weight 0 are not counted, as they get no new connections in any case.
func (r *resolver) failOpen(index int, list []endpoint, isNew bool, checked, up int, down []string) {
	var able, offered, fit, left int
	for i := range list {
		e := &list[i]
		if e.weight == 0 || e.said < draining {
			continue
		}
		able++
		if e.said == ready {
			offered++
		}
		if e.state == ready {
			fit++
		}
		if e.state >= draining {
			left++
		}
	}
	few := r.plan != nil && offered > 0 && fit*100 < r.plan.MinHealthy*offered
	if able == 0 || left > 0 && !few {
		return
	}
	opened := false
	for i := range list {
		if list[i].state == failed {
			list[i].state, opened = list[i].said, true
		}
	}
	if !opened || isNew && left == 0 {
		return // those that are new answer in a moment, or are down then
	}
	r.out.FailingOpen++
	if field := fmt.Sprintf("spec.ports[%d]", index); left > 0 {
		r.warn(r.ref, field, ReasonFailingOpen, "%s: %s up, fewer than the %d %% that %s asks for, so traffic goes to all of them; fix a server, or the check",
			r.portText(index), of(up, checked), r.plan.MinHealthy, health.AnnotationCheck+"-min-healthy")
	} else {
		are, them := allOf(checked)
		r.refuse(field, ReasonFailingOpen, "%s: %s down, so traffic still goes to %s; fix a server, or the check", r.portText(index), are, them)
	}
	r.cause(down)
}

// target returns the Target of a check for an endpoint. It returns false if the check names a port that the endpoint's slices do not have.
func (r *resolver) target(spec *health.Spec, addr netip.AddrPort) (health.Target, bool) {
	at := addr
	switch {
	case spec.Check.Kind == health.ICMP:
		at = netip.AddrPortFrom(addr.Addr(), 0)
	case spec.Port != 0:
		at = netip.AddrPortFrom(addr.Addr(), spec.Port)
	case spec.PortName != "":
		number, ok := r.named(spec.PortName, addr.Addr())
		if !ok {
			return health.Target{}, false
		}
		at = netip.AddrPortFrom(addr.Addr(), number)
	}
	return health.Target{Addr: at, Check: spec.Check}, true
}

// named returns the number of the port with the given name at an address, from the EndpointSlices. It returns false if there is none.
func (r *resolver) named(name string, addr netip.Addr) (uint16, bool) {
	if r.byName == nil {
		r.byName = map[portName]uint16{}
		quiet := resolver{Input: r.Input, facts: r.facts} // its problems are reported already
		quiet.visit(func(addr netip.Addr, _ endpoint, _ string, ports []object.EndpointPort) {
			for i := range ports {
				if name, _, ok := matches(&ports[i]); ok {
					r.byName[portName{name, addr}] = uint16(*ports[i].Port)
				}
			}
		})
	}
	number, ok := r.byName[portName{name, addr}]
	return number, ok
}

type portName struct {
	name string
	addr netip.Addr
}

// starts returns a function that returns the initial state of an endpoint, for the time until its check has a verdict. The state is Up for an
// endpoint that the previous plan of the port used, and New for any other. In the first plan of this process it is Up for an endpoint that the kernel
// used. It is then Down for an endpoint that the kernel would have used if all were up, and Up for the rest. If no endpoint was used before, all are
// Up.
func (r *resolver) starts(name Port, port *object.ServicePort, list []endpoint) func(*endpoint) health.State {
	r.out.Demand.Adopted = true
	before, missing := r.usedBefore(name), health.New
	served := map[netip.AddrPort]*nft.ServicePort{}
	if r.Observed.Adopted != nil {
		proto, _ := nft.ProtocolNamed(name.Protocol)
		before, missing = nil, health.Down
		for _, at := range r.frontendAddrs(name.Family, port) {
			if p := r.Observed.Adopted[Frontend{name.Family, proto, at}]; p != nil {
				before, served[at] = append(before, p.Serving...), p
			}
		}
	}
	if r.judged != "" { // each backend by itself
		before = slices.DeleteFunc(slices.Clone(before), func(ap netip.AddrPort) bool {
			return !slices.ContainsFunc(list, func(e endpoint) bool { return e.addr == ap })
		})
	}
	if len(before) == 0 {
		return func(*endpoint) health.State { return health.Up }
	}
	// An endpoint that would not be used if all were up was not down: topology or a policy passes it over.
	states := map[netip.AddrPort]health.State{}
	if missing == health.Down {
		for i := range list {
			states[list[i].addr] = health.Up
			if list[i].state == failed {
				list[i].state = list[i].said
			}
		}
		sel := r.selectEndpoints(list)
		led := [nft.NumPools]bool{} // the kernel has no endpoints of a pool that no frontend leads to
		for _, fe := range r.frontends(port, r.vips.of(name.Family), sel) {
			if served[netip.AddrPortFrom(fe.Addr, fe.Port)] != nil {
				led[fe.Internal.Pool], led[fe.External.Pool] = true, true
			}
		}
		for pool, used := range sel.pools {
			if !led[pool] {
				continue
			}
			if r.algorithm != nft.DestinationHash {
				for _, addr := range used {
					states[addr] = health.Down
				}
				continue
			}
			for at, p := range served { // the kernel has the first choice of a frontend alone: what it would prefer to that was down
				left := &nft.ServicePort{Balance: nft.DestinationHash, Pools: [nft.NumPools][]netip.AddrPort{slices.Clone(used)}}
				for len(p.Pools[pool]) > 0 && len(left.Pools[0]) > 0 {
					first, _ := left.Choice(&nft.Frontend{Addr: at.Addr(), Port: at.Port()}, 0)(netip.AddrPort{})
					if slices.Contains(p.Pools[pool], first) {
						break
					}
					states[first] = health.Down
					left.Pools[0] = slices.DeleteFunc(left.Pools[0], func(ap netip.AddrPort) bool { return ap == first })
				}
			}
		}
	}
	for _, addr := range before {
		states[addr] = health.Up
	}
	return func(e *endpoint) health.State {
		if state, known := states[e.addr]; known {
			return state
		}
		return missing
	}
}

// usedBefore returns the endpoints that the previous plan used for a port.
func (r *resolver) usedBefore(name Port) (used []netip.AddrPort) {
	id := PortID(name.Service, name.Name)
	for i := range r.Previous.Ports {
		if p := &r.Previous.Ports[i]; p.ID == id && p.Family == name.Family {
			return slices.Concat(p.Pools[nft.PoolCluster], p.Pools[nft.PoolLocal])
		}
	}
	for i := range r.Previous.Checked { // a headless Service is served by names only
		if c := &r.Previous.Checked[i]; c.Port == name {
			used = append(used, c.Endpoint)
		}
	}
	return used
}

// frontendAddrs returns the addresses and ports of the frontends of a port. The zero Addr stands for its node port.
func (r *resolver) frontendAddrs(family nft.Family, port *object.ServicePort) []netip.AddrPort {
	v := r.vips.of(family)
	var at []netip.AddrPort
	for _, a := range slices.Concat([]netip.Addr{v.cluster}, v.balancer, v.external) {
		if a.IsValid() {
			at = append(at, netip.AddrPortFrom(a, uint16(port.Port)))
		}
	}
	if port.NodePort != 0 {
		at = append(at, netip.AddrPortFrom(netip.Addr{}, uint16(port.NodePort)))
	}
	return at
}

// reasonProbeRefused is the Reason of the problem that a Pod's readiness probe cannot be used as a health check.
const reasonProbeRefused = "ProbeRefused"

// question is one health check of an endpoint, with its text form for messages.
type question struct {
	target health.Target
	text   string
}

// probes holds the readiness probes of the Pods of one Service.
type probes struct {
	// unasked is set if no annotation of the Service specifies checks. Then only Pods without a Ready condition are probed.
	unasked bool
	of      map[string][]health.Probe // probes by Pod name
	// refused holds the names of the Pods whose probes were refused, by refusal.
	refused map[health.Refusal][]string
}

// questions returns the checks that an endpoint has to pass, nil if it is not checked.
func (r *resolver) questions(index int, spec *health.Spec, e *endpoint) []question {
	if spec.Probe {
		var all []question
		for _, p := range r.probesOf(e.pod) {
			all = append(all, question{health.Target{Addr: netip.AddrPortFrom(e.addr.Addr(), p.Port), Check: p.Check}, p.Text})
		}
		return all
	}
	target, ok := r.target(spec, e.addr)
	if !ok {
		r.warn(r.ref, fmt.Sprintf("spec.ports[%d]", index), ReasonInvalidAnnotation,
			"endpoint %s is not checked: its EndpointSlice has no port named %q, which the check %s asks", e.addr, spec.PortName, spec.Text)
		return nil
	}
	return []question{{target, spec.Text}}
}

// probesOf returns the readiness probes of the Pod with the given name, nil if it is not probed.
func (r *resolver) probesOf(name string) []health.Probe {
	if name == "" || r.Pods == nil {
		return nil
	}
	pod := r.Pods.Pod(r.ref.Namespace + "/" + name)
	if pod == nil { // it was not exported, or was removed
		r.out.Pods = append(r.out.Pods, name)
		return nil
	}
	if list, known := r.probes.of[name]; known {
		return list
	}
	if r.probes.of == nil {
		r.probes.of, r.probes.refused = map[string][]health.Probe{}, map[health.Refusal][]string{}
	}
	var list []health.Probe
	if selector := r.Service.Spec.Selector; len(selector) == 0 || !object.HasLabels(pod.Metadata.Labels, selector) {
		r.out.Pods = append(r.out.Pods, name)
	}
	if pod.Probed() {
		r.out.Probed = true
		if !r.probes.unasked || !pod.Judged() {
			var refused []health.Refusal
			list, refused = health.Probes(pod)
			for _, f := range refused {
				r.probes.refused[f] = append(r.probes.refused[f], name)
			}
		}
	}
	r.probes.of[name] = list
	return list
}

// reportProbes adds a warning about readiness probes that cannot be used, one for all Pods with the same reason.
func (r *resolver) reportProbes() {
	for _, f := range slices.SortedFunc(maps.Keys(r.probes.refused), func(a, b health.Refusal) int {
		return strings.Compare(a.Field+a.Text, b.Field+b.Text)
	}) {
		pods := r.probes.refused[f]
		slices.Sort(pods)
		more := ""
		if len(pods) > 1 {
			more = fmt.Sprintf(", like %d others", len(pods)-1)
		}
		r.warn(object.Ref{Kind: object.KindPod, Namespace: r.ref.Namespace, Name: pods[0]}, f.Field, reasonProbeRefused,
			"%s; until then the Pod counts by its document for %s%s", f.Text, r.ref, more)
	}
}
