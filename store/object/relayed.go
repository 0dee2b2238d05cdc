package object

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Annotations of a Service for relaying its ports in user space. The keys of the TLS and HTTP annotations may be followed by a dot and the name or
// number of a port. The annotation then applies to that port only.
const (
	AnnotationProxyMode       = "svcctl.io/proxy-mode"
	AnnotationProxyProtocol   = "svcctl.io/proxy-protocol"
	AnnotationProxyFrom       = "svcctl.io/proxy-protocol-from"
	AnnotationTLSSecret       = "svcctl.io/tls-secret"
	AnnotationTLSServices     = "svcctl.io/tls-services"
	AnnotationBackendProtocol = "svcctl.io/backend-protocol"
)

// ParseProxyProtocol parses the value of AnnotationProxyProtocol: 1 for "v1" and "1", 2 for "v2" and "2", 0 for
// "none", "false" and "".
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

// IsKernelMode reports whether a value of AnnotationProxyMode requires that the kernel serve the ports, without a relay.
func IsKernelMode(value string) bool {
	mode := strings.ToLower(strings.TrimSpace(value))
	return mode == "kernel" || mode == "nftables"
}

// checkRelayed returns errors for relay annotations that cannot work on any port of the Service. It leaves out errors that the old version has, too,
// so that a Service stored before this check existed can still be updated. The status reports these errors.
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

// relayConflicts returns an error for each relay annotation on a Service without a TCP port, and one if AnnotationProxyMode
// excludes the relay that another annotation needs.
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

// asksRelay reports whether an annotation asks for a feature of the TCP relay. what names the feature for a message ("there is TLS"), and is "" if
// the annotation asks for none. forAll is set if the annotation applies to all ports.
func asksRelay(key, value string) (what string, forAll bool) {
	if !strings.HasPrefix(key, "svcctl.io/") {
		return "", false // such as the last-applied one, which is long
	}
	value = strings.ToLower(strings.TrimSpace(value))
	switch is := func(of string) bool { return key == of || strings.HasPrefix(key, of+".") }; {
	case value == "" || value == "none":
		return "", false
	case key == AnnotationProxyProtocol:
		if version, _ := ParseProxyProtocol(value); version == 0 {
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

// AnnotationPortRanges of a Service lists port ranges that it serves in addition to spec.ports, such as "rtp=10000-20000/UDP". The name is that of a
// port in spec.ports. The endpoints of that port serve the range, and get each connection at the port to which the client sent it. "*" stands for
// every port, or for every protocol.
const AnnotationPortRanges = "svcctl.io/port-ranges"

// MaxPortRanges bounds the ranges of a Service.
const MaxPortRanges = 16

// PortRange is a range of ports in one protocol, both ends included.
type PortRange struct {
	Name        string // name of the port in spec.ports that has the endpoints
	Protocol    string
	First, Last uint16
}

// String formats the range as in AnnotationPortRanges.
func (r PortRange) String() string {
	text := fmt.Sprintf("%d-%d/%s", r.First, r.Last, r.Protocol)
	if r.Name != "" {
		text = r.Name + "=" + text
	}
	return text
}

// Overlaps reports whether two ranges have a port in common.
func (r PortRange) Overlaps(o PortRange) bool {
	return r.Protocol == o.Protocol && r.First <= o.Last && o.First <= r.Last
}

var rangeProtocols = []string{ProtocolTCP, ProtocolUDP, ProtocolSCTP}

// ParsePortRanges parses the value of AnnotationPortRanges. ports are those of the Service. An entry for
// all protocols yields one range for each.
func ParsePortRanges(value string, ports []ServicePort) ([]PortRange, error) {
	var list []PortRange
	entries := strings.Split(value, ",")
	for _, entry := range entries {
		entry = strings.TrimSpace(entry)
		ranges, err := parsePortRange(entry, ports)
		if err != nil {
			return nil, err
		}
		for _, r := range ranges {
			if i := slices.IndexFunc(list, r.Overlaps); i >= 0 {
				return nil, &entryError{entry, fmt.Sprintf("overlaps %s", list[i])}
			}
		}
		list = append(list, ranges...)
	}
	if len(entries) > MaxPortRanges {
		return nil, &entryError{value, fmt.Sprintf("must have at most %d ranges", MaxPortRanges)}
	}
	return list, nil
}

func parsePortRange(entry string, ports []ServicePort) ([]PortRange, error) {
	name, what, named := strings.Cut(entry, "=")
	if !named {
		name, what = "", entry
	}
	name = strings.TrimSpace(name)
	numbers, protocol, hasProtocol := strings.Cut(strings.TrimSpace(what), "/")
	first, last, ok := parsePorts(strings.TrimSpace(numbers))
	if !ok {
		return nil, &entryError{entry, `must be NAME=FIRST-LAST/PROTOCOL with ports from 1 to 65535, or NAME=*, separated by commas`}
	}
	at := slices.IndexFunc(ports, func(p ServicePort) bool { return p.Name == name })
	switch {
	case at < 0 && !named:
		return nil, &entryError{entry, "must begin with the name of a port of the Service, as NAME=FIRST-LAST"}
	case at < 0:
		return nil, &entryError{entry, fmt.Sprintf("%q is no name of a port of the Service", name)}
	}
	protocol = strings.ToUpper(strings.TrimSpace(protocol))
	protocols := []string{protocol}
	switch {
	case protocol == "*", !hasProtocol && strings.TrimSpace(numbers) == "*":
		protocols = rangeProtocols
	case !hasProtocol:
		protocols = []string{ports[at].Protocol}
		protocols[0] = cmp.Or(protocols[0], ProtocolTCP)
	case !slices.Contains(rangeProtocols, protocol):
		return nil, &entryError{entry, fmt.Sprintf("%q is no protocol: supported values: \"*\", \"SCTP\", \"TCP\", \"UDP\"", protocol)}
	}
	var list []PortRange
	for _, p := range protocols {
		list = append(list, PortRange{name, p, first, last})
	}
	return list, nil
}

// parsePorts parses "10000-20000", a single port, or "*" (1 to 65535). ok is false for any other text.
func parsePorts(text string) (first, last uint16, ok bool) {
	if text == "*" {
		return 1, 65535, true
	}
	from, to, two := strings.Cut(text, "-")
	if !two {
		to = from
	}
	a, err := strconv.ParseUint(strings.TrimSpace(from), 10, 16)
	b, err2 := strconv.ParseUint(strings.TrimSpace(to), 10, 16)
	return uint16(a), uint16(b), err == nil && err2 == nil && a > 0 && a <= b
}

// PortRanges returns the ranges of the Service; nil if the annotation cannot be parsed, which
// validation refuses.
func (s *Service) PortRanges() []PortRange {
	value, given := s.Metadata.Annotations[AnnotationPortRanges]
	if !given {
		return nil
	}
	list, _ := ParsePortRanges(value, s.Spec.Ports)
	return list
}

// checkPortRanges validates AnnotationPortRanges of a Service. A value that the old Service has, too, is only checked if the ports have changed.
func checkPortRanges(s, old *Service) Errors {
	var before *ObjectMeta
	if old != nil && slices.EqualFunc(s.Spec.Ports, old.Spec.Ports, func(a, b ServicePort) bool { return a.Name == b.Name && a.Protocol == b.Protocol }) {
		before = &old.Metadata
	}
	parse := func(value string) ([]PortRange, error) { return ParsePortRanges(value, s.Spec.Ports) }
	return checkAnnotation(&s.Metadata, before, AnnotationPortRanges, checkBy(parse))
}
