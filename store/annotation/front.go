package annotation

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

// localSecret is the prefix of a value in the AWS certificate annotation that names a Secret instead of an ARN.
const localSecret = "secret:"

// Front holds the TLS and HTTP settings of a port. It has more than 15 fields: one for each annotation, and the reason why the port cannot be served.
type Front struct {
	// Key is the annotation that asks for TLS or HTTP on the port. If it is "", there is none, and the other fields are not set.
	Key string
	// Why is the reason why the port cannot be served, "" if it can, and WhyKey is the annotation concerned.
	Why, WhyKey string
	// Misplaced means that Why is about the protocol of the port. Otherwise the annotation would be invalid for every port.
	Misplaced bool
	// Unencrypted means that the annotations ask for TLS that cannot be provided, so that the port must not be served in plain text.
	Unencrypted bool

	// Secrets are the names of the Secrets with server certificates. The first one is the default, for clients without SNI or with a server name that
	// no certificate matches. If it is empty, TLS is not terminated.
	Secrets []string
	Policy  *Policy
	// ALPN lists the protocols offered to clients; nil offers none.
	ALPN []string
	// ClientCA is the name of the Secret with the CA that must have signed client certificates; "" if none are requested. ClientOptional also accepts
	// clients without a certificate.
	ClientCA       string
	ClientOptional bool

	// HTTP means that HTTP requests are forwarded individually, with headers that identify the client.
	HTTP bool
	// HTTP2 means that requests are forwarded over HTTP/2 without TLS, with prior knowledge (h2c), as gRPC needs it.
	HTTP2 bool
	// Hosts lists the host names, such as "*.example.com", for which requests are forwarded; other requests get a 404 response. Nil forwards all
	// requests.
	Hosts []string
	// BackendTLS encrypts connections to endpoints. BackendCA is the name of the Secret with the CA that must have signed their certificates for
	// BackendName; "" if certificates are not verified.
	BackendTLS  bool
	BackendCA   string
	BackendName string
	// BackendUnchecked means that certificates are not verified because the annotation BackendCA is missing, rather than "none".
	BackendUnchecked bool
	ResponseTimeout  time.Duration

	// Services lists the Services to which TLS connections are forwarded by server name (SNI) without decryption; nil if there are none.
	Services []NamedService
}

// NamedService assigns a TLS server name (SNI) to the Service that gets the connections to that name.
type NamedService struct {
	// ServerName is in lower case. "*.example.com" matches all names with one more label, "**.example.com" names with one or more additional labels,
	// and "*" any name or none.
	ServerName string
	// Service is the name of a Service in the same namespace; "" if clients are reset.
	Service string
}

// Fronts parses the annotations about TLS and HTTP. It returns one Front for each of spec.ports, and the
// annotations that have no effect.
func Fronts(svc *object.Service) (fronts []Front, bad []Bad) {
	fronts = make([]Front, len(svc.Spec.Ports))
	var ended, encrypted, http bool
	for i := range fronts {
		r := frontReader{svc: svc, a: svc.Metadata.Annotations, port: &svc.Spec.Ports[i]}
		r.read()
		fronts[i] = r.Front
		ended = ended || len(r.Secrets) > 0
		encrypted, http = encrypted || r.BackendTLS, http || r.HTTP
	}
	bad = idleFronts(svc, ended, map[string]bool{BackendCA: encrypted, BackendName: encrypted, ResponseTimeout: http})
	half := halfTLS(svc, ended)
	half.Idle = true
	for i := range fronts {
		r := frontReader{Front: fronts[i], svc: svc, a: svc.Metadata.Annotations, port: &svc.Spec.Ports[i]}
		if half.Key != "" && isTCP(r.port) && len(r.Secrets)+len(r.Services) == 0 && !r.excluded() {
			r.asks(half.Key)
			r.encrypt(half.Key, "%s", half.Text)
			half.Idle = half.Idle && r.WhyKey != half.Key
			fronts[i] = r.Front
		}
	}
	unknown := unknownPorts(svc)
	if half.Key != "" && half.Idle && !slices.ContainsFunc(unknown, func(b Bad) bool { return b.Key == half.Key }) {
		bad = append(bad, Bad{Key: half.Key, Text: "has no effect: no port ends TLS; write " + TLSSecret + " too", Idle: true})
	}
	for _, b := range unknown {
		if b.Key != half.Key || half.Idle {
			bad = append(bad, b)
		}
	}
	return fronts, bad
}

