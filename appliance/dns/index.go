package dns

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/object"
)

// index has the records of all Services. Its maps are read without locks: values are immutable and are replaced as a whole.
type index struct {
	domain string // ends with a dot
	labels []string
	facts  *resolve.Facts
	// server is the node of the name in the zone's NS record.
	server *node

	complete   atomic.Bool   // all Services are in it, so a name without an entry does not exist
	serial     atomic.Uint32 // serial number of the SOA record
	services   sync.Map      // *records by serviceKey
	namespaces sync.Map      // keys are the namespaces that have a Service
	pointers   sync.Map      // from netip.Addr to its names, a sorted []string

	// Only update uses the fields below.
	population map[string]int // number of Services by namespace
	owners     map[netip.Addr][]string
}

type serviceKey struct{ namespace, name string }

func newIndex(cfg *Config) *index {
	return &index{
		domain: dns.Fqdn(cfg.Domain), labels: dns.SplitDomainName(cfg.Domain), facts: &resolve.Facts{Networks: resolve.Networks{ServiceRanges: cfg.ServiceRanges}}, server: &node{},
		population: map[string]int{}, owners: map[netip.Addr][]string{},
	}
}

// update replaces the records of Services by "namespace/name"; an input without a Service deletes them. It must not be called concurrently.
func (x *index) update(changed map[string]resolve.Input, now time.Time) {
	moved := map[netip.Addr]bool{}
	for key, in := range changed {
		namespace, name, _ := strings.Cut(key, "/")
		x.replace(serviceKey{namespace, name}, in, moved)
	}
	for addr := range moved {
		if names := x.owners[addr]; len(names) > 0 {
			x.pointers.Store(addr, slices.Clone(names))
		} else {
			x.pointers.Delete(addr)
			delete(x.owners, addr)
		}
	}
	// A serial is never used twice, not after a restart either (RFC 1982 order).
	x.serial.Store(max(x.serial.Load()+1, uint32(now.Unix())))
}

func (x *index) replace(key serviceKey, in resolve.Input, moved map[netip.Addr]bool) {
	var old, now *records
	if value, ok := x.services.Load(key); ok {
		old = value.(*records)
	}
	if in.Service != nil {
		now = newRecords(in, x.domain, x.facts)
	}
	x.move(old.names(), now.names(), moved)
	switch {
	case now != nil:
		x.services.Store(key, now)
		if old == nil {
			x.populate(key.namespace, 1)
		}
	case old != nil:
		x.services.Delete(key)
		x.populate(key.namespace, -1)
	}
}

// move updates the names of addresses for PTR records. `old` holds the previous names, `now` the new ones. Addresses with changed names are added to
// `moved`.
func (x *index) move(old, now map[netip.Addr][]string, moved map[netip.Addr]bool) {
	each := func(names, others map[netip.Addr][]string, change func(netip.Addr, string)) {
		for addr, list := range names {
			if slices.Equal(list, others[addr]) {
				continue
			}
			moved[addr] = true
			for _, name := range list {
				change(addr, name)
			}
		}
	}
	each(old, now, x.disown)
	each(now, old, x.own)
}

func (x *index) own(addr netip.Addr, name string) {
	list := x.owners[addr]
	if at, found := slices.BinarySearch(list, name); !found {
		x.owners[addr] = slices.Insert(list, at, name)
	}
}

func (x *index) disown(addr netip.Addr, name string) {
	list := x.owners[addr]
	if at, found := slices.BinarySearch(list, name); found {
		x.owners[addr] = slices.Delete(list, at, at+1)
	}
}

func (x *index) populate(namespace string, change int) {
	x.population[namespace] += change
	if x.population[namespace] > 0 {
		x.namespaces.Store(namespace, true)
		return
	}
	delete(x.population, namespace)
	x.namespaces.Delete(namespace)
}

// known returns the "namespace/name" of all Services in the index.
func (x *index) known() []string {
	var keys []string
	x.services.Range(func(key, _ any) bool {
		k := key.(serviceKey)
		keys = append(keys, k.namespace+"/"+k.name)
		return true
	})
	return keys
}

// The nodes of names that always exist.
var (
	empty   = &node{} // a name that only has names below it
	apex    = &node{apex: true}
	version = &node{text: schemaVersion}
)

// schemaVersion is the version of Kubernetes' DNS specification in the TXT record of dns-version.
const schemaVersion = "1.1.0"

