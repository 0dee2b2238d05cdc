package annotation

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// TLSKey returns the annotation of a cloud by which a port of a Service asks for TLS to be terminated, and why it
// cannot be, "" if none does. The why is "" where the certificate is in the cloud. It is about TCP ports.
func TLSKey(svc *object.Service, port *object.ServicePort) (key, why string) {
	if port.Protocol != object.ProtocolTCP || len(svc.Metadata.Annotations) == 0 {
		return "", ""
	}
	a := svc.Metadata.Annotations
	for _, asks := range []func(map[string]string, *object.ServicePort) string{tlsOfAWS, tlsOfOpenStack, tlsOfOracle, tlsOfAlibaba, tlsOfTencent, tlsOfDigitalOcean, tlsOfOthers} {
		if key := asks(a, port); key != "" {
			switch {
			case slices.Contains(certificates, key) && !has(a, key):
				return key, "it names no certificate"
			case key == awsSSLPorts:
				return key, "no certificate is named"
			}
			return key, ""
		}
	}
	// A list with an entry that is no port may have meant this one.
	for _, l := range portLists(svc) {
		if stray, some := strays(svc, l.ports); stray != "" && !(some && isPlain(port)) {
			return l.key, notTCP(svc, stray)
		}
	}
	return "", ""
}

// isPlain reports whether nobody means a port by a wrong entry of a list of ports with TLS: it is the one of plain HTTP.
func isPlain(p *object.ServicePort) bool {
	return p.Port == 80 || strings.EqualFold(p.Name, "http") || strings.EqualFold(object.Deref(p.AppProtocol), "http")
}

// AsksTLS reports whether an annotation of a cloud asks for TLS with a certificate.
func AsksTLS(key, value string) bool {
	r := Find(key)
	return r != nil && r.Effect == Refused && !r.balancer && !r.asksNothing(value)
}

// certificates are the annotations of clouds that name certificates. An empty one, as a template may write it, asks for
// TLS all the same.
var certificates = []string{
	awsCert, openStack + "default-tls-container-ref", oracle + "tls-secret", alibaba + "cert-id", alibabaOld + "cert-id",
	digitalOcean + "certificate-id", digitalOcean + "certificate-name",
	hetzner + "http-certificates", scaleway + "certificate-ids", vultr + "ssl", huawei + "cert-id", huawei + "tls-certificate-ids",
}

// portList is an annotation that lists ports with TLS.
type portList struct {
	key   string
	ports []string
}

// portLists returns the annotations of a Service that list ports with TLS.
func portLists(svc *object.Service) (lists []portList) {
	a := svc.Metadata.Annotations
	for _, key := range []string{awsSSLPorts, oracle + "ssl-ports"} {
		lists = append(lists, portList{key, strings.Split(a[key], ",")})
	}
	for _, key := range []string{alibaba + "protocol-port", alibabaOld + "protocol-port"} {
		lists = append(lists, portList{key, tlsPorts(a[key])})
	}
	ports, _ := portsInJSON(a[tencentCloud+"specify-protocol"])
	lists = append(lists, portList{tencentCloud + "specify-protocol", ports})
	for key, value := range a {
		if port, is := strings.CutPrefix(key, linode+"port-"); is && !plainOfLinode(value) {
			lists = append(lists, portList{key, []string{port}})
		}
	}
	slices.SortFunc(lists, func(x, y portList) int { return strings.Compare(x.key, y.key) })
	for _, key := range []string{digitalOcean + "tls-ports", digitalOcean + "http2-ports", digitalOcean + "http3-port"} {
		if !passedThrough(a) {
			lists = append(lists, portList{key, strings.Split(a[key], ",")})
		}
	}
	return lists
}

// strays returns the first entry of a list that is no TCP port of the Service, "" when all are, and whether some entry
// is one.
func strays(svc *object.Service, list []string) (stray string, some bool) {
	for _, entry := range list {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		if slices.ContainsFunc(svc.Spec.Ports, func(p object.ServicePort) bool { return isTCP(&p) && listed(entry, &p) }) {
			some = true
		} else if stray == "" {
			stray = entry
		}
	}
	return stray, some
}

func isTCP(p *object.ServicePort) bool { return p.Protocol == object.ProtocolTCP || p.Protocol == "" }

// notTCP describes an entry of a list of ports.
func notTCP(svc *object.Service, entry string) string {
	return fmt.Sprintf("%q is no TCP port of the Service, which has %s", entry, tcpPorts(svc))
}

// tcpPorts lists the TCP ports of a Service: "80 (http), 443".
func tcpPorts(svc *object.Service) string {
	var list []string
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if !isTCP(p) {
			continue
		}
		text := strconv.Itoa(int(p.Port))
		if p.Name != "" {
			text += " (" + p.Name + ")"
		}
		list = append(list, text)
	}
	if list == nil {
		return "none"
	}
	return strings.Join(list, ", ")
}