// frontReader reads the Front of one port.
type frontReader struct {
	Front
	svc  *object.Service
	a    map[string]string
	port *object.ServicePort
}

// refuse records why the port cannot be served; the first reason counts.
func (r *frontReader) refuse(key, format string, args ...any) {
	if r.Why == "" {
		r.WhyKey, r.Why = key, fmt.Sprintf(format, args...)
	}
}

// encrypt is like refuse, for a port whose annotations ask for TLS although TLS cannot be terminated. If no reason was recorded before, it also sets
// Front.Unencrypted.
func (r *frontReader) encrypt(key, format string, args ...any) {
	if r.Why == "" {
		r.Unencrypted = true
	}
	r.refuse(key, format, args...)
}

// asks records that an annotation asks for TLS or HTTP on the port. Front.Key is the first such annotation.
func (r *frontReader) asks(key string) {
	r.Key = cmp.Or(r.Key, key)
}

// own returns the full key and the value of an annotation for this port, and whether the annotation exists, even if empty. An annotation with the
// name or number of the port takes precedence over the annotation for all ports.
func (r *frontReader) own(key string) (from, value string, is bool) {
	for _, name := range []string{r.port.Name, strconv.Itoa(int(r.port.Port))} {
		if from := key + "." + name; name != "" && given(r.a, from) {
			return from, strings.TrimSpace(r.a[from]), true
		}
	}
	return key, strings.TrimSpace(r.a[key]), given(r.a, key)
}

// excluded reports whether the annotation TLSSecret turns TLS off for the port.
func (r *frontReader) excluded() bool {
	_, value, _ := r.own(TLSSecret)
	return value == none
}

// WithoutTLS reports whether the annotation TLSSecret turns TLS off for a port, which overrides the annotations of clouds.
func WithoutTLS(svc *object.Service, port *object.ServicePort) bool {
	r := frontReader{svc: svc, a: svc.Metadata.Annotations, port: port}
	return r.excluded()
}

func (r *frontReader) read() {
	r.readSecrets()
	r.readServices()
	r.readBackend()
	r.readHosts()
	if r.Key == "" {
		return
	}
	if r.port.Protocol != object.ProtocolTCP && r.Why == "" {
		r.Misplaced = true
		r.refuse(r.Key, "there is neither TLS nor HTTP over %s: write %s.NAME for the TCP ports by name, or leave the annotation out", r.port.Protocol, r.Key)
	}
	if len(r.Secrets) > 0 {
		key := TLSPolicy
		if !has(r.a, key) && has(r.a, awsPolicy) {
			key = awsPolicy
		}
		var why string
		if r.Policy, why = policyOf(r.a[key]); why != "" {
			r.refuse(key, "%s", why)
		}
		r.readClientCA()
	}
	r.readALPN()
	r.ResponseTimeout = r.responseTimeout()
}

// h2c is HTTP/2 without TLS, with prior knowledge (RFC 9113, 3.3).
const h2c = "h2c"

// spoken returns the backend protocol that the appProtocol of the port implies (Kubernetes ServicePort.appProtocol, KEP-3726; https is an IANA
// service name); "" if it does not require a relay.
func (r *frontReader) spoken() string {
	switch strings.ToLower(object.Deref(r.port.AppProtocol)) {
	case "kubernetes.io/h2c":
		return h2c
	case "https":
		return "https"
	}
	return ""
}

