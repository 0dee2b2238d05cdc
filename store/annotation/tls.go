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

// TLSKey returns the annotation of a cloud that asks for TLS termination at a TCP port of a Service, "" if there is none. why is the reason that TLS
// cannot be terminated: no certificate is named, or a list of TLS ports has an entry that is no TCP port. Otherwise the certificate is stored in the
// cloud, and why is "".
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

// isPlain reports whether a port serves plain HTTP, by its number, name or appProtocol. An invalid entry in a list of TLS ports is assumed not to
// mean this port.
func isPlain(p *object.ServicePort) bool {
	return p.Port == 80 || strings.EqualFold(p.Name, "http") || strings.EqualFold(object.Deref(p.AppProtocol), "http")
}

// AsksTLS reports whether an annotation of a cloud, with this value, asks for TLS with a certificate.
func AsksTLS(key, value string) bool {
	r := Find(key)
	return r != nil && r.Effect == Refused && !r.balancer && !r.asksNothing(value)
}

// certificates lists the annotations of clouds that name certificates. An empty value also asks for TLS, because a template may have left out the
// name.
var certificates = []string{
	awsCert, openStack + "default-tls-container-ref", oracle + "tls-secret", alibaba + "cert-id", alibabaOld + "cert-id",
	digitalOcean + "certificate-id", digitalOcean + "certificate-name",
	hetzner + "http-certificates", scaleway + "certificate-ids", vultr + "ssl", huawei + "cert-id", huawei + "tls-certificate-ids",
}

// portList is an annotation that lists TLS ports, and its entries.
type portList struct {
	key   string
	ports []string
}

// portLists returns the annotations of a Service that list TLS ports.
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

// strays returns the first entry of a list that is not a TCP port of the Service, "" if there is none. some reports whether the list has an entry
// that is a TCP port of the Service.
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

// notTCP returns the message about an entry in a list of ports that is not a TCP port of the Service.
func notTCP(svc *object.Service, entry string) string {
	return fmt.Sprintf("%q is no TCP port of the Service, which has %s", entry, tcpPorts(svc))
}

// tcpPorts returns the TCP ports of a Service as text, such as "80 (http), 443".
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

// tlsOfAWS returns the AWS annotation by which a port asks for TLS, "" if there is none. If ssl-ports exists, the ports listed there by number or
// name ask for TLS. Otherwise all ports do if there is a certificate.
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

// tlsOfOracle returns the Oracle annotation by which a port asks for TLS, "" if there is none. If ssl-ports exists, the ports listed there ask for
// TLS. Otherwise all ports do if there is a Secret.
func tlsOfOracle(a map[string]string, port *object.ServicePort) string {
	switch ports := oracle + "ssl-ports"; {
	case has(a, ports) && listed(a[ports], port):
		return ports
	case !has(a, ports):
		return firstGiven(a, oracle+"tls-secret")
	}
	return ""
}

// tlsOfAlibaba returns the Alibaba Cloud annotation by which a port asks for TLS, "" if there is none. If protocol-port exists, its ports with https,
// tcpssl or an unknown protocol ask for TLS. Otherwise all ports do if there is a certificate.
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

// tlsPorts returns the ports after https:, tcpssl: or an unknown protocol in the Alibaba Cloud annotation protocol-port.
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

// tlsOfTencent returns the Tencent Cloud annotation by which a port asks for TLS, "" if there is none. The ports that ask for TLS are those in its
// JSON with a TLS setting, or with a protocol other than TCP, UDP and HTTP. If the JSON is invalid, all ports ask for TLS.
func tlsOfTencent(a map[string]string, port *object.ServicePort) string {
	const key = tencentCloud + "specify-protocol"
	if ports, all := portsInJSON(a[key]); all || slices.ContainsFunc(ports, func(p string) bool { return listed(p, port) }) {
		return key
	}
	return ""
}

// portsInJSON returns the ports that ask for TLS in the JSON of the Tencent Cloud annotation specify-protocol. all is true if the JSON is invalid.
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

// tlsOfDigitalOcean returns the DigitalOcean annotation by which a port asks for TLS, "" if there is none. The ports in tls-ports, http2-ports and
// http3-port ask for TLS. All ports do if there is a TLS protocol, or if there is a certificate and none of these lists. With TLS passthrough no port
// asks for TLS.
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

// tlsOfOthers returns the annotation of another cloud by which a port asks for TLS, "" if there is none. A certificate or a TLS protocol applies to
// all ports, except that Linode has a protocol for each port.
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

// plainOfLinode reports whether the JSON settings of a Linode port do not ask for TLS. It returns false for invalid JSON.
func plainOfLinode(text string) bool {
	var of struct {
		Protocol string `json:"protocol"`
	}
	return strings.TrimSpace(text) == "" || json.Unmarshal([]byte(text), &of) == nil && plainOfDigitalOcean(of.Protocol)
}

// passedThrough reports whether the annotations of DigitalOcean ask for TLS passthrough: TLS is terminated at the endpoints.
func passedThrough(a map[string]string) bool { return isAny(a[digitalOcean+"tls-passthrough"], "true") }

// has reports whether an annotation has a value other than blanks and commas, which a template writes for an empty list.
func has(a map[string]string, key string) bool { return strings.Trim(a[key], ", \t\r\n") != "" }

// given reports whether an annotation exists, even if empty.
func given(a map[string]string, key string) bool {
	_, is := a[key]
	return is
}

// firstGiven returns the first of keys for which the annotation exists, even if empty; "" if there is none.
func firstGiven(a map[string]string, keys ...string) string {
	for _, key := range keys {
		if given(a, key) {
			return key
		}
	}
	return ""
}

// listed reports whether a comma-separated list of ports contains a port by number or name, or *.
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
