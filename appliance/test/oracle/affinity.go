package oracle

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// Memory records the endpoints of clients of Services with session affinity. Its entries
// never expire. The zero Memory is empty.
type Memory struct {
	given map[sticky][]netip.AddrPort
	// excused are endpoints from before a change of the Service: a client may still go
	// there, but need not.
	excused map[sticky][]netip.AddrPort
}

// sticky is the key of affinity: the client's address and the Service port, by whatever
// address the client reached it (behavior 77). Of a whole Service it has no port, and endpoints
// count by their address (behavior 375). A client may be a prefix (behavior 376).
type sticky struct {
	service, port string
	protocol      Protocol
	client        netip.Prefix
}

// The annotations about affinity.
const (
	annotationAffinityScope  = "svcctl.io/affinity-scope"
	annotationAffinityPrefix = "svcctl.io/affinity-prefix"
)

// counts returns the part of an endpoint that counts.
func (s sticky) counts(endpoint netip.AddrPort) netip.AddrPort {
	if s.protocol == "" {
		return netip.AddrPortFrom(endpoint.Addr(), 0)
	}
	return endpoint
}

// Decide is World.Decide for a known client: if it may go to an endpoint that it was
// given before, it goes to one of these (behaviors 76 and 77). It has several if policies
// did not allow the same one everywhere.
func (m *Memory) Decide(w *World, p Packet) []Outcome {
	all := w.Decide(p)
	key, ok := stickyOf(w, p)
	if !ok {
		return all
	}
	var known []Outcome
	bound := false
	for _, o := range all {
		given := o.Kind == Delivered && slices.Contains(m.given[key], key.counts(o.To))
		bound = bound || given
		if given || slices.Contains(m.excused[key], key.counts(o.To)) {
			known = append(known, o)
		}
	}
	if !bound {
		return all
	}
	return known
}

// Excuse records that the objects of a Service, "namespace/name", changed.
func (m *Memory) Excuse(service string) {
	for key, given := range m.given {
		if key.service != service {
			continue
		}
		if m.excused == nil {
			m.excused = map[sticky][]netip.AddrPort{}
		}
		m.excused[key] = append(m.excused[key], given...)
		delete(m.given, key)
	}
}

// Note records the endpoint to which a packet was delivered.
func (m *Memory) Note(w *World, p Packet, endpoint netip.AddrPort) {
	key, ok := stickyOf(w, p)
	if !ok {
		return
	}
	if m.given == nil {
		m.given = map[sticky][]netip.AddrPort{}
	}
	m.given[key] = append(m.given[key], key.counts(endpoint))
}

func stickyOf(w *World, p Packet) (sticky, bool) {
	f, ok := w.frontendFor(p)
	if !ok || f.isRange() || f.service.Spec.SessionAffinity != object.AffinityClientIP {
		return sticky{}, false
	}
	s := sticky{object.RefOf(f.service).Key(), f.port.Name, f.protocol, wholeAddress(p.From.Addr())}
	annotations := f.service.Metadata.Annotations
	if annotations[annotationAffinityScope] == "service" {
		s.port, s.protocol = "", ""
	}
	if lengths, given := annotations[annotationAffinityPrefix]; given {
		of := map[bool]int{}
		v4, v6, both := strings.Cut(lengths, ",")
		of[true], _ = strconv.Atoi(v4)
		if of[false] = 128; both {
			of[false], _ = strconv.Atoi(v6)
		}
		s.client = netip.PrefixFrom(p.From.Addr(), of[p.From.Addr().Is4()]).Masked()
	}
	return s, true
}

func wholeAddress(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
