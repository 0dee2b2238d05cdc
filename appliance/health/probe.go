package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// probeWord is the CHECK that selects the readiness probes of an endpoint's Pod as its checks.
const probeWord = "probe"

// Probe is the readiness probe of a container, as a check of the Pod's address.
type Probe struct {
	Check Check
	Port  uint16
	// Text is the CHECK that does the same, such as "http:8080/healthz".
	Text string
}

// Unasked returns the Plan of a Service without health-check annotations. It checks Pods that have a readinessProbe but no condition Ready by that
// probe. Unasked returns nil for a Service with health-check annotations or with publishNotReadyAddresses.
func Unasked(svc *object.Service) *Plan {
	p := parser{svc: svc, have: svc.Metadata.Annotations}
	if svc.Spec.PublishNotReadyAddresses || p.asksOurs() || svc.Spec.Type == object.TypeLoadBalancer && p.asksAWS() {
		return nil
	}
	plan := &Plan{Ports: make([]*Spec, len(svc.Spec.Ports))}
	for i := range plan.Ports {
		plan.Ports[i] = &Spec{Probe: true, Text: probeWord}
	}
	return plan
}

// Probes returns the readiness probes of the containers of a Pod; all have to pass. When one is refused
// there are none: a Pod is checked as written, or not at all.
func Probes(pod *object.Pod) (probes []Probe, refused []Refusal) {
	for field, container := range pod.Running() {
		if container.ReadinessProbe == nil {
			continue
		}
		r := probeReader{field: field + ".readinessProbe", container: container}
		probe := r.read(container.ReadinessProbe)
		probes, refused = append(probes, probe), append(refused, r.refused...)
	}
	if len(refused) > 0 {
		return nil, refused
	}
	return probes, nil
}

// probeReader converts the readiness probe of one container to a Probe.
type probeReader struct {
	field     string
	container *object.Container
	refused   []Refusal
}

// refuse adds a Refusal of a field of the probe. Its text starts with the name of the field, since messages show the text after the name of the Pod.
func (r *probeReader) refuse(name, format string, args ...any) {
	r.refused = append(r.refused, Refusal{Field: r.field + "." + name, Text: "readinessProbe." + name + ": " + fmt.Sprintf(format, args...)})
}

// Reasons for which fields of a probe are refused.
const (
	noProgram   = "no program is run for a check; serve the answer over HTTP, or let the program write it into the document (ready: false)"
	noOtherHost = "a check goes to the endpoint itself; leave it out"
)

func (r *probeReader) read(probe *object.Probe) Probe {
	out := Probe{Check: Check{
		Interval: r.seconds("periodSeconds", cmp.Or(probe.PeriodSeconds, 10), maxInterval),
		Timeout:  r.seconds("timeoutSeconds", cmp.Or(probe.TimeoutSeconds, 1), maxTimeout),
		Rise:     int(cmp.Or(probe.SuccessThreshold, 1)), Fall: int(cmp.Or(probe.FailureThreshold, 3)),
	}}
	c := &out.Check
	what := ""
	switch {
	case probe.Exec != nil:
		r.refuse("exec", noProgram)
	case probe.HTTPGet != nil:
		r.http(probe.HTTPGet, &out)
		what = c.Path
	case probe.TCPSocket != nil:
		c.Kind = TCP
		out.Port = r.port("tcpSocket.port", probe.TCPSocket.Port)
		if probe.TCPSocket.Host != "" {
			r.refuse("tcpSocket.host", noOtherHost)
		}
	case probe.GRPC != nil:
		c.Kind = GRPC
		out.Port = r.port("grpc.port", object.FromInt(probe.GRPC.Port))
		if service := probe.GRPC.Service; service != nil && *service != "" {
			c.Name, what = *service, "/"+*service
			if !grpcPattern().MatchString(*service) {
				r.refuse("grpc.service", "%s is no name of a gRPC service", quote(*service))
			}
		}
	default:
		r.refuse("httpGet", "a probe needs a method: write httpGet, tcpSocket or grpc")
	}
	out.Text = fmt.Sprintf("%s:%d%s", c.Kind, out.Port, what)
	return out
}

func (r *probeReader) seconds(name string, n int32, most time.Duration) time.Duration {
	d := time.Duration(n) * time.Second
	if n < 1 || d > most {
		r.refuse(name, "%d is not a number from 1 to %d seconds", n, most/time.Second)
	}
	return d
}

// port returns the number of a probe's port. A name is looked up among the container's TCP ports. Without a result it refuses the field and
// returns 0.
func (r *probeReader) port(name string, port object.IntOrString) uint16 {
	number := port.Int
	if port.IsString {
		number = 0
		for _, p := range r.container.Ports {
			if p.Name == port.Name && p.Protocol != object.ProtocolUDP && p.Protocol != object.ProtocolSCTP {
				number = p.ContainerPort
				break
			}
		}
		if number == 0 {
			r.refuse(name, "the container has no TCP port named %s", quote(port.Name))
			return 0
		}
	}
	if number < 1 || number > 65535 {
		r.refuse(name, "%d is not a number from 1 to 65535", number)
		return 0
	}
	return uint16(number)
}