// tlsOfAWS: with a certificate the ports of ssl-ports, numbers or names; all without it.
func tlsOfAWS(a map[string]string, port *object.ServicePort) string {
	switch {
	case has(a, awsSSLPorts) && !listed(a[awsSSLPorts], port):
		return ""
	case given(a, awsCert):
		return awsCert
	case has(a, awsSSLPorts):
		return awsSSLPorts
	}
	return ""
}

func tlsOfOpenStack(a map[string]string, _ *object.ServicePort) string {
	return firstGiven(a, openStack+"default-tls-container-ref")
}

// tlsOfOracle: the ports of ssl-ports; a Secret alone is about all.
func tlsOfOracle(a map[string]string, port *object.ServicePort) string {
	switch ports := oracle + "ssl-ports"; {
	case has(a, ports) && listed(a[ports], port):
		return ports
	case !has(a, ports):
		return firstGiven(a, oracle+"tls-secret")
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
		if !has(a, key) && given(a, prefix+"cert-id") {
			return prefix + "cert-id"
		}
	}
	return ""
}

// tlsPorts returns the ports that protocol-port of Alibaba Cloud has behind https: and tcpssl:, and behind unknown
// protocols.
func tlsPorts(text string) (ports []string) {
	for part := range strings.SplitSeq(text, ",") {
		switch protocol, port, _ := strings.Cut(strings.TrimSpace(part), ":"); {
		case isAny(protocol, "", "tcp", "udp", "http"):
		case port == "":
			ports = append(ports, part)
		default:
			ports = append(ports, port)
		}
	}
	return ports
}

// tlsOfTencent: the ports whose protocols in the JSON end in TLS. What cannot be read is about
// all of them.
func tlsOfTencent(a map[string]string, port *object.ServicePort) string {
	const key = tencentCloud + "specify-protocol"
	if ports, all := portsInJSON(a[key]); all || slices.ContainsFunc(ports, func(p string) bool { return listed(p, port) }) {
		return key
	}
	return ""
}

// portsInJSON returns the ports of specify-protocol of Tencent Cloud that ask for TLS; all: it cannot
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
	for _, port := range slices.Sorted(maps.Keys(byPort)) {
		if says := byPort[port]; says.TLS != "" || slices.ContainsFunc(says.Protocol, func(p string) bool { return !isAny(p, "TCP", "UDP", "HTTP") }) {
			ports = append(ports, port)
		}
	}
	return ports, false
}

// tlsOfDigitalOcean: the ports of tls-ports, http2-ports and http3-port; all of a protocol with
// TLS; with a certificate alone all. Passed through, TLS ends at the endpoints.
func tlsOfDigitalOcean(a map[string]string, port *object.ServicePort) string {
	if passedThrough(a) {
		return ""
	}
	lists := []string{digitalOcean + "tls-ports", digitalOcean + "http2-ports", digitalOcean + "http3-port"}
	for _, key := range lists {
		if listed(a[key], port) {
			return key
		}
	}
	if !plainOfDigitalOcean(a[digitalOcean+"protocol"]) {
		return digitalOcean + "protocol"
	}
	if !slices.ContainsFunc(lists, func(key string) bool { return has(a, key) }) {
		return firstGiven(a, digitalOcean+"certificate-id", digitalOcean+"certificate-name")
	}
	return ""
}

// plainOfDigitalOcean reports whether a protocol of DigitalOcean is one without TLS.
func plainOfDigitalOcean(protocol string) bool { return isAny(protocol, "", "tcp", "udp", "http") }

// tlsOfOthers: a certificate, or a protocol with TLS, is about all ports; Linode has a protocol for each.
func tlsOfOthers(a map[string]string, port *object.ServicePort) string {
	if key := linode + "port-" + strconv.Itoa(int(port.Port)); has(a, key) {
		if plainOfLinode(a[key]) {
			return ""
		}
		return key
	}
	for _, key := range []string{hetzner + "protocol", linode + "default-protocol"} {
		if !plainOfDigitalOcean(a[key]) {
			return key
		}
	}
	return firstGiven(a, hetzner+"http-certificates", scaleway+"certificate-ids", vultr+"ssl", huawei+"cert-id", huawei+"tls-certificate-ids")
}

// plainOfLinode reports whether the settings of a port of Linode are without TLS. Those that cannot be read may ask for it.
func plainOfLinode(text string) bool {
	var of struct {
		Protocol string `json:"protocol"`
	}
	return strings.TrimSpace(text) == "" || json.Unmarshal([]byte(text), &of) == nil && plainOfDigitalOcean(of.Protocol)
}

// passedThrough reports whether TLS of DigitalOcean ends at the endpoints.
func passedThrough(a map[string]string) bool { return isAny(a[digitalOcean+"tls-passthrough"], "true") }

// has reports whether an annotation has more than blanks and commas, which a template leaves of an empty list.
func has(a map[string]string, key string) bool { return strings.Trim(a[key], ", \t\r\n") != "" }

// given reports whether an annotation is there, perhaps without a value.
func given(a map[string]string, key string) bool {
	_, is := a[key]
	return is
}

// firstGiven returns the first annotation that is there.
func firstGiven(a map[string]string, keys ...string) string {
	for _, key := range keys {
		if given(a, key) {
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
