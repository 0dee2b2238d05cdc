package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Level is the severity of a finding.
type Level int

// The levels, the better ones first.
const (
	Note Level = iota - 1 // not a result, such as a check that was skipped
	Good
	Doubt
	Bad
)

// Finding is the result of one check.
type Finding struct {
	Level Level
	Text  string
	// Details are more lines, such as the endpoints that it is about.
	Details []string
	// Next is the next step for the reader; "" where nothing needs to be done.
	Next string
	// own is set for a fact that the conditions of the Service do not cover.
	own bool
}

// Question is the destination that a client wants to reach.
type Question struct {
	Address  netip.Addr // the zero Addr means any address of the Service
	Port     uint16     // 0 means any port of the Service
	Protocol string     // "": any
}

// Facts holds the input of a diagnosis. It has more than 15 fields: one for each response of the API that a finding needs. Only Status is required.
// Service is nil if the Service does not exist.
type Facts struct {
	Namespace, Name string
	Question        Question
	Service         *object.Service
	Slices          []*object.EndpointSlice
	// Led holds the EndpointSlices of the Services that this Service, generated for a Gateway, forwards TLS clients to by server name (SNI).
	Led []*object.EndpointSlice
	// Pods has the Pods that the Service selects.
	Pods        []*object.Pod
	Status      *wire.Status
	Allocations *wire.Allocations // nil if unknown
	// State is the state of the Service in the appliance, as planned for the kernel; nil if unknown.
	State *wire.ServiceState
	// Traffic has the kernel's counters of the Service; nil if unknown.
	Traffic *wire.Traffic
	// Probed has the results of test connections that the box made to each endpoint; nil if none were requested.
	Probed []wire.Probed
	// Wide adds revisions to the output.
	Wide bool
	// Rivals are the other Services, such as "default/web", that ask for the address and port of the Question and are not served there because of a
	// conflict.
	Rivals []string
	// Box lists the addresses of the box; nil if unknown.
	Box []wire.BoxAddress
	// NodelessLocal counts endpoints without a node name as local, the default.
	NodelessLocal bool
}

// Worst returns the highest level of findings.
func Worst(findings []Finding) Level {
	worst := Good
	for _, f := range findings {
		worst = max(worst, f.Level)
	}
	return worst
}

// Service returns the findings about a Service, from its object to the kernel. It stops when a finding makes further checks pointless. The first
// finding summarizes the conditions of the Service, and the findings after it are the reasons. If the first one is not Bad, a Bad finding after it is
// lowered to Doubt, unless it is about the Question or Probed, which the conditions do not cover.
func Service(f Facts) []Finding {
	d := &diagnosis{Facts: f}
	verdict := d.verdict()
	d.checks()
	if i := slices.IndexFunc(d.findings, func(f Finding) bool { return f.Level == Bad && f.own }); i >= 0 && (verdict == nil || verdict.Level == Good) {
		verdict = new(d.findings[i]) // what was asked about does not answer
		d.findings = slices.Delete(d.findings, i, i+1)
	}
	if verdict == nil {
		if d.othersFail() && Worst(d.findings) != Bad {
			return slices.Insert(d.findings, 0, Finding{Text: "it answers there"})
		}
		return d.findings
	}
	for i := range d.findings {
		if f := &d.findings[i]; f.Level == Bad && !f.own {
			f.Level = min(f.Level, max(verdict.Level, Doubt))
		}
	}
	return slices.Insert(d.findings, 0, *verdict)
}

// condition returns a condition of the Service by its type; nil if the appliance has not set it.
func (d *diagnosis) condition(name string) *object.Condition {
	if d.Service == nil {
		return nil
	}
	conditions := d.Service.Status.Conditions
	i := slices.IndexFunc(conditions, func(c object.Condition) bool { return c.Type == name })
	if i < 0 {
		return nil
	}
	return &conditions[i]
}

// verdict returns the finding about whether the Service answers. It returns nil if the appliance does not judge the Service, judges another version
// of it, or only ports or addresses other than those of the Question fail.
func (d *diagnosis) verdict() *Finding {
	ready, programmed := d.condition(wire.ConditionReady), d.condition(wire.ConditionProgrammed)
	switch {
	case ready == nil || programmed == nil || d.State != nil && d.State.Rollout != nil && !d.State.Rollout.New:
		return nil
	case d.Status.Ready && d.othersFail(): // the port and address that are asked for may answer
		return nil
	case !d.Status.Ready:
		return &Finding{Level: Bad, Text: "whether it answers is not known: the appliance is not ready: " + d.Status.Reason, Next: "wait: `svcctl wait --for ready`"}
	case ready.Status == object.ConditionUnknown:
		return &Finding{Level: Bad, Text: "whether it answers is not known: " + ready.Message, Next: "`svcctl wait --for synced`; `svcctl status` names the reason"}
	case ready.Status != object.ConditionTrue:
		return &Finding{Level: Bad, Text: "it does not answer: " + ready.Message}
	case programmed.Status != object.ConditionTrue:
		return &Finding{Level: Bad, Text: "it answers, in an earlier version: " + programmed.Message}
	}
	return &Finding{Level: Good, Text: "it answers: " + ready.Message}
}

