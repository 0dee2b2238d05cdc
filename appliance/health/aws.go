package health

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// Defaults and ranges of AWS (Kubernetes' page on Services; newer pages of AWS differ).
const (
	awsInterval                    = 10 // seconds
	awsMinInterval, awsMaxInterval = 5, 300
	awsTimeout                     = 5
	awsMinTimeout, awsMaxTimeout   = 2, 60
	awsRise, awsFall               = 2, 6
	awsMinThreshold                = 2
	awsMaxThreshold                = 10
)

// ofAWS reads the health-check annotations of AWS. An empty value is the default, as there.
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

// awsNames are the annotations of AWS that are known, behind their prefix.
var awsNames = []string{"healthy-threshold", "unhealthy-threshold", "interval", "timeout", "protocol", "port", "path", "success-codes"}

// awsProtocol reads the protocol, the port, the path and the status codes.
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