func (r *probeReader) http(get *object.HTTPGetAction, out *Probe) {
	c := &out.Check
	c.Kind, c.Status = HTTP, defaultStatus
	if get.Scheme == object.SchemeHTTPS {
		c.Kind = HTTPS
	}
	out.Port = r.port("httpGet.port", get.Port)
	if get.Host != "" {
		r.refuse("httpGet.host", "a check goes to the endpoint itself; name the virtual host in the header Host")
	}
	path := get.Path
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // as the kubelet does
	}
	spec := Spec{Check: *c}
	if err := spec.setPath(path); err != nil {
		r.refuse("httpGet.path", "%v", err)
	}
	c.Path = path
	var lines strings.Builder
	for _, header := range get.HTTPHeaders {
		switch name := strings.ToLower(header.Name); {
		case strings.ContainsFunc(header.Value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			r.refuse("httpGet.httpHeaders", "the value of %s has a control character", quote(header.Name))
		case name == "host":
			if len(header.Value) > maxName || !hostPattern().MatchString(header.Value) {
				r.refuse("httpGet.httpHeaders", "%s is no host name (RFC 1123), which the header Host has to be", quote(header.Value))
			}
			c.Host = header.Value
		case slices.Contains(ownHeaders, name):
			r.refuse("httpGet.httpHeaders", "%s is not a probe's to set: a check is one GET request and one answer", header.Name)
		default:
			fmt.Fprintf(&lines, "%s: %s\n", header.Name, header.Value)
		}
	}
	if lines.Len() > maxHeaders {
		r.refuse("httpGet.httpHeaders", "they are longer than %d bytes", maxHeaders)
	}
	c.Headers = lines.String()
}

// ownHeaders lists the headers that the prober sets itself.
var ownHeaders = []string{"connection", "content-length", "transfer-encoding", "upgrade", "expect"}

// maxHeaders bounds the header lines of a probe, in bytes.
const maxHeaders = 4096

// ProofCheck is the check of an endpoint after connections of clients to it failed. Two successive failures prove that the endpoint is dead; two
// successive passes end the check.
var ProofCheck = Check{Kind: TCP, Interval: time.Second, Timeout: 500 * time.Millisecond, Rise: 2, Fall: 2}

// Dead is the proof that an endpoint accepts no connections. It comes from connections that this host itself attempted, after connections of clients
// had failed.
type Dead struct {
	// Refuses is set if the endpoint resets connections. Otherwise it does not answer.
	Refuses bool
	// Why is the failure, such as "connection refused".
	Why string
	// Since is the time of the proof; zero: before the start of this process.
	Since time.Time
}

// DeadOf converts a Verdict with State Down to a Dead.
func DeadOf(v Verdict) Dead {
	return Dead{Refuses: v.Why == "connection refused", Why: v.Why, Since: v.Since}
}

// Waits that replace the interval before the next probe while the state of a Target may change.
const (
	// afterRefusal is the wait after a refused probe. After a timeout the next probe begins at once.
	afterRefusal = 100 * time.Millisecond
	// afterFirst is the wait for the next probe while a Target that is down has passed fewer than Rise successive times, and after a probe that could
	// not be sent.
	afterFirst = time.Second
	// UDPSpacing is the least time between two probes of a UDP target: Linux sends at most one ICMP port unreachable a second to an address
	// (net.ipv4.icmp_ratelimit).
	UDPSpacing = time.Second
)

// Flap damping: a Target that went down at least flapFalls times within flapWindow has to pass for a hold time before it is up again. The hold time
// is flapHold for each of those times, at most flapMost.
const (
	flapFalls  = 3                // least number of changes from up to down
	flapWindow = 10 * time.Minute // time within which these changes count
	flapHold   = 30 * time.Second // hold time per fall
	flapMost   = 5 * time.Minute  // longest hold time
)

// Machine computes the state of one Target from the results of its probes. It reads no clock: its times are monotonic durations since a fixed moment
// that the caller chooses. It is not safe for concurrent use.
type Machine struct {
	check Check
	state State
	// failures and passes count the latest successive results of the same kind; one of them is 0.
	failures, passes int
	last             Result
	// why is the reason why the Target is down. It is the reason of the failure that took it down, until two successive failures have other reasons;
	// then it is the reason of the second one. others counts the latest successive failures with a reason other than why.
	why    string
	others int
	// since is the time at which the state began, -1 if that was before this process. passing is the time of the first of the latest successive
	// passes.
	since, passing time.Duration
	// falls are the times of the latest changes from up to down, within flapWindow of the last one.
	falls []time.Duration
	// assumed is set until the first pass of a Target that started in state Up.
	assumed bool
	// hold is the time for which the Target has to pass before it is up again.
	hold time.Duration
	// past is the state at the end of the previous process; the zero Past once the Target has been in another state.
	past Past
}

