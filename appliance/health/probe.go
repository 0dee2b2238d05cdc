package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// probeWord is the CHECK that stands for the readiness probes of Pods.
const probeWord = "probe"

// Probe is the readiness probe of a container, as a check of the Pod's address.
type Probe struct {
	Check Check
	Port  uint16
	// Text is the CHECK that does the same, such as "http:8080/healthz".
	Text string
}

// Unasked returns the Plan of a Service without annotations of health checks: Pods that have a
// readinessProbe and no condition Ready are checked by the probe. It is nil for a Service with such
// annotations.
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

// Probes are the readiness probes of the containers of a Pod; all have to pass. When one is refused
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

// probeReader reads the probe of one container.
type probeReader struct {
	field     string
	container *object.Container
	refused   []Refusal
}

// refuse refuses a field of the probe. The text begins with its name, as it is shown with its Pod.
func (r *probeReader) refuse(name, format string, args ...any) {
	r.refused = append(r.refused, Refusal{Field: r.field + "." + name, Text: "readinessProbe." + name + ": " + fmt.Sprintf(format, args...)})
}

// Texts of refusals.
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

// port is the number of a port, which may be that of a port of the container by its name.
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

// ProofCheck is how an endpoint is asked after clients' connections to it failed: two connections in a row decide, and
// two that pass end it. An endpoint that refuses is asked again after 100 ms.
var ProofCheck = Check{Kind: TCP, Interval: time.Second, Timeout: 500 * time.Millisecond, Rise: 2, Fall: 2}

// Dead is what connections of this host to an endpoint came to, after clients' connections to it failed.
type Dead struct {
	// Refuses is set for a reset, else nothing answers.
	Refuses bool
	// Why is the failure, as "connection refused".
	Why string
	// Since is the time of the proof; zero: before this process.
	Since time.Time
}

// DeadOf is the Dead of a verdict that is Down.
func DeadOf(v Verdict) Dead {
	return Dead{Refuses: v.Last.Outcome == Refused && v.Last.Why == "connection refused", Why: v.Last.Why, Since: v.Since}
}