// find returns the node of a name in the zone; nil if there is none. labels are the labels before the zone's domain, in lower case.
func (x *index) find(labels []string) *node {
	n := len(labels)
	if n == 0 {
		return apex
	}
	switch top := labels[n-1]; {
	case top == "svc":
		return x.findService(labels[:n-1])
	case n == 1 && top == "dns-version":
		return version
	case n == 1 && top == "dns":
		return empty
	case n == 2 && top == "dns" && labels[0] == "ns":
		return x.server
	}
	return nil
}

// findService returns the node of a name below svc; nil if there is none. labels are the labels before "svc".
func (x *index) findService(labels []string) *node {
	n := len(labels)
	switch n {
	case 0:
		return empty
	case 1:
		if _, ok := x.namespaces.Load(labels[0]); ok {
			return empty
		}
		return nil
	}
	value, ok := x.services.Load(serviceKey{labels[n-1], labels[n-2]})
	if !ok {
		return nil
	}
	switch r := value.(*records); n {
	case 2:
		return r.service
	case 3:
		if r.protocols[labels[0]] {
			return empty
		}
		return r.hosts[labels[0]]
	case 4:
		return r.ports[labels[0]+"."+labels[1]]
	}
	return nil
}

// names returns the names of an address for PTR records.
func (x *index) names(addr netip.Addr) []string {
	if value, ok := x.pointers.Load(addr); ok {
		return value.([]string)
	}
	return nil
}

// node has the records of a name. A node without records is a name that only has names below it. Nodes in the index are immutable.
type node struct {
	addrs   [2][]net.IP // addresses of the A and of the AAAA records
	alias   string      // the target of the CNAME record, with a dot at the end
	targets []target    // the SRV records
	text    string      // the TXT record
	apex    bool        // the top of a zone, which has SOA and NS records
}

// target is the content of one SRV record.
type target struct {
	port uint16
	name string // with a dot at the end
	at   *node  // the node of name, with its addresses
}

// records has the nodes of all names of one Service.
type records struct {
	service   *node            // node of the Service's own name; nil when that has none
	hosts     map[string]*node // nodes of endpoints, by host name
	ports     map[string]*node // nodes of ports, by labels such as "_http._tcp"
	protocols map[string]bool  // labels such as "_tcp", the parents of the names of ports
	pointers  map[netip.Addr][]string
}

// newRecords returns the records of a Service. domain is that of the zone, with a dot at the end.
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

// addClusterIPs adds the records of a Service with cluster IPs (Kubernetes' DNS specification, 2.3).
func (r *records) addClusterIPs(name string, spec *object.ServiceSpec) {
	r.service = &node{}
	for _, addr := range object.Addrs(spec.ClusterIPs) {
		r.service.add(addr)
		r.point(addr, name)
	}
	for i := range spec.Ports {
		if p := &spec.Ports[i]; p.Name != "" {
			r.addPort(p.Name, p.Protocol, target{port: uint16(p.Port), name: name, at: r.service})
		}
	}
}

// addMembers adds the records of a headless Service (Kubernetes' DNS specification, 2.4). If all is set, endpoints that are not ready are included.
// Without an endpoint the Service's own name does not exist either.
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

// hostnameOf returns the DNS label of an endpoint without a hostname, derived from its address. IPv6 addresses are expanded, because a label cannot
// represent "::".
func hostnameOf(addr netip.Addr) string {
	if addr.Is4() {
		return strings.ReplaceAll(addr.String(), ".", "-")
	}
	return strings.ReplaceAll(addr.StringExpanded(), ":", "-")
}

// addPort adds a target to the SRV records of a named port.
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

// point adds a name to the PTR records of an address.
func (r *records) point(addr netip.Addr, name string) {
	r.pointers[addr] = append(r.pointers[addr], name)
}

// add adds an address to the node. It ignores an address that equals the previous one of its family; callers add addresses in order.
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

// names returns the names of addresses for PTR records; nil records have none.
func (r *records) names() map[netip.Addr][]string {
	if r == nil {
		return nil
	}
	return r.pointers
}

// parseReverse parses a name below in-addr.arpa (RFC 1035, section 3.5) or ip6.arpa (RFC 3596, section 2.5). It returns the prefix of the
// addresses at or below that name.
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

// answerReverse returns the reply for a reverse name. The server is authoritative for addresses that have a name and for the reverse zones of the
// service ranges. For all other addresses, including those in the networks of endpoints, the reply is outside.
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

// reverseZone returns the server's zone that contains a reverse name, and the number of labels below it; "" if there is none. Zones end at
// octets and nibbles, so other service ranges consist of several zones.
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