// othersFail reports whether the Service is not Ready because of a port, address or IP family that the Question is not about.
func (d *diagnosis) othersFail() bool {
	ready := d.condition(wire.ConditionReady)
	return ready != nil && ready.Status == "False" && slices.ContainsFunc(d.problems(), func(p wire.Problem) bool {
		return p.Reason == ready.Reason && p.Message == ready.Message && d.elsewhere(&p)
	})
}

// elsewhere reports whether a problem concerns only ports or addresses other than those of the Question, or only the other IP family.
func (d *diagnosis) elsewhere(p *wire.Problem) bool {
	ports, other := d.ports(), object.IPv6
	if d.Question.Address.Is6() {
		other = object.IPv4
	}
	if d.Question.Address.IsValid() && len(ports) > 0 && (strings.Contains(p.Message, " over "+other+": ") || strings.Contains(p.Message, " of its "+other+" addresses") ||
		p.Cause != "" && strings.HasPrefix(p.Cause, "[") == (other == object.IPv6) && !slices.ContainsFunc(ports, d.isRelayed)) { // a relay uses endpoints of either
		return true
	}
	addr, _, _ := strings.Cut(p.Message, " port ") // of a frontend that another Service has
	if at, err := netip.ParseAddr(addr); err == nil && p.Reason == "PortConflict" && d.Question.Address.IsValid() && at != d.Question.Address {
		return true
	}
	return d.Question.Port != 0 && len(ports) > 0 && !slices.ContainsFunc(ports, func(port object.ServicePort) bool { return d.concerns(p.Field, &port) })
}

type diagnosis struct {
	Facts
	findings []Finding
}

// checks makes the checks in their order.
func (d *diagnosis) checks() {
	if d.rolledOut() {
		if d.Service != nil {
			d.programmed()
		}
		d.appliance()
		return
	}
	if !d.exists() {
		return
	}
	d.accepted()
	d.gateway()
	if !d.reachable() {
		return
	}
	d.allocated()
	if d.asked() {
		d.served()
		d.neighbors()
		d.endpoints()
		d.bridged()
		d.relayed()
		d.health()
		d.balance()
		d.fastPath()
		d.policies()
		d.clients()
		d.traffic()
	}
	d.programmed()
	d.appliance()
}

func (d *diagnosis) good(format string, args ...any) { d.add(Good, "", format, args...) }

func (d *diagnosis) add(level Level, next, format string, args ...any) {
	d.findings = append(d.findings, Finding{Level: level, Text: fmt.Sprintf(format, args...), Next: next})
}

// own adds a finding about a fact that is not in the conditions of the Service.
func (d *diagnosis) own(level Level, next, format string, args ...any) {
	d.add(level, next, format, args...)
	d.findings[len(d.findings)-1].own = true
}

// details adds lines to the last finding.
func (d *diagnosis) details(lines ...string) {
	last := &d.findings[len(d.findings)-1]
	last.Details = append(last.Details, lines...)
}

// ref returns the name of the Service as problems have it: "Service NAMESPACE/NAME".
func (d *diagnosis) ref() string {
	return object.Ref{Kind: object.KindService, Namespace: d.Namespace, Name: d.Name}.String()
}

// problems returns the problems of the Service.
func (d *diagnosis) problems() []wire.Problem {
	return slices.DeleteFunc(slices.Clone(d.Status.Problems), func(p wire.Problem) bool { return p.Object != d.ref() })
}

// exists reports whether the Service exists, and adds a finding about that.
func (d *diagnosis) exists() bool {
	if d.Service != nil {
		d.good("the Service exists%s", d.origin())
		d.going()
		return true
	}
	if d.State != nil && d.State.NotStored != nil {
		at := d.State.NotStored
		place := at.File
		if at.Line > 0 {
			place += ":" + strconv.Itoa(at.Line)
		}
		d.add(Bad, "`svcctl status` names the reason; it is tried again by itself", "%s declares it, but it is not stored yet: %s", place, at.Why)
		return false
	}
	if problems := d.problems(); len(problems) > 0 {
		d.add(Bad, "correct it where it is written", "the Service was refused")
		for _, p := range problems {
			p.Object = ""
			d.details(p.String())
		}
		return false
	}
	d.add(Bad, "apply it, or put it into a watched directory: `svcctl get services -A` lists what there is", "there is no Service %s in the namespace %s", d.Name, d.Namespace)
	for _, p := range d.Status.Problems {
		isSource := func(s wire.Source) bool { return s.Dir == p.File } // which has a line of its own
		if p.Object == "" && p.File != "" && p.Severity == wire.SeverityError && !slices.ContainsFunc(d.Status.Sources, isSource) {
			d.details("a file that cannot be read may declare it: " + p.String())
		}
	}
	for _, s := range d.Status.Sources {
		if s.State == wire.SourceReading || s.State == wire.SourceUnavailable {
			d.details(fmt.Sprintf("the directory %s is %s: %s", s.Dir, s.State, s.Error))
		}
	}
	return false
}