// readSecrets parses the annotations that name the Secrets with server certificates.
func (r *frontReader) readSecrets() {
	key, value, is := r.own(TLSSecret)
	if is && value == "" {
		if isTCP(r.port) {
			r.asks(key)
			r.encrypt(key, "it names no Secret: write the name of a Secret of type kubernetes.io/tls, or %q for a port without TLS", none)
		}
		return
	}
	if value == "" && isTCP(r.port) && tlsOfAWS(r.a, r.port) != "" {
		for part := range strings.SplitSeq(r.a[awsCert], ",") {
			if part = strings.TrimSpace(part); strings.HasPrefix(part, localSecret) {
				value += strings.TrimPrefix(part, localSecret) + ","
			} else if part != "" {
				return // see TLSKey
			}
		}
		key, value = awsCert, strings.TrimSuffix(value, ",")
	}
	if value == "" || value == none {
		return
	}
	r.asks(key)
	for name := range strings.SplitSeq(value, ",") {
		r.Secrets = append(r.Secrets, r.secretName(key, name))
	}
}

// secretName returns the name of a Secret in the Service's namespace from text. It refuses the port if the name is invalid.
func (r *frontReader) secretName(key, text string) string {
	name := strings.TrimSpace(text)
	if name == "" || strings.Contains(name, "/") || len(object.NameProblems(name)) > 0 {
		r.refuse(key, "%q is no name of a Secret: write names of Secrets in the Service's namespace, with commas between them", name)
	}
	return name
}

func (r *frontReader) readClientCA() {
	if given(r.a, TLSClientCA) { // an empty one, as a template may write it, lets nobody in without a certificate
		r.ClientCA = r.secretName(TLSClientCA, r.a[TLSClientCA])
	}
	switch auth := strings.ToLower(strings.TrimSpace(r.a[TLSClientAuth])); {
	case auth == "":
	case r.ClientCA == "":
		r.refuse(TLSClientAuth, "no CA is named that clients' certificates are from: write %s too", TLSClientCA)
	case auth == "optional":
		r.ClientOptional = true
	case auth != "require":
		r.refuse(TLSClientAuth, "%q is neither \"require\" nor \"optional\"", auth)
	}
}

// alpnPolicies maps the ALPN policies of AWS to protocols.
var alpnPolicies = map[string][]string{
	"none": nil, "http1only": {"http/1.1"}, "http2only": {"h2"}, "http2optional": {"http/1.1", "h2"}, "http2preferred": {"h2", "http/1.1"},
}

// readALPN parses the ALPN protocols that clients are offered. For an HTTP port protocols other than h2 and http/1.1 are refused.
func (r *frontReader) readALPN() {
	if r.HTTP {
		r.ALPN = []string{"h2", "http/1.1"}
	}
	key, value := TLSALPN, strings.TrimSpace(r.a[TLSALPN])
	if value == "" {
		if key, value = awsALPN, strings.TrimSpace(r.a[awsALPN]); value == "" {
			return
		}
		protocols, known := alpnPolicies[strings.ToLower(value)]
		if !known {
			r.refuse(key, "%q is no policy: write HTTP1Only, HTTP2Only, HTTP2Optional, HTTP2Preferred or None", value)
		}
		if protocols != nil || !r.HTTP {
			r.ALPN = protocols
		}
		return
	}
	r.ALPN = nil
	for p := range strings.SplitSeq(value, ",") {
		switch p = strings.TrimSpace(p); {
		case p == "" || len(p) > 255:
			r.refuse(key, "%q is no protocol: write names with commas between them, as h2,http/1.1", p)
		case r.HTTP && p != "h2" && p != "http/1.1":
			r.refuse(key, "%q is not what a port with HTTP serves: write h2, http/1.1 or both", p)
		}
		r.ALPN = append(r.ALPN, p)
	}
}

