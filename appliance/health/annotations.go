package health

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// The annotations of a Service.
const (
	// AnnotationCheck configures the health check of all endpoints. With ".PORT" appended it configures the check for the endpoints of the Service
	// port named PORT.
	AnnotationCheck = "svcctl.io/health-check"
	// AnnotationOut lists the addresses of endpoints that must not be used, separated by commas.
	AnnotationOut = "svcctl.io/out"

	perPort  = AnnotationCheck + "."
	settings = AnnotationCheck + "-"
	aws      = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-"
)

// Plan holds the health checks of a Service.
type Plan struct {
	// Ports has a Spec for each of spec.ports, nil if the port is not checked.
	Ports []*Spec
	// MinHealthy is the least percentage of endpoints that must be up. If fewer are up, all endpoints are used.
	MinHealthy int
	// Reset is set if TCP connections to an endpoint are reset when it goes down.
	Reset bool
}

// Spec is a parsed CHECK, the value of an annotation svcctl.io/health-check.
type Spec struct {
	Check Check
	// Port is probed instead of the endpoint's own port. PortName selects the port of that name in the EndpointSlice.
	Port     uint16
	PortName string
	// Probe selects the readiness probes of the endpoint's Pod as the checks; only Text is set then.
	Probe bool
	// Text is the CHECK as it is written in full, such as "http:8080/healthz".
	Text string
}

// OfAddress reports whether the check depends only on the endpoint's address, not on the endpoint's own port. The result of such a check applies to
// all ports of the Service.
func (s *Spec) OfAddress() bool {
	return s.Probe || s.Port != 0 || s.PortName != "" || s.Check.Kind == ICMP
}

// Refusal is the reason why an annotation, or a field of a probe, has no effect.
type Refusal struct {
	// Field is the path of the annotation or field, such as metadata.annotations[svcctl.io/health-check].
	Field string
	Text  string
	// Idle is set when the value is valid but has no effect on this Service.
	Idle bool
}

// Parse reads the annotations of a Service. The Plan is nil when nothing is checked, and also when
// something was refused: a Service is checked as written, or not at all.
func Parse(svc *object.Service) (*Plan, []Refusal) {
	p := parser{svc: svc, have: svc.Metadata.Annotations, checks: map[string]*Spec{}}
	if svc.Spec.PublishNotReadyAddresses { // its author wants every endpoint used, whatever its state
		for _, key := range slices.Sorted(maps.Keys(p.have)) {
			if p.isCheck(key) {
				p.idle(key, "has no effect: spec.publishNotReadyAddresses has every endpoint used, whatever its state; leave one of the two out")
			}
		}
		return nil, p.refused
	}
	switch {
	case p.asksOurs():
		p.ours()
	case svc.Spec.Type == object.TypeLoadBalancer && p.asksAWS():
		p.ofAWS()
	default:
		return nil, nil
	}
	if len(p.refused) > 0 {
		slices.SortFunc(p.refused, func(a, b Refusal) int {
			return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Text, b.Text))
		})
		return nil, p.refused
	}
	if !slices.ContainsFunc(p.plan.Ports, func(s *Spec) bool { return s != nil }) {
		return nil, nil // all of them are "none"
	}
	return &p.plan, nil
}

// parser reads the annotations of one Service.
type parser struct {
	svc     *object.Service
	have    map[string]string
	plan    Plan
	refused []Refusal
	// checks has the CHECK of each annotation, by its key.
	checks map[string]*Spec
}

func (p *parser) refuse(annotation, format string, args ...any) {
	p.refused = append(p.refused, Refusal{Field: fmt.Sprintf("metadata.annotations[%s]", annotation), Text: fmt.Sprintf(format, args...)})
}

// idle adds a Refusal for an annotation that is valid but has no effect on this Service.
func (p *parser) idle(annotation, format string, args ...any) {
	p.refuse(annotation, format, args...)
	p.refused[len(p.refused)-1].Idle = true
}

// isCheck reports whether an annotation configures health checks: an annotation of svcctl, or for a Service of type LoadBalancer one of AWS.
func (p *parser) isCheck(key string) bool {
	return key == AnnotationCheck || strings.HasPrefix(key, perPort) || strings.HasPrefix(key, settings) ||
		p.svc.Spec.Type == object.TypeLoadBalancer && strings.HasPrefix(key, aws)
}

func (p *parser) asks(prefixes ...string) bool {
	for key := range p.have {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
			return true
		}
	}
	return false
}

func (p *parser) asksOurs() bool {
	_, all := p.have[AnnotationCheck]
	return all || p.asks(perPort, settings)
}

func (p *parser) asksAWS() bool { return p.asks(aws) }