// origin returns the file or manager of the Service, as a clause that begins with a comma; "" if
// unknown.
func (d *diagnosis) origin() string {
	managers := Managers(d.Service)
	switch {
	case d.State != nil && d.State.Declared != "":
		return ", declared by " + d.State.Declared
	case len(managers) == 0:
		return ""
	case managers[0] == fileManager:
		return ", declared by " + fileManager
	}
	return ", managed by " + strings.Join(managers, " and ")
}

// fileManager is the text shown for the field manager gitops, which owns the fields of objects read from files.
const fileManager = "a file of the appliance"

// Managers returns the managers of a Service's fields, except of its status; a file that declares
// it comes first.
func Managers(svc *object.Service) []string {
	var managers []string
	for _, e := range svc.Metadata.ManagedFields {
		switch {
		case e.Subresource != "":
		case e.Manager == "gitops":
			managers = slices.Insert(managers, 0, fileManager)
		case !slices.Contains(managers, e.Manager):
			managers = append(managers, e.Manager)
		}
	}
	return managers
}

// refusedByKernel is the reason of the problem of a Service that the kernel refused. The check d.programmed reports it, so d.accepted does not.
const refusedByKernel = "RefusedByKernel"

// accepted checks that the Service, its slices and their files have no problems.
func (d *diagnosis) accepted() {
	var bad, doubtful, others []string
	named := false
	for _, p := range d.related() {
		if p.Object == d.ref() && d.elsewhere(&p) {
			p.Object, named = "", true
			others = append(others, p.String())
			continue
		}
		isReason := func(c object.Condition) bool {
			return c.Status == "False" && c.Reason == p.Reason && c.Message == p.Message
		}
		if p.Object == d.ref() && slices.ContainsFunc(d.Service.Status.Conditions, isReason) {
			named = true
			continue
		}
		if p.Object == d.ref() {
			p.Object = ""
		}
		severity := p.Severity
		p.Severity = ""
		switch {
		case p.Reason == refusedByKernel:
		case severity == wire.SeverityError:
			bad = append(bad, p.String())
		default:
			doubtful = append(doubtful, p.String())
		}
	}
	switch {
	case len(bad) > 0:
		d.add(Bad, "fix it: `svcctl status` has the next step; if this version is refused, the last valid one stays in force", "%s with it", count(len(bad), "problem"))
		d.details(append(bad, doubtful...)...)
	case len(doubtful) > 0:
		d.add(Doubt, "", "%s about it", count(len(doubtful), "warning"))
		d.details(doubtful...)
	case !named:
		d.good("nothing in it was refused")
	}
	if len(others) > 0 {
		d.add(Note, "", "%s with other ports or addresses of it: `svcctl explain svc/%s -n %s` covers all", count(len(others), "problem"), d.Name, d.Namespace)
		d.details(others...)
	}
}

// reachable reports whether the Service has VIPs by its type. If it does not, because it is headless or an ExternalName, reachable adds the findings
// about that. For a headless Service these include its endpoints and their health.
func (d *diagnosis) reachable() bool {
	switch spec := &d.Service.Spec; {
	case spec.Type == object.TypeExternalName:
		d.add(Doubt, "ask DNS for it", "it is an ExternalName: it has no VIP, its name leads to %s", spec.ExternalName)
		return false
	case d.Service.Headless():
		d.add(Doubt, "ask DNS for it, or set a cluster IP", "it is headless: it has no VIP, its name leads to its endpoints")
		d.endpoints()
		d.health()
		return false
	}
	return true
}

