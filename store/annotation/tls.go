package annotation

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// TLSKey is the annotation by which a port of a Service asks for TLS to be terminated; "": none
// does. It is about TCP ports of load balancers.
func TLSKey(svc *object.Service, port *object.ServicePort) string {
	if svc.Spec.Type != object.TypeLoadBalancer || port.Protocol != object.ProtocolTCP || len(svc.Metadata.Annotations) == 0 {
		return ""
	}
	a := svc.Metadata.Annotations
	for _, asks := range []func(map[string]string, *object.ServicePort) string{tlsOfAWS, tlsOfOpenStack, tlsOfOracle, tlsOfAlibaba, tlsOfTencent, tlsOfDigitalOcean} {
		if key := asks(a, port); key != "" {
			return key
		}
	}
	return ""
}

// tlsOfAWS: with a certificate the ports of ssl-ports, numbers or names; all without it.
func tlsOfAWS(a map[string]string, port *object.ServicePort) string {
	if has(a, awsCert) && (!has(a, awsSSLPorts) || listed(a[awsSSLPorts], port)) {
		return awsCert
	}
	return ""
}

func tlsOfOpenStack(a map[string]string, _ *object.ServicePort) string {
	return first(a, openStack+"default-tls-container-ref")
}

// tlsOfOracle: the ports of ssl-ports; a Secret alone is about all.
func tlsOfOracle(a map[string]string, port *object.ServicePort) string {
	switch ports := oracle + "ssl-ports"; {
	case has(a, ports) && listed(a[ports], port):
		return ports
	case !has(a, ports):
		return first(a, oracle+"tls-secret")
	}
	return ""
}

// tlsOfAlibaba: the ports of https or tcpssl in protocol-port; a certificate alone is about all.
func tlsOfAlibaba(a map[string]string, port *object.ServicePort) string {
	for _, prefix := range []string{alibaba, alibabaOld} {
		key := prefix + "protocol-port"
		for _, p := range tlsPorts(a[key]) {
			if listed(p, port) {
				return key
			}
		}
		if !has(a, key) && has(a, prefix+"cert-id") {
			return prefix + "cert-id"
		}
	}
	return ""
}

// tlsPorts are the ports that protocol-port of Alibaba Cloud has behind https: and tcpssl:.
func tlsPorts(text string) (ports []string) {
	for part := range strings.SplitSeq(text, ",") {
		protocol, port, _ := strings.Cut(strings.TrimSpace(part), ":")
		if strings.EqualFold(protocol, "https") || strings.EqualFold(protocol, "tcpssl") {
			ports = append(ports, port)
		}
	}
	return ports
}

func noTLSPorts(text string) bool { return len(tlsPorts(text)) == 0 }

// tlsOfTencent: the ports whose protocols in the JSON end in TLS. What cannot be read is about
// all of them.
func tlsOfTencent(a map[string]string, port *object.ServicePort) string {
	const key = tencentCloud + "specify-protocol"
	ports, all := portsInJSON(a[key])
	if all || slices.ContainsFunc(ports, func(p string) bool { return listed(p, port) }) {
		return key
	}
	return ""
}

// portsInJSON are the ports of specify-protocol of Tencent Cloud that ask for TLS; all: it cannot
// be read.
func portsInJSON(text string) (ports []string, all bool) {
	if strings.TrimSpace(text) == "" {
		return nil, false
	}
	var byPort map[string]struct {
		Protocol []string `json:"protocol"`
		TLS      string   `json:"tls"`
	}
	if json.Unmarshal([]byte(text), &byPort) != nil {
		return nil, true
	}
	for port, says := range byPort {
		if says.TLS != "" || slices.ContainsFunc(says.Protocol, anyOf("HTTPS", "TCP_SSL", "QUIC")) {
			ports = append(ports, port)
		}
	}
	return ports, false
}

func noTLSInJSON(text string) bool {
	ports, all := portsInJSON(text)
	return len(ports) == 0 && !all
}

// tlsOfDigitalOcean: the ports of tls-ports, http2-ports and http3-port; all of a protocol with
// TLS; with a certificate alone all. Passed through, TLS ends at the endpoints.
func tlsOfDigitalOcean(a map[string]string, port *object.ServicePort) string {
	if strings.EqualFold(strings.TrimSpace(a[digitalOcean+"tls-passthrough"]), "true") {
		return ""
	}
	lists := []string{digitalOcean + "tls-ports", digitalOcean + "http2-ports", digitalOcean + "http3-port"}
	for _, key := range lists {
		if listed(a[key], port) {
			return key
		}
	}
	if anyOf("https", "http2", "http3")(a[digitalOcean+"protocol"]) {
		return digitalOcean + "protocol"
	}
	if !slices.ContainsFunc(lists, func(key string) bool { return has(a, key) }) {
		return first(a, digitalOcean+"certificate-id", digitalOcean+"certificate-name")
	}
	return ""
}

// PortsWithoutTLS returns a problem for ports that are to have TLS when no certificate is named:
// then nothing asks for TLS, as on AWS.
func PortsWithoutTLS(svc *object.Service) []Bad {
	if a := svc.Metadata.Annotations; svc.Spec.Type != object.TypeLoadBalancer || !has(a, awsSSLPorts) || has(a, awsCert) {
		return nil
	}
	return []Bad{{awsSSLPorts, "no certificate is named, so these ports are passed through as they are, and nothing is encrypted here"}}
}

// has reports whether an annotation says anything.
func has(a map[string]string, key string) bool { return strings.TrimSpace(a[key]) != "" }

// first is the first annotation that says anything.
func first(a map[string]string, keys ...string) string {
	for _, key := range keys {
		if has(a, key) {
			return key
		}
	}
	return ""
}

// listed reports whether a list of ports, with commas between them, has one by number or name,
// or has all of them as *.
func listed(list string, port *object.ServicePort) bool {
	for p := range strings.SplitSeq(list, ",") {
		switch p = strings.TrimSpace(p); {
		case p == "":
		case p == "*", p == strconv.Itoa(int(port.Port)), strings.EqualFold(p, port.Name):
			return true
		}
	}
	return false
}
