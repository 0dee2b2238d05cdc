package dns

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/object"
)

// node has the records of a name. An empty one is a name that only has names below it.
// Nodes in the index are immutable.
type node struct {
	addrs   [2][]net.IP // of A and of AAAA
	alias   string      // what the name is another name of: CNAME, with a dot at the end
	targets []target    // SRV
	text    string      // TXT
	apex    bool        // the top of a zone: SOA and NS
}

// target is one SRV record.
type target struct {
	port uint16
	name string // with a dot at the end
	at   *node  // with the addresses of name
}

// records are the names of one Service.
type records struct {
	service   *node            // of the Service's own name; nil when it has none
	hosts     map[string]*node // of endpoints, by host name
	ports     map[string]*node // by "_http._tcp"
	protocols map[string]bool  // "_tcp": the names above those of ports
	pointers  map[netip.Addr][]string
}

// newRecords returns the names of a Service in a domain, which ends with a dot.
func newRecords(in resolve.Input, domain string, facts *resolve.Facts) *records {
	svc := in.Service
	r := &records{
		hosts: map[string]*node{}, ports: map[string]*node{}, protocols: map[string]bool{},
		pointers: map[netip.Addr][]string{},
	}
	switch name := fmt.Sprintf("%s.%s.svc.%s", svc.Metadata.Name, svc.Metadata.Namespace, domain); {
	case svc.Spec.Type == "ExternalName":
		r.service = &node{alias: dns.Fqdn(svc.Spec.ExternalName)}
	case len(svc.Spec.ClusterIPs) > 0 && svc.Spec.ClusterIPs[0] == "None":
		r.addMembers(name, resolve.Members(in, facts), svc.Spec.PublishNotReadyAddresses)
	default:
		r.addClusterIPs(name, &svc.Spec)
	}
	return r
}

// addClusterIPs adds the records of a Service with cluster IPs (specification, 2.3).
func (r *records) addClusterIPs(name string, spec *object.ServiceSpec) {
	r.service = &node{}
	for _, text := range spec.ClusterIPs {
		if addr, err := netip.ParseAddr(text); err == nil {
			r.service.add(addr)
			r.point(addr, name)
		}
	}
	for i := range spec.Ports {
		if p := &spec.Ports[i]; p.Name != "" {
			r.addPort(p.Name, p.Protocol, target{port: uint16(p.Port), name: name, at: r.service})
		}
	}
}

// addMembers adds the records of a headless Service (specification, 2.4). Without a ready
// endpoint it has none, not even its own name.
func (r *records) addMembers(name string, members []resolve.Member, all bool) {
	seen := map[endpointPort]bool{}
	for i := range members {
		m := &members[i]
		if !m.Ready && !all {
			continue
		}
		if r.service == nil {
			r.service = &node{}
		}
		r.service.add(m.Addr)
		hostname := m.Hostname
		if hostname == "" {
			hostname = hostnameOf(m.Addr)
		}
		host := r.hosts[hostname]
		if host == nil {
			host = &node{}
			r.hosts[hostname] = host
		}
		host.add(m.Addr)
		r.point(m.Addr, hostname+"."+name)
		for _, p := range m.Ports {
			// An endpoint with an address of each family is one target.
			if one := (endpointPort{hostname, p}); !seen[one] {
				seen[one] = true
				r.addPort(p.Name, p.Protocol, target{port: p.Port, name: hostname + "." + name, at: host})
			}
		}
	}
}

type endpointPort struct {
	hostname string
	port     resolve.MemberPort
}

// hostnameOf returns the label of an endpoint without a hostname: its address, unique
// within the Service. IPv6 addresses are expanded, because "::" is no label.
func hostnameOf(addr netip.Addr) string {
	if addr.Is4() {
		return strings.ReplaceAll(addr.String(), ".", "-")
	}
	return strings.ReplaceAll(addr.StringExpanded(), ":", "-")
}

// addPort adds a target to a named port.
func (r *records) addPort(name, protocol string, t target) {
	protocol = "_" + strings.ToLower(protocol)
	key := "_" + name + "." + protocol
	r.protocols[protocol] = true
	n := r.ports[key]
	if n == nil {
		n = &node{}
		r.ports[key] = n
	}
	n.targets = append(n.targets, t)
}

// point makes an address resolve to a name.
func (r *records) point(addr netip.Addr, name string) {
	r.pointers[addr] = append(r.pointers[addr], name)
}