// allocated checks that the Service has the addresses that it asks for.
func (d *diagnosis) allocated() {
	spec := &d.Service.Spec
	if len(spec.ClusterIPs) == 0 {
		d.add(Bad, "look at the ranges: `svcctl admin alloc`", "it has no cluster IP")
	} else {
		d.good("it has the cluster IP %s", strings.Join(spec.ClusterIPs, " and "))
	}
	if spec.Type != object.TypeLoadBalancer {
		return
	}
	if ips := d.Service.IngressIPs(); len(ips) > 0 {
		d.good("it has the load balancer IP %s", strings.Join(ips, " and "))
		return
	}
	pending := d.problems()
	if i := slices.IndexFunc(pending, func(p wire.Problem) bool { return p.Reason == "Pending" }); i >= 0 {
		d.add(Bad, "the warning above names the next step; `svcctl admin alloc` lists the pools with their holders", "it waits for a load balancer IP: %s", pending[i].Message)
		return
	}
	if annotation.InternalOf(d.Service).Key != "" {
		d.add(Bad, "give the appliance an internal pool with --load-balancer-internal-pool, or one that is larger: `svcctl admin alloc`; or take the annotation away", "it waits for an internal load balancer IP")
		return
	}
	next := "add a pool, or a larger one (`svcctl admin alloc` lists them): " + d.Status.Packaged.Pool() + ", or an IPAddressPool"
	if class := spec.LoadBalancerClass; class != nil && *class != "svcctl.io/load-balancer" {
		next = fmt.Sprintf("another product has to allocate it: its class is %s", *class)
	}
	d.add(Bad, next, "it waits for a load balancer IP")
}

// asked reports whether the Service has the port of the Question and, for a node port, whether node ports answer at the address of the Question. If
// not, it adds a finding.
func (d *diagnosis) asked() bool {
	q := d.Question
	if q.Port == 0 && !q.Address.IsValid() {
		return true
	}
	ports := d.ports()
	if len(ports) > 0 && d.asksNodePort() && q.Address.Is6() && q.Address.IsLinkLocalUnicast() {
		d.own(Bad, "ask at another address of the box", "node ports do not answer at link-local addresses of IPv6, as %s: the kernel forwards no packet of their clients", q.Address)
		return false
	}
	if len(ports) > 0 && d.asksNodePort() && q.Address.IsValid() && !d.answersAt() {
		return false
	}
	if len(ports) > 0 {
		return true
	}
	var have []string
	for _, p := range d.Service.Spec.Ports {
		text := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort > 0 {
			text += fmt.Sprintf(" (node port %d)", p.NodePort)
		}
		have = append(have, text)
	}
	for _, r := range d.Service.PortRanges() {
		have = append(have, fmt.Sprintf("%d-%d/%s", r.First, r.Last, r.Protocol))
	}
	d.own(Bad, "ask for one of these, or add the port to the Service", "it does not serve port %d%s: it has %s", q.Port, slashed(q.Protocol), strings.Join(have, ", "))
	return false
}

// answersAt reports whether node ports answer at the address of the Question, a box address. If not, it adds a finding.
func (d *diagnosis) answersAt() bool {
	i := slices.IndexFunc(d.Box, func(a wire.BoxAddress) bool { return a.Address == d.Question.Address.String() })
	if i < 0 || d.Box[i].NodePorts {
		return true
	}
	var at []string
	for _, a := range d.Box {
		if a.NodePorts {
			at = append(at, a.Address)
		}
	}
	why := "--nodeport-addresses leaves it out"
	if addr := d.Question.Address; addr.IsLoopback() || addr.IsLinkLocalUnicast() {
		why = "--nodeport-addresses has to name a prefix with it"
	}
	next := "name it in nodeportAddresses of /etc/svcctl/svcctl.yaml (--nodeport-addresses)"
	if len(at) > 0 {
		next = "ask at " + strings.Join(shortened(at), ", ") + ", or " + next
	}
	d.own(Bad, next, "%s is an address of this box, and node ports do not answer there: %s", d.Question.Address, why)
	return false
}

func slashed(protocol string) string {
	if protocol == "" {
		return ""
	}
	return "/" + protocol
}

// ports returns the ports of the Service that the Question is about.
func (d *diagnosis) ports() []object.ServicePort {
	q := d.Question
	var ports []object.ServicePort
	for _, p := range d.Service.Spec.Ports {
		number := p.Port
		if d.asksNodePort() {
			number = p.NodePort
		}
		if (q.Port == 0 || number == int32(q.Port)) && (q.Protocol == "" || strings.EqualFold(q.Protocol, p.Protocol)) {
			ports = append(ports, p)
		}
	}
	if q.Port != 0 && len(ports) == 0 {
		return d.behindRanges()
	}
	return ports
}

// asksNodePort reports whether the Question is about a port of the box: it has no address, or
// one that is not the Service's.
func (d *diagnosis) asksNodePort() bool {
	q := d.Question
	if !q.Address.IsValid() {
		return q.Port != 0
	}
	return !slices.Contains(d.Service.VIPs(), q.Address)
}

// count formats a number with a noun: "1 problem", "2 problems".
func count(n int, noun string) string { return number(n, noun, noun+"s") }

// number formats a number with the words for one or for many: "1 endpoint does", "2 endpoints do".
func number(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
