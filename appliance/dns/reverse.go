package dns

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

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
		top := (service.Bits() + step - 1) / step * step
		if prefix.Bits() >= top && service.Contains(prefix.Addr()) {
			depth = (prefix.Bits() - top) / step
			return strings.Join(labels[depth:], ".") + ".", depth
		}
	}
	return "", 0
}