// add adds an address once.
func (n *node) add(addr netip.Addr) {
	family := 0
	if addr.Is6() {
		family = 1
	}
	ip := net.IP(addr.AsSlice())
	if list := n.addrs[family]; len(list) == 0 || !list[len(list)-1].Equal(ip) { // members come in order of address
		n.addrs[family] = append(list, ip)
	}
}

// names returns the names of addresses; a missing Service has none.
func (r *records) names() map[netip.Addr][]string {
	if r == nil {
		return nil
	}
	return r.pointers
}

// parseReverse parses a name of the reverse trees, in-addr.arpa (RFC 1035, section 3.5)
// and ip6.arpa (RFC 3596, section 2.5), as the prefix of the addresses below it.
func parseReverse(labels []string) (netip.Prefix, bool) {
	n := len(labels) - 2
	if n < 0 || labels[n+1] != "arpa" {
		return netip.Prefix{}, false
	}
	switch digits := labels[:n]; labels[n] {
	case "in-addr":
		return parseOctets(digits)
	case "ip6":
		return parseNibbles(digits)
	}
	return netip.Prefix{}, false
}

func parseOctets(labels []string) (netip.Prefix, bool) {
	var raw [4]byte
	n := len(labels)
	if n > len(raw) {
		return netip.Prefix{}, false
	}
	for i, label := range labels {
		octet, err := strconv.ParseUint(label, 10, 8)
		if err != nil || strconv.Itoa(int(octet)) != label {
			return netip.Prefix{}, false
		}
		raw[n-1-i] = byte(octet)
	}
	return netip.PrefixFrom(netip.AddrFrom4(raw), 8*n), true
}

func parseNibbles(labels []string) (netip.Prefix, bool) {
	var raw [16]byte
	n := len(labels)
	if n > 2*len(raw) {
		return netip.Prefix{}, false
	}
	for i, label := range labels {
		nibble := strings.IndexByte("0123456789abcdef", label[0])
		if len(label) != 1 || nibble < 0 {
			return netip.Prefix{}, false
		}
		at := n - 1 - i // from the most significant one
		raw[at/2] |= byte(nibble) << (4 - at%2*4)
	}
	return netip.PrefixFrom(netip.AddrFrom16(raw), 4*n), true
}

// answerReverse answers for addresses with a name and for the service ranges, whose
// reverse zones are ours. Other addresses, also in the networks of endpoints, are in none
// of our zones.
func (x *index) answerReverse(q inquiry, labels []string, prefix netip.Prefix) reply {
	zone, depth := x.reverseZone(labels, prefix)
	var names []string
	if prefix.IsSingleIP() {
		names = x.names(prefix.Addr())
	}
	if len(names) == 0 && zone == "" {
		return reply{outside: true}
	}
	r := reply{authoritative: true}
	switch {
	case q.Qtype == dns.TypePTR:
		for _, name := range names[:min(len(names), q.limit)] {
			r.answer = append(r.answer, &dns.PTR{Hdr: header(q.Name, dns.TypePTR), Ptr: name})
		}
	case depth == 0 && zone != "":
		r.answer = x.at(q, apex, zone)
	case q.Qtype == dns.TypeANY && len(names) > 0:
		r.answer = x.at(q, empty, zone)
	}
	if len(r.answer) > 0 || zone == "" {
		return r
	}
	r.authority = []dns.RR{x.soa(zone)}
	// A name above those of addresses is never denied: whether there is one below it
	// would have to be looked for.
	if prefix.IsSingleIP() && len(names) == 0 && depth > 0 {
		r.rcode = dns.RcodeNameError
	}
	return r
}

// reverseZone returns our zone of a reverse name and the number of labels below it; "" if
// there is none. Zones end at octets and nibbles: other service ranges are several zones.
func (x *index) reverseZone(labels []string, prefix netip.Prefix) (zone string, depth int) {
	step := 8
	if prefix.Addr().Is6() {
		step = 4
	}
	for _, service := range x.facts.ServiceRanges {
		if top := (service.Bits() + step - 1) / step * step; prefix.Bits() >= top && service.Contains(prefix.Addr()) {
			depth = (prefix.Bits() - top) / step
			return strings.Join(labels[depth:], ".") + ".", depth
		}
	}
	return "", 0
}