// ours reads the annotations svcctl.io/health-check into p.checks.
func (p *parser) ours() {
	for _, key := range slices.Sorted(maps.Keys(p.have)) {
		if key == AnnotationCheck || strings.HasPrefix(key, perPort) {
			spec, err := ParseCheck(p.have[key])
			if err != nil {
				p.refuse(key, "%v", err)
				continue
			}
			p.checks[key] = spec
		}
	}
	set := p.settings()
	if len(p.checks) == 0 && len(p.refused) == 0 {
		for _, key := range slices.Sorted(maps.Keys(p.have)) {
			if strings.HasPrefix(key, settings) {
				p.idle(key, "there is no check that it is a setting of: add the annotation %s, as http:8080/healthz", AnnotationCheck)
			}
		}
	}
	for _, spec := range p.checks {
		if spec != nil && !spec.Probe {
			set.onto(&spec.Check)
		}
	}
	p.assign()
}

// assign sets the Spec of each port in the Plan: the one of the port's own annotation, or else the one of the Service's annotation.
func (p *parser) assign() {
	ports := p.svc.Spec.Ports
	if len(ports) == 0 {
		for key := range p.checks {
			p.refuse(key, "the Service has no port that could be checked: add one to spec.ports")
		}
		return
	}
	p.plan.Ports = make([]*Spec, len(ports))
	fits := map[string]bool{}
	for i := range ports {
		key := AnnotationCheck
		if own := perPort + ports[i].Name; ports[i].Name != "" {
			if _, has := p.checks[own]; has {
				key = own
			}
		}
		switch spec := p.checks[key]; {
		case spec == nil:
		case spec.OfAddress() || spec.Check.Kind.protocol() == ports[i].Protocol:
			p.plan.Ports[i], fits[key] = spec, true
		case key != AnnotationCheck:
			fits[key] = true
			p.unfit(key, spec, ports[i:i+1])
		}
	}
	for key, spec := range p.checks {
		switch name, ofPort := strings.CutPrefix(key, perPort); {
		case ofPort && !slices.ContainsFunc(ports, func(sp object.ServicePort) bool { return sp.Name == name && name != "" }):
			p.refuse(key, "the Service has no port named %q: %s", name, portNames(ports))
		case spec != nil && !fits[key] && !p.allOwn(ports):
			p.unfit(key, spec, ports)
		}
	}
}

// allOwn reports whether each port has a name and a health-check annotation of its own.
func (p *parser) allOwn(ports []object.ServicePort) bool {
	return !slices.ContainsFunc(ports, func(sp object.ServicePort) bool {
		_, has := p.checks[perPort+sp.Name]
		return !has || sp.Name == ""
	})
}

// unfit refuses a CHECK that cannot probe any of these ports, because their protocol differs from that of the CHECK.
func (p *parser) unfit(key string, spec *Spec, ports []object.ServicePort) {
	names := make([]string, len(ports))
	sctp := true
	for i := range ports {
		names[i] = cmp.Or(ports[i].Name, fmt.Sprint(ports[i].Port))
		sctp = sctp && ports[i].Protocol == object.ProtocolSCTP
	}
	what := "port " + strings.Join(names, ", ")
	if sctp {
		p.refuse(key, "%s: SCTP is not checked; name a TCP port of the server, as tcp:8080", what)
		return
	}
	p.refuse(key, "%s: %s asks a %s port, and this is none; name the port of the server that answers, as %s:8080",
		what, spec.Check.Kind, spec.Check.Kind.protocol(), spec.Check.Kind)
}

func portNames(ports []object.ServicePort) string {
	var names []string
	for i := range ports {
		if ports[i].Name != "" {
			names = append(names, ports[i].Name)
		}
	}
	if len(names) == 0 {
		return "its port has no name; write the annotation " + AnnotationCheck
	}
	return "it has " + strings.Join(names, ", ")
}

// protocol returns the protocol that a port must have to be probed by a check without a port of its own; "" for ICMP.
func (k Kind) protocol() string {
	switch k {
	case UDP, DNS:
		return object.ProtocolUDP
	case ICMP:
		return ""
	}
	return object.ProtocolTCP
}

// Out returns the addresses that AnnotationOut lists. It returns a Refusal if the value is malformed.
func Out(svc *object.Service) (map[netip.Addr]bool, *Refusal) {
	text, has := svc.Metadata.Annotations[AnnotationOut]
	if !has {
		return nil, nil
	}
	out := map[netip.Addr]bool{}
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		addr, err := netip.ParseAddr(word)
		if err != nil {
			return nil, &Refusal{Field: fmt.Sprintf("metadata.annotations[%s]", AnnotationOut), Text: fmt.Sprintf(
				"%q is no address: write the addresses of endpoints, separated by commas; nothing is out until then", word)}
		}
		out[addr.Unmap()] = true
	}
	return out, nil
}

