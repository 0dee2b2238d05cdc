package annotation

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// The keys of annotations about ports that are relayed in user space.
const (
	ProxyMode      = object.AnnotationProxyMode
	ConnectTimeout = domain + "connect-timeout"
	ConnectRetries = domain + "connect-retries"
	ProxyProtocol  = object.AnnotationProxyProtocol
	ProxyFrom      = object.AnnotationProxyFrom
	Transparent    = domain + "transparent-source"
	awsProxy       = aws + "proxy-protocol"
)

// Bounds of ConnectTimeout and ConnectRetries, and their defaults.
const (
	defaultConnectTimeout = 2 * time.Second
	minConnectTimeout     = 10 * time.Millisecond
	maxConnectTimeout     = time.Minute
	defaultConnectRetries = 3
	maxConnectRetries     = 16
)

// Relay has the settings of a Service for relaying its ports in user space.
type Relay struct {
	// Key is the annotation that asks for a relay of the ports; "" if there is none. Single ports may still be relayed (see Fronts).
	Key string
	// Userspace means that all TCP and UDP ports are relayed. Otherwise only TCP ports are, for ProxyProtocol, ProxyFrom or Fronts.
	Userspace bool
	// Kernel means that the kernel must serve the ports. It conflicts with all settings that need a relay.
	Kernel bool
	// ProxyProtocol is the version of the PROXY protocol header sent to endpoints; 0 sends none.
	ProxyProtocol int
	// ProxyFrom are the prefixes of load balancers that begin connections with a PROXY protocol header.
	ProxyFrom []netip.Prefix
	// Transparent makes connections to TCP endpoints come from the clients' own addresses.
	Transparent    bool
	ConnectTimeout time.Duration
	ConnectRetries int
	// Fronts holds the TLS and HTTP settings of each port, in the order of spec.ports. A port with a Key in its Front is relayed.
	Fronts []Front
	Bad    []Bad
}

// Fronted reports whether some port asks for TLS or HTTP.
func (r *Relay) Fronted() bool {
	return slices.ContainsFunc(r.Fronts, func(f Front) bool { return f.Key != "" })
}

// Asked reports whether the annotations ask for a relay of at least one port.
func (r *Relay) Asked() bool { return r.Key != "" || r.Fronted() }

// Relays reports whether the port spec.ports[i] of the Service is relayed. SCTP is never relayed, and UDP only in userspace mode.
func (r *Relay) Relays(svc *object.Service, i int) bool {
	switch svc.Spec.Ports[i].Protocol {
	case object.ProtocolTCP:
		return r.Key != "" || i < len(r.Fronts) && r.Fronts[i].Key != ""
	case object.ProtocolUDP:
		return r.Userspace
	}
	return false
}

// OtherFamily is like object.OtherFamily, but only for ports that are not relayed. A relay connects to endpoints of either IP family, so its ports
// need no warning.
func OtherFamily(svc *object.Service, slices []*object.EndpointSlice) (family, why string) {
	if _, why = object.OtherFamily(svc, slices, ""); why == "" {
		return "", "" // the usual case
	}
	relay, some, at := RelayOf(svc), false, ""
	for i, port := range svc.Spec.Ports {
		if some = some || port.Protocol != object.ProtocolSCTP; !relay.Relays(svc, i) {
			at += fmt.Sprintf(", %d/%s", port.Port, port.Protocol)
		}
	}
	switch n := strings.Count(at, ","); {
	case n == 0:
		return "", ""
	case n == len(svc.Spec.Ports):
		at = ""
	default:
		at = " at port " + at[2:] + ", which no relay serves,"
	}
	if family, why = object.OtherFamily(svc, slices, at); why != "" && some && !relay.Asked() && !relay.Kernel {
		why += "; " + ProxyMode + ": userspace would use them for both families"
	}
	return family, why
}

