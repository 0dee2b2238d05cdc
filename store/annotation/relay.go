package annotation

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// The annotations about relayed ports.
const (
	ProxyMode      = object.AnnotationProxyMode
	ConnectTimeout = domain + "connect-timeout"
	ConnectRetries = domain + "connect-retries"
	ProxyProtocol  = object.AnnotationProxyProtocol
	ProxyFrom      = object.AnnotationProxyFrom
	Transparent    = domain + "transparent-source"
	awsProxy       = aws + "proxy-protocol"
)

// Bounds of what the annotations may say, and what holds where they say nothing.
const (
	defaultConnectTimeout = 2 * time.Second
	minConnectTimeout     = 10 * time.Millisecond
	maxConnectTimeout     = time.Minute
	defaultConnectRetries = 3
	maxConnectRetries     = 16
)

// Relay holds what a Service asks for about the relaying of its ports.
type Relay struct {
	// Key is the annotation that asks for it; "": none does.
	Key string
	// Userspace is set when all ports that can be relayed are; else only TCP ports are, for ProxyProtocol and
	// ProxyFrom.
	Userspace bool
	// Kernel is set when the kernel has to serve the ports; it conflicts with everything that needs a relay.
	Kernel bool
	// ProxyProtocol is the version of the PROXY protocol that endpoints get a header of; 0: none.
	ProxyProtocol int
	// ProxyFrom are the balancers whose connections begin with a header.
	ProxyFrom []netip.Prefix
	// Transparent has TCP endpoints see clients at their own addresses.
	Transparent    bool
	ConnectTimeout time.Duration
	ConnectRetries int
	// Fronts are the settings of the ports for TLS and HTTP, in their order; a port with one is relayed.
	Fronts []Front
	Bad    []Bad
}

// Fronted reports whether a port does anything with TLS or HTTP.
func (r *Relay) Fronted() bool {
	return slices.ContainsFunc(r.Fronts, func(f Front) bool { return f.Key != "" })
}

// Asked reports whether a port is to be relayed.
func (r *Relay) Asked() bool { return r.Key != "" || r.Fronted() }

// RelayOf reads the annotations of a Service about relaying.
func RelayOf(svc *object.Service) (r Relay) {
	a := svc.Metadata.Annotations
	if len(a) == 0 {
		return r
	}
	switch mode, given := a[ProxyMode]; {
	case strings.EqualFold(strings.TrimSpace(mode), "userspace"):
		r.Key, r.Userspace = ProxyMode, true
	case given && object.IsKernelMode(mode):
		r.Kernel = true
	case given:
		r.Bad = append(r.Bad, Bad{Key: ProxyMode, Text: fmt.Sprintf("%q is no mode, so the kernel serves the Service: write \"userspace\" to have it relayed, or \"kernel\"", mode)})
	}
	r.readProxyProtocol(svc)
	r.readProxyFrom(a)
	var bad []Bad
	r.Fronts, bad = Fronts(svc)
	r.Bad = append(r.Bad, bad...)
	switch text, given := a[Transparent]; {
	case r.Asked() && anyOf("true")(text):
		r.Transparent = true
	case given && !anyOf("true", "false")(text):
		r.Bad = append(r.Bad, Bad{Key: Transparent, Text: fmt.Sprintf("%q is neither true nor false, so endpoints see the box", text)})
	}
	r.ConnectTimeout, r.ConnectRetries = r.timeout(a), r.retries(a)
	if !r.Asked() {
		for _, key := range []string{ConnectTimeout, ConnectRetries, Transparent} {
			if has(a, key) && !slices.ContainsFunc(r.Bad, func(b Bad) bool { return b.Key == key }) {
				r.Bad = append(r.Bad, Bad{Key: key, Text: "has no effect: the kernel makes no connections of its own; write " + ProxyMode + ": userspace, or another annotation that has ports relayed, too", Idle: true})
			}
		}
		r.ConnectTimeout, r.ConnectRetries = 0, 0
	}
	return r
}

// retries reads how many other endpoints are tried.
func (r *Relay) retries(a map[string]string) int {
	text, given := a[ConnectRetries]
	if !given {
		return defaultConnectRetries
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 0 || n > maxConnectRetries {
		r.Bad = append(r.Bad, Bad{Key: ConnectRetries, Text: fmt.Sprintf("%q is no number from 0 to %d, so it is %d", text, maxConnectRetries, defaultConnectRetries)})
		return defaultConnectRetries
	}
	return n
}

// readProxyProtocol reads which header endpoints get. That of AWS is about load balancers.
func (r *Relay) readProxyProtocol(svc *object.Service) {
	a, key := svc.Metadata.Annotations, ProxyProtocol
	if strings.TrimSpace(a[key]) == "" {
		value := strings.TrimSpace(a[awsProxy])
		if value == "" || svc.Spec.Type != object.TypeLoadBalancer {
			return
		}
		if key = awsProxy; value != "*" {
			r.Bad = append(r.Bad, Bad{Key: key, Text: fmt.Sprintf("%q is not \"*\", so endpoints get no header; only all ports can have one", value)})
			return
		}
		r.ProxyProtocol = 1
	} else {
		var err error
		if r.ProxyProtocol, err = object.ParseProxyProtocol(a[key]); err != nil {
			r.Bad = append(r.Bad, Bad{Key: key, Text: fmt.Sprintf("%q is no version, so endpoints get no header: write v1 or v2, or none", a[key])})
		}
	}
	if r.ProxyProtocol != 0 && r.Key == "" {
		r.Key = key
	}
}

// readProxyFrom reads the prefixes of the balancers that send headers. An invalid prefix is left out: bytes
// of its clients are no header.
func (r *Relay) readProxyFrom(a map[string]string) {
	text, given := a[ProxyFrom]
	if !given {
		return
	}
	for _, part := range strings.Split(text, ",") {
		part = strings.TrimSpace(part)
		prefix, err := netip.ParsePrefix(part)
		if addr, other := netip.ParseAddr(part); other == nil && addr.Zone() == "" {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil || prefix.Addr().Is4In6() {
			r.Bad = append(r.Bad, Bad{Key: ProxyFrom, Text: fmt.Sprintf("%q is no address or prefix, so no header is taken from there: write it like \"192.0.2.7\" or \"192.0.2.0/24\", with commas between several", part)})
			continue
		}
		r.ProxyFrom = append(r.ProxyFrom, prefix.Masked())
	}
	if r.Key == "" && len(r.ProxyFrom) > 0 {
		r.Key = ProxyFrom
	}
}

// timeout reads how long an endpoint may take to accept a connection.
func (r *Relay) timeout(a map[string]string) time.Duration {
	text, given := a[ConnectTimeout]
	if !given {
		return defaultConnectTimeout
	}
	d, err := object.ParseSeconds(text)
	if err != nil || d < minConnectTimeout || d > maxConnectTimeout {
		r.Bad = append(r.Bad, Bad{Key: ConnectTimeout, Text: fmt.Sprintf("%q is no time from %s to %s, so it is %s; write it like \"2s\", or in seconds",
			text, minConnectTimeout, maxConnectTimeout, defaultConnectTimeout)})
		return defaultConnectTimeout
	}
	return d
}