// readHosts parses HTTPHosts, the host names whose HTTP requests are forwarded.
func (r *frontReader) readHosts() {
	key, value, is := r.own(HTTPHosts)
	if !is || value == "" {
		return
	}
	r.asks(key)
	for host := range strings.SplitSeq(value, ",") {
		host = strings.ToLower(strings.TrimSpace(host))
		if name := strings.TrimPrefix(host, "*."); name == "" || len(object.NameProblems(name)) > 0 {
			r.refuse(key, "%q is no name of a host: write names with commas between them, as www.example.com,*.example.org", host)
		}
		r.Hosts = append(r.Hosts, host)
	}
	if r.BackendTLS && !r.HTTP || len(r.Services) > 0 {
		r.refuse(key, "it needs requests to be read, and %s or %s has connections passed on as they are: leave one of the two out", TLSServices, BackendProtocol)
	}
	r.HTTP = true
}

// readBackend parses the protocol of connections to endpoints: HTTP or opaque bytes, each with or without TLS.
func (r *frontReader) readBackend() {
	key, value, _ := r.own(BackendProtocol)
	if value == "" && strings.TrimSpace(r.a[awsBackend]) == "" && len(r.Secrets) > 0 {
		value = r.spoken()
	}
	if value == "" {
		key, value = awsBackend, strings.TrimSpace(r.a[awsBackend])
		// As on AWS, it is about the ports with TLS; http is about the others of load balancers too.
		if value == "" || len(r.Secrets) == 0 && (r.svc.Spec.Type != object.TypeLoadBalancer || !strings.EqualFold(value, "http")) {
			return
		}
		if r.port.Protocol != object.ProtocolTCP {
			return
		}
	}
	switch strings.ToLower(value) {
	case "", "tcp":
		return
	case "http":
		r.HTTP, r.HTTP2 = true, r.spoken() == h2c
	case h2c:
		r.HTTP, r.HTTP2 = true, true
	case "https":
		r.HTTP, r.BackendTLS = true, true
	case "tls", "ssl":
		r.BackendTLS = true
	default:
		r.refuse(key, "%q is no protocol: write http, h2c, https, tls or tcp", value)
	}
	r.asks(key)
	if len(r.Services) > 0 {
		r.refuse(key, "it asks to look into connections that %s passes on as they are: leave one of the two out", TLSServices)
	}
	if !r.BackendTLS {
		return
	}
	switch ca := strings.TrimSpace(r.a[BackendCA]); ca {
	case "":
		r.BackendUnchecked = true
	case none:
	default:
		r.BackendCA = r.secretName(BackendCA, ca)
	}
	if why := wrongOfBackend(BackendName, r.a[BackendName]); why != "" {
		r.refuse(BackendName, "%s", why)
	}
	if r.BackendName = strings.TrimSpace(r.a[BackendName]); r.BackendName == "" {
		r.BackendName = r.svc.Metadata.Name + "." + r.svc.Metadata.Namespace + ".svc"
	}
}

func (r *frontReader) responseTimeout() time.Duration {
	text := strings.TrimSpace(r.a[ResponseTimeout])
	if text == "" {
		return defaultResponseTimeout
	}
	if why := wrongOfBackend(ResponseTimeout, text); why != "" {
		r.refuse(ResponseTimeout, "%s", why)
	}
	d, _ := object.ParseSeconds(text)
	return d
}