// RelayOf parses the annotations of a Service about relaying.
func RelayOf(svc *object.Service) (r Relay) {
	a := svc.Metadata.Annotations
	if AreInert(a) {
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
	case r.Asked() && isAny(text, "true"):
		r.Transparent = true
	case given && !isAny(text, "true", "false"):
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

// retries parses ConnectRetries: how many other endpoints are tried when one does not accept a connection.
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

// readProxyProtocol parses the version of the PROXY protocol header for endpoints. The AWS annotation applies only to Services of type LoadBalancer.
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

// readProxyFrom parses the prefixes of load balancers in front of svcctl that begin connections with a PROXY protocol header. It omits invalid
// prefixes; connections from them are then treated as connections without a header.
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

// timeout parses ConnectTimeout: how long an endpoint may take to accept a connection.
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

// The keys of annotations about a log of connections.
const (
	ConnectionLog     = domain + "connection-log"
	awsLog            = aws + "access-log-enabled"
	awsLogInterval    = aws + "access-log-emit-interval"
	awsLogBucket      = aws + "access-log-s3-bucket-name"
	awsLogBucketUnder = aws + "access-log-s3-bucket-prefix"
)

// Logging has the settings of a Service for a log of its connections.
type Logging struct {
	// Key is the annotation that enables the log; "" if there is none.
	Key string
	// Buckets lists the annotations that name a log bucket in a cloud. They have no effect.
	Buckets []string
	Bad     []Bad
}

// LoggingOf parses the annotations of a Service about its connection log. AWS annotations apply only to Services of type LoadBalancer. The svcctl
// annotation takes precedence.
func LoggingOf(svc *object.Service) (l Logging) {
	a := svc.Metadata.Annotations
	if len(a) == 0 {
		return l
	}
	for _, key := range []string{awsLog, ConnectionLog} {
		if !has(a, key) || key == awsLog && svc.Spec.Type != object.TypeLoadBalancer {
			continue
		}
		switch value := strings.ToLower(strings.TrimSpace(a[key])); {
		case value == "false":
			l.Key = ""
		case value != "true":
			l.Bad = append(l.Bad, Bad{Key: key, Text: fmt.Sprintf("%q is neither \"true\" nor \"false\", so no connection is logged for it", a[key])})
		default:
			l.Key = key
		}
	}
	if has(a, awsLogInterval) && !isAny(a[awsLogInterval], "", "5", "60") {
		l.Bad = append(l.Bad, Bad{Key: awsLogInterval, Text: fmt.Sprintf("%q is neither \"5\" nor \"60\" minutes; it has no effect either way, a line is written when a connection is over", a[awsLogInterval])})
	}
	for _, key := range []string{awsLogBucket, awsLogBucketUnder} {
		if strings.TrimSpace(a[key]) != "" {
			l.Buckets = append(l.Buckets, key)
		}
	}
	return l
}

// Policy defines the TLS versions and cipher suites offered to clients.
type Policy struct {
	// Name is the value of the annotation that selects the policy.
	Name string
	// Min and Max are TLS versions, as in crypto/tls.
	Min, Max uint16
	// Suites lists the allowed cipher suites of TLS 1.2. All cipher suites of TLS 1.3 are allowed.
	Suites []uint16
}

// Cipher suites of TLS 1.2 with forward secrecy and authenticated encryption. The policies of AWS include
// others, with CBC or without forward secrecy, which are never used here.
var (
	gcmSuites = []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	}
	goodSuites = append(slices.Clone(gcmSuites), tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256)
)

// policies lists the TLS policies; the first one is the default. The names of the AWS policies are those of the security policies of Classic and
// Network Load Balancers.
var policies = []Policy{
	{"1.2", tls.VersionTLS12, tls.VersionTLS13, goodSuites},
	{"1.3", tls.VersionTLS13, tls.VersionTLS13, nil},
	{"ELBSecurityPolicy-TLS13-1-3-2021-06", tls.VersionTLS13, tls.VersionTLS13, nil},
	{"ELBSecurityPolicy-TLS13-1-3-PQ-2025-09", tls.VersionTLS13, tls.VersionTLS13, nil},
	{"ELBSecurityPolicy-TLS13-1-2-2021-06", tls.VersionTLS12, tls.VersionTLS13, gcmSuites},
	{"ELBSecurityPolicy-TLS13-1-2-Res-2021-06", tls.VersionTLS12, tls.VersionTLS13, gcmSuites},
	{"ELBSecurityPolicy-TLS13-1-2-PQ-2025-09", tls.VersionTLS12, tls.VersionTLS13, gcmSuites},
	{"ELBSecurityPolicy-TLS13-1-2-Res-PQ-2025-09", tls.VersionTLS12, tls.VersionTLS13, gcmSuites},
	{"ELBSecurityPolicy-FS-1-2-Res-2020-10", tls.VersionTLS12, tls.VersionTLS12, gcmSuites},
	{"ELBSecurityPolicy-FS-1-2-Res-2019-08", tls.VersionTLS12, tls.VersionTLS12, gcmSuites},
	{"ELBSecurityPolicy-FS-1-2-2019-08", tls.VersionTLS12, tls.VersionTLS12, gcmSuites},
	{"ELBSecurityPolicy-TLS-1-2-2017-01", tls.VersionTLS12, tls.VersionTLS12, gcmSuites},
}

// obsolete lists predefined AWS policies that are not supported, because they exist for TLS 1.0 and 1.1, or for suites with CBC or without forward
// secrecy.
var obsolete = []string{
	"ELBSecurityPolicy-TLS13-1-2-Ext1-2021-06", "ELBSecurityPolicy-TLS13-1-2-Ext2-2021-06", "ELBSecurityPolicy-TLS13-1-1-2021-06",
	"ELBSecurityPolicy-TLS13-1-0-2021-06", "ELBSecurityPolicy-TLS-1-2-Ext-2018-06", "ELBSecurityPolicy-TLS-1-1-2017-01",
	"ELBSecurityPolicy-TLS-1-0-2015-04", "ELBSecurityPolicy-FS-1-1-2019-08", "ELBSecurityPolicy-FS-2018-06", "ELBSecurityPolicy-2016-08",
	"ELBSecurityPolicy-2015-05", "ELBSecurityPolicy-2015-03", "ELBSecurityPolicy-2015-02", "ELBSecurityPolicy-2014-10",
	"ELBSecurityPolicy-2014-01", "ELBSecurityPolicy-2011-08", "ELBSample-ELBDefaultNegotiationPolicy", "ELBSample-OpenSSLDefaultNegotiationPolicy",
}

// policyOf returns the TLS policy that an annotation names; why is the reason if there is no such policy.
func policyOf(text string) (p *Policy, why string) {
	text = strings.TrimSpace(text)
	if text == "" {
		return &policies[0], ""
	}
	for i := range policies {
		if strings.EqualFold(policies[i].Name, text) {
			return &policies[i], ""
		}
	}
	if slices.ContainsFunc(obsolete, func(name string) bool { return strings.EqualFold(name, text) }) {
		return nil, fmt.Sprintf("%q allows versions of TLS below 1.2 or weak cipher suites, which svcctl does not have: write %q, or ELBSecurityPolicy-TLS13-1-2-2021-06", text, policies[0].Name)
	}
	return nil, fmt.Sprintf("%q is no policy: write %q or %q, the least version, or a predefined policy of AWS such as ELBSecurityPolicy-TLS13-1-2-2021-06", text, policies[0].Name, policies[1].Name)
}
