package annotation

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// The annotations about TLS and HTTP at relayed ports. TLSSecret, TLSServices, BackendProtocol and HTTPHosts have a form
// for one port, with a dot and its name or number behind the key, which wins.
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

// Bounds of ResponseTimeout, and what holds without it.
const (
	defaultResponseTimeout = time.Minute
	minResponseTimeout     = time.Second
	maxResponseTimeout     = time.Hour
)

// none is the value that turns a feature off.
const none = "none"

// halfTLS returns an annotation that asks for TLS at ports which cannot be known, and why; without a Key there is none.
// Ports that have no TLS are not served then: each of them may be meant.
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

// idleFronts returns annotations about TLS and HTTP without one that asks for these, and their problems.
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

// wrongOfBackend returns the problem of an annotation about connections to endpoints; "": none, or it is empty.
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

// isHostName reports whether certificates may be for a name: a host name, or an address.
func isHostName(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil || len(object.NameProblems(strings.ToLower(text))) == 0
}

// perPort are the annotations that have a form for one port.
var perPort = []string{TLSSecret, TLSServices, BackendProtocol, HTTPHosts}

// ofPort splits the key of an annotation for one port; port is "" for all others.
func ofPort(key string) (base, port string) {
	for _, base := range perPort {
		if port, is := strings.CutPrefix(key, base+"."); is {
			return base, port
		}
	}
	return key, ""
}

// unknownPorts are annotations for one port that the Service does not have. Names are compared as they are written, as
// those of Kubernetes are in lower case.
func unknownPorts(svc *object.Service) (bad []Bad) {
	for _, key := range slices.Sorted(maps.Keys(svc.Metadata.Annotations)) {
		_, port := ofPort(key)
		if port != "" && !slices.ContainsFunc(svc.Spec.Ports, func(p object.ServicePort) bool { return port == p.Name || port == strconv.Itoa(int(p.Port)) }) {
			bad = append(bad, Bad{Key: key, Text: notTCP(svc, port)})
		}
	}
	return bad
}