// readServices parses TLSServices, which routes TLS connections to Services by server name (SNI).
func (r *frontReader) readServices() {
	key, value, _ := r.own(TLSServices)
	if value == "" || value == none {
		return
	}
	r.asks(key)
	if len(r.Secrets) > 0 {
		r.refuse(key, "connections are either passed on by name or decrypted: leave %s out for the port", TLSSecret)
	}
	seen := map[string]bool{}
	for pair := range strings.SplitSeq(value, ",") {
		name, service, whole := strings.Cut(strings.TrimSpace(pair), "=")
		s := NamedService{strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(service)}
		switch {
		case !whole || !isServerName(s.ServerName) || s.Service != "" && len(object.NameProblems(s.Service)) > 0:
			r.refuse(key, "%q is no name of a server and Service: write NAME=SERVICE with commas between them, as www.example.com=web, *.example.com=other", strings.TrimSpace(pair))
		case seen[s.ServerName]:
			r.refuse(key, "%q is named twice", s.ServerName)
		case s.Service == r.svc.Metadata.Name:
			r.refuse(key, "%q leads to the Service itself: name another one, or leave it out to have the Service's own endpoints for other names", s.ServerName)
		}
		seen[s.ServerName] = true
		r.Services = append(r.Services, s)
	}
}

// isServerName reports whether name is a host name, "*", or a host name with the prefix "*." or "**.".
func isServerName(name string) bool {
	if name == "*" {
		return true
	}
	if below, is := strings.CutPrefix(name, "**."); is {
		return len(object.NameProblems(below)) == 0
	}
	return len(object.NameProblems(strings.TrimPrefix(name, "*."))) == 0
}

// Keys of annotations about TLS and HTTP on relayed ports. TLSSecret, TLSServices, BackendProtocol and HTTPHosts can also be set for one port, with a
// dot and the port's name or number as suffix, which takes precedence.
const (
	TLSSecret       = object.AnnotationTLSSecret
	TLSPolicy       = domain + "tls-policy"
	TLSALPN         = domain + "tls-alpn"
	TLSClientCA     = domain + "tls-client-ca"
	TLSClientAuth   = domain + "tls-client-auth"
	TLSServices     = object.AnnotationTLSServices
	BackendProtocol = object.AnnotationBackendProtocol
	HTTPHosts       = domain + "http-hosts"
	BackendCA       = domain + "backend-ca"
	BackendName     = domain + "backend-name"
	ResponseTimeout = domain + "response-timeout"

	awsPolicy  = aws + "ssl-negotiation-policy"
	awsALPN    = aws + "alpn-policy"
	awsBackend = aws + "backend-protocol"
)

// Bounds of ResponseTimeout, and its default.
const (
	defaultResponseTimeout = time.Minute
	minResponseTimeout     = time.Second
	maxResponseTimeout     = time.Hour
)

// none is the value that turns a feature off.
const none = "none"

// halfTLS returns the first annotation that asks for TLS but names a port that the Service lacks, or has no certificate, with the reason. If it
// returns one, the caller refuses all TCP ports without TLS, because each of them may be meant. If there is no such annotation, halfTLS returns the
// zero Bad.
func halfTLS(svc *object.Service, ended bool) Bad {
	a := svc.Metadata.Annotations
	for _, b := range unknownPorts(svc) {
		if base, _ := ofPort(b.Key); base != HTTPHosts && (base != BackendProtocol || isAny(a[b.Key], "https", "tls", "ssl")) {
			return b
		}
	}
	if ended || slices.ContainsFunc(certificates, func(key string) bool { return given(a, key) }) {
		return Bad{} // see TLSKey
	}
	listed := has(a, awsSSLPorts)
	if isAny(a[awsBackend], "https", "ssl", "tls") && !has(a, BackendProtocol) && !listed {
		return Bad{Key: awsBackend, Text: fmt.Sprintf("%q asks for TLS, and no certificate for clients is named: write %s, or %q to have connections passed on as they are", strings.TrimSpace(a[awsBackend]), TLSSecret, "tcp")}
	}
	keys := []string{TLSClientCA, TLSClientAuth, TLSPolicy, TLSALPN}
	if !listed {
		keys = append(keys, awsPolicy, awsALPN)
	}
	for _, key := range keys {
		if has(a, key) && !isAny(a[key], none) {
			return Bad{Key: key, Text: "it asks for TLS, and no certificate is named: write " + TLSSecret + " too, or leave it out"}
		}
	}
	return Bad{}
}