// Past is the state of a Target at the end of the previous process. The zero value means that this state is not recorded.
type Past struct {
	State State
	Since time.Time
}

// NewMachine returns a Machine in the state start. A state New begins at now. A state Up or Down is assumed, from a previous process or from another
// check.
func NewMachine(c Check, start State, past Past, now time.Duration) Machine {
	m := Machine{check: c, state: start, since: -1, assumed: start == Up, past: past}
	if start == New {
		m.since = now
	}
	return m
}

// Observe processes the result of a probe that ended now. It returns the wait before the next probe. changed reports whether the state, or the reason
// why the Target is down, has changed.
func (m *Machine) Observe(now time.Duration, r Result) (next time.Duration, changed bool) {
	if r.Outcome == Void {
		// The last result stays, so that "why" still speaks of the endpoint.
		return m.within(afterFirst), false
	}
	m.last = r
	if r.Outcome == Pass {
		return m.pass(now)
	}
	return m.fail(now, r)
}

func (m *Machine) pass(now time.Duration) (next time.Duration, changed bool) {
	if m.passes == 0 {
		m.passing = now
	}
	m.passes, m.failures, m.others, m.assumed = m.passes+1, 0, 0, false
	switch {
	case m.state == Up:
		if m.past.State == Down {
			m.past = Past{}
		}
		return m.check.Interval, false
	case m.state == Down && m.passes < m.check.Rise:
		return m.within(afterFirst), false
	case m.state == Down && now-m.passing < m.hold:
		return min(m.check.Interval, m.hold-(now-m.passing)), false
	}
	m.enter(Up, now)
	return m.check.Interval, true
}

func (m *Machine) fail(now time.Duration, r Result) (next time.Duration, changed bool) {
	m.failures, m.passes = m.failures+1, 0
	if m.others++; r.Why == m.why {
		m.others = 0
	}
	if m.state == Down {
		if changed = m.others > 1 || m.why == "" && m.others > 0; changed {
			m.why, m.others = r.Why, 0
		}
		return m.check.Interval, changed
	}
	if m.failures < m.check.Fall {
		switch {
		case m.check.Kind == UDP:
			return m.within(UDPSpacing), false
		case r.Outcome == Silent:
			return 0, false
		}
		return m.within(afterRefusal), false
	}
	if m.state == Up {
		m.fell(now)
	}
	m.why, m.others = r.Why, 0
	m.enter(Down, now)
	return m.check.Interval, true
}

// fell records a change from up to down, and sets the hold time that follows from the number of recent changes.
func (m *Machine) fell(now time.Duration) {
	kept := slices.DeleteFunc(append(m.falls, now), func(at time.Duration) bool { return now-at > flapWindow })
	// Of more falls than these nothing else follows.
	m.falls = kept[max(0, len(kept)-int(flapMost/flapHold)):]
	m.hold = 0
	if len(m.falls) >= flapFalls {
		m.hold = min(time.Duration(len(m.falls))*flapHold, flapMost)
	}
}

// enter changes the state. A Target that was down at the end of the previous process, and is found to be down again, keeps the time at which it went
// down in that process.
func (m *Machine) enter(s State, now time.Duration) {
	if m.state, m.since = s, now; s != m.past.State {
		m.past = Past{}
	} else if s == Down {
		m.since = -1
	}
}

// within returns d, or the interval of the check if that is shorter.
func (m *Machine) within(d time.Duration) time.Duration { return min(d, m.check.Interval) }

// State returns the state now.
func (m *Machine) State() State { return m.state }

// Assumed reports whether the Target was assumed to be up at the start and has not passed a probe since then.
func (m *Machine) Assumed() bool { return m.assumed }

// InTransition reports whether the last result contradicts the state. The next probe then uses an ephemeral source port. If a reset was lost, the
// server may have a half-open connection from the fixed source port, so that the next probe from there would fail too.
func (m *Machine) InTransition() bool {
	return m.state == Up && m.failures > 0 || m.state == Down && m.passes > 0 || m.state == New && m.failures > 0
}

// Verdict returns the state with its reason. epoch is the moment that the durations passed to Observe are relative to.
func (m *Machine) Verdict(epoch time.Time) Verdict {
	v := Verdict{State: m.state, Assumed: m.assumed, Last: m.last, Why: m.why, Failures: m.failures, Passes: m.passes}
	if m.since >= 0 {
		v.Since = epoch.Add(m.since)
	} else if m.state == m.past.State {
		v.Since = m.past.Since
	}
	if m.state == Down && m.passes > 0 && m.hold > 0 {
		v.Held = m.hold
	}
	return v
}
