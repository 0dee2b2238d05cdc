package oracle

import (
	"net/netip"
	"slices"

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
// address the client reached it (behavior 77).
type sticky struct {
	service, port string
	protocol      Protocol
	client        netip.Addr
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
		given := o.Kind == Delivered && slices.Contains(m.given[key], o.To)
		bound = bound || given
		if given || slices.Contains(m.excused[key], o.To) {
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
	m.given[key] = append(m.given[key], endpoint)
}

func stickyOf(w *World, p Packet) (sticky, bool) {
	f, ok := w.frontendFor(p)
	if !ok || f.service.Spec.SessionAffinity != object.AffinityClientIP {
		return sticky{}, false
	}
	return sticky{object.RefOf(f.service).Key(), f.port.Name, f.protocol, p.From.Addr()}, true
}