// idleFronts returns the annotations that have no effect because another annotation about TLS or HTTP is missing. acts holds the keys with an effect.
// ended reports whether TLS is terminated on a port.
func idleFronts(svc *object.Service, ended bool, acts map[string]bool) (bad []Bad) {
	a := svc.Metadata.Annotations
	for _, key := range []string{BackendCA, BackendName, ResponseTimeout} {
		if why := wrongOfBackend(key, a[key]); why != "" && !acts[key] {
			bad = append(bad, Bad{Key: key, Text: why})
		} else if has(a, key) && !acts[key] {
			bad = append(bad, Bad{Key: key, Text: "has no effect: the bytes of ports are passed on as they are; write " + BackendProtocol + ": https too", Idle: true})
		}
	}
	if has(a, awsSSLPorts) && has(a, TLSSecret) && !given(a, awsCert) {
		bad = append(bad, Bad{Key: awsSSLPorts, Text: "has no effect: " + TLSSecret + " is about all TCP ports; write " + TLSSecret + ".PORT for one port", Idle: true})
	}
	if value := strings.TrimSpace(a[awsBackend]); !ended && !isAny(value, "", "http", "https", "ssl", "tls", "tcp") {
		bad = append(bad, Bad{Key: awsBackend, Text: fmt.Sprintf("%q is no protocol, so connections are passed on as they are: write http, https, ssl or tcp", value)})
	}
	if isAny(a[awsBackend], "http") && !ended && svc.Spec.Type != object.TypeLoadBalancer {
		bad = append(bad, Bad{Key: awsBackend, Text: "has no effect: the Service is not of type LoadBalancer; write " + BackendProtocol, Idle: true})
	}
	return bad
}

// wrongOfBackend returns why the value of BackendCA, BackendName or ResponseTimeout is invalid; "" if it is valid or empty.
func wrongOfBackend(key, text string) string {
	text = strings.TrimSpace(text)
	switch {
	case text == "":
	case key == BackendCA && (strings.Contains(text, "/") || len(object.NameProblems(text)) > 0):
		return fmt.Sprintf("%q is no name of a Secret: write the name of a Secret in the Service's namespace, or %q", text, none)
	case key == BackendName && !isHostName(text):
		return fmt.Sprintf("%q is no host name", text)
	case key == ResponseTimeout:
		if d, err := object.ParseSeconds(text); err != nil || d < minResponseTimeout || d > maxResponseTimeout {
			return fmt.Sprintf("%q is no time from %s to %s; write it like \"60s\", or in seconds", text, minResponseTimeout, maxResponseTimeout)
		}
	}
	return ""
}

// isHostName reports whether text can be a name in a certificate: a host name or an IP address.
func isHostName(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil || len(object.NameProblems(strings.ToLower(text))) == 0
}

// perPort lists the annotations that can also be set for one port.
var perPort = []string{TLSSecret, TLSServices, BackendProtocol, HTTPHosts}

// ofPort splits the key of an annotation for one port into the key for all ports and the port's name or number. For all other keys port is "".
func ofPort(key string) (base, port string) {
	for _, base := range perPort {
		if port, is := strings.CutPrefix(key, base+"."); is {
			return base, port
		}
	}
	return key, ""
}

// unknownPorts returns the annotations for a single port that the Service does not have. Port names are compared
// case-sensitively.
func unknownPorts(svc *object.Service) (bad []Bad) {
	for _, key := range slices.Sorted(maps.Keys(svc.Metadata.Annotations)) {
		_, port := ofPort(key)
		if port != "" && !slices.ContainsFunc(svc.Spec.Ports, func(p object.ServicePort) bool { return port == p.Name || port == strconv.Itoa(int(p.Port)) }) {
			bad = append(bad, Bad{Key: key, Text: notTCP(svc, port)})
		}
	}
	return bad
}