// Defaults and ranges of the AWS annotations, in seconds or probes (from Kubernetes' page on Services; newer pages of AWS differ).
const (
	awsInterval                    = 10 // seconds
	awsMinInterval, awsMaxInterval = 5, 300
	awsTimeout                     = 5
	awsMinTimeout, awsMaxTimeout   = 2, 60
	awsRise, awsFall               = 2, 6
	awsMinThreshold                = 2
	awsMaxThreshold                = 10
)

// ofAWS reads the health-check annotations of AWS into one check of all ports. An empty value stands for the default.
func (p *parser) ofAWS() {
	spec := &Spec{Check: Check{Kind: TCP}}
	for _, key := range slices.Sorted(maps.Keys(p.have)) {
		if name, is := strings.CutPrefix(key, aws); is && !slices.Contains(awsNames, name) {
			p.refuse(key, "there is no such setting: they are %s", strings.Join(awsNames, ", "))
		}
	}
	p.awsProtocol(spec)
	c := &spec.Check
	interval := p.awsNumber("interval", awsInterval, awsMinInterval, awsMaxInterval)
	timeout := p.awsNumber("timeout", awsTimeout, awsMinTimeout, awsMaxTimeout)
	if timeout >= interval {
		p.refuse(aws+"timeout", "%d is not below the interval of %d; the load balancers of AWS refuse it too", timeout, interval)
	}
	c.Interval, c.Timeout = time.Duration(interval)*time.Second, time.Duration(timeout)*time.Second
	c.Rise = p.awsNumber("healthy-threshold", awsRise, awsMinThreshold, awsMaxThreshold)
	c.Fall = p.awsNumber("unhealthy-threshold", awsFall, awsMinThreshold, awsMaxThreshold)
	spec.Text = c.Kind.String()
	if spec.Port != 0 {
		spec.Text += fmt.Sprintf(":%d", spec.Port)
	}
	spec.Text += c.Path
	ports := p.svc.Spec.Ports
	if !spec.OfAddress() && !slices.ContainsFunc(ports, func(sp object.ServicePort) bool { return sp.Protocol == object.ProtocolTCP }) {
		p.refuse(aws+"port", "the Service has no TCP port to ask: write the number of one that its servers have")
	}
	p.plan.Ports = make([]*Spec, len(ports))
	for i := range ports {
		if spec.OfAddress() || ports[i].Protocol == object.ProtocolTCP {
			p.plan.Ports[i] = spec
		}
	}
}

// awsNames are the supported health-check annotations of AWS, without their prefix.
var awsNames = []string{"healthy-threshold", "unhealthy-threshold", "interval", "timeout", "protocol", "port", "path", "success-codes"}

// awsProtocol reads the protocol, the port, the path and the status codes of the AWS annotations into spec.
func (p *parser) awsProtocol(spec *Spec) {
	c := &spec.Check
	switch text := p.awsText("protocol"); strings.ToUpper(text) {
	case "", "TCP":
	case "HTTP":
		c.Kind = HTTP
	case "HTTPS":
		c.Kind = HTTPS
	default:
		p.refuse(aws+"protocol", "%s is none of TCP, HTTP and HTTPS", quote(text))
	}
	if text := p.awsText("port"); text != "" && text != "traffic-port" {
		n, err := number(text, 1, 65535, "")
		if err != nil {
			p.refuse(aws+"port", `%v, nor "traffic-port"`, err)
		}
		spec.Port = uint16(n)
	}
	path, codes := p.awsText("path"), p.awsText("success-codes")
	if c.Kind == TCP {
		for name, text := range map[string]string{"path": path, "success-codes": codes} {
			if text != "" {
				p.refuse(aws+name, "a check over TCP has none: set %sprotocol to HTTP or HTTPS", aws)
			}
		}
		return
	}
	c.Status = defaultStatus
	if codes != "" {
		var err error
		if c.Status, err = status(codes); err != nil {
			p.refuse(aws+"success-codes", "%v", err)
		}
	}
	if path != "" && path[0] != '/' {
		p.refuse(aws+"path", "%s does not begin with a slash", quote(path))
	} else if err := spec.setPath(path); err != nil {
		p.refuse(aws+"path", "%v", err)
	}
}

func (p *parser) awsText(name string) string { return strings.TrimSpace(p.have[aws+name]) }

func (p *parser) awsNumber(name string, absent, least, most int) int {
	text := p.awsText(name)
	if text == "" {
		return absent
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		p.refuse(aws+name, "%s is not a number from %d to %d, which is what AWS takes", quote(text), least, most)
		return absent
	}
	return n
}
