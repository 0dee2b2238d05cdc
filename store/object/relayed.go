package object

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Annotations of a Service that have ports relayed, and the one that says who serves them. Those about TLS and
// HTTP have a form for one port, with a dot and its name or number behind the key.
const (
	AnnotationProxyMode       = "svcctl.io/proxy-mode"
	AnnotationProxyProtocol   = "svcctl.io/proxy-protocol"
	AnnotationProxyFrom       = "svcctl.io/proxy-protocol-from"
	AnnotationTLSSecret       = "svcctl.io/tls-secret"
	AnnotationTLSServices     = "svcctl.io/tls-services"
	AnnotationBackendProtocol = "svcctl.io/backend-protocol"
)

// ParseProxyProtocol reads the value of AnnotationProxyProtocol: "v1" and "1", "v2" and "2"; 0: "none", "false" or
// nothing.
func ParseProxyProtocol(value string) (version int, err error) {
	switch strings.ToLower(strings.TrimSpace(value)) {
	case "v1", "1":
		return 1, nil
	case "v2", "2":
		return 2, nil
	case "", "none", "false":
		return 0, nil
	}
	return 0, fmt.Errorf(`must be "v1", "v2" or "none"`)
}

// IsKernelMode reports whether a value of AnnotationProxyMode has the kernel serve a Service.
func IsKernelMode(value string) bool {
	mode := strings.ToLower(strings.TrimSpace(value))
	return mode == "kernel" || mode == "nftables"
}

// checkRelayed refuses annotations that no port of the Service can follow. What is wrong with old too is let
// through: it was stored before there was this check, and a problem in the status says so.
func checkRelayed(s, old *Service) Errors {
	errs := relayConflicts(s)
	if old == nil || len(errs) == 0 {
		return errs
	}
	before := relayConflicts(old)
	return slices.DeleteFunc(errs, func(e Error) bool {
		return slices.ContainsFunc(before, func(b Error) bool { return b.Field == e.Field })
	})
}

// relayConflicts returns errors for combinations of annotations that no port can have.
func relayConflicts(s *Service) (errs Errors) {
	a := s.Metadata.Annotations
	if len(a) == 0 || len(s.Spec.Ports) == 0 {
		return nil
	}
	at := metaPath.child("annotations")
	isTCP := func(p ServicePort) bool { return p.Protocol == ProtocolTCP || p.Protocol == "" }
	anyTCP := slices.ContainsFunc(s.Spec.Ports, isTCP)
	refused := false
	for _, key := range slices.Sorted(maps.Keys(a)) {
		switch what, forAll := asksRelay(key, a[key]); {
		case what == "":
		case !anyTCP:
			errs = append(errs, invalid(at.key(key), a[key], fmt.Sprintf("%s over TCP alone, and the Service has no TCP port: leave the annotation out, or add a port of protocol TCP", what))...)
		case forAll && IsKernelMode(a[AnnotationProxyMode]) && !refused:
			refused = true
			errs = append(errs, invalid(at.key(AnnotationProxyMode), a[AnnotationProxyMode], fmt.Sprintf("must not be given together with %s, which needs a relay: leave one of the two out", key))...)
		}
	}
	return errs
}

// asksRelay returns the feature of the TCP relay that an annotation asks for; "": none. forAll is set when it
// applies to all ports.
func asksRelay(key, value string) (what string, forAll bool) {
	value = strings.ToLower(strings.TrimSpace(value))
	is := func(of string) bool { return key == of || strings.HasPrefix(key, of+".") }
	switch {
	case value == "" || value == "none":
		return "", false
	case key == AnnotationProxyProtocol:
		version, _ := ParseProxyProtocol(value)
		if version == 0 {
			return "", false
		}
		return "there are headers of the PROXY protocol", true
	case key == AnnotationProxyFrom:
		return "there are headers of the PROXY protocol", true
	case is(AnnotationTLSSecret), is(AnnotationTLSServices):
		return "there is TLS", key == AnnotationTLSSecret || key == AnnotationTLSServices
	case is(AnnotationBackendProtocol) && value != "tcp":
		return "there is TLS or HTTP", key == AnnotationBackendProtocol
	}
	return "", false
}
