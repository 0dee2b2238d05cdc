package oracle

import (
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store/object"
)

// annotationSourceRanges is the deprecated annotation for loadBalancerSourceRanges; the
// field takes precedence.
const annotationSourceRanges = object.AnnotationSourceRanges

// annotationNoLocal is the response of a Service with policy Local and no local endpoint
// (behavior 53).
const annotationNoLocal = "svcctl.io/no-local-endpoints"

// Decide returns the possible outcomes of a packet: a single one, or one for each
// endpoint.
func (w *World) Decide(p Packet) []Outcome {
	addr := p.To.Addr()
	if p.Protocol == Ping {
		return w.decidePing(p)
	}
	if f, ok := w.frontendFor(p); ok {
		return w.serve(f, p)
	}
	switch {
	case w.isVIP(addr) && w.isInternalAddress(addr) && !w.isInside(p):
		return []Outcome{{Kind: Dropped}} // behavior 191
	case w.isVIP(addr):
		// Behaviors 5, 27, 28 and 43: a port that no Service has there, node ports included,
		// is refused, even if a program of the host listens there.
		return []Outcome{{Kind: Refused}}
	case w.isOwned(addr):
		// Behaviors 6 and 260: an address of the service range or of a pool that no Service has.
		return []Outcome{{Kind: Dropped}}
	}
	return []Outcome{{Kind: Untouched}}
}

// isOwned reports whether only a Service can have an address.
func (w *World) isOwned(addr netip.Addr) bool {
	if anyContains(w.Box.ServiceRanges, addr) {
		return true
	}
	for _, i := range w.Box.Interfaces {
		if anyContains(i.Addresses, addr) {
			return false // on a segment
		}
	}
	return anyContains(w.Box.Pools, addr) || anyContains(w.Box.InternalPools, addr)
}

// frontendFor finds the frontend of a packet: of the Service with the address, else, on
// an address of the host, of the one with the node port.
func (w *World) frontendFor(p Packet) (frontend, bool) {
	addr, all := p.To.Addr(), w.frontends()
	for _, f := range all {
		if !f.isRange() && f.place != atNodePort && f.address == addr && f.protocol == p.Protocol && f.number == p.To.Port() {
			return f, true
		}
	}
	for i, f := range all { // behavior 389: after exact ports of any Service
		if f.isRange() && f.address == addr && f.protocol == p.Protocol && f.number <= p.To.Port() && p.To.Port() <= f.last && w.isFirst(i) {
			return f, true
		}
	}
	if !w.isNodePortAddress(addr) {
		return frontend{}, false
	}
	for _, f := range all {
		if f.place == atNodePort && f.family == familyOf(addr) && f.protocol == p.Protocol && f.number == p.To.Port() {
			return f, true
		}
	}
	return frontend{}, false
}

// serve returns the outcomes of a packet to a frontend.
func (w *World) serve(f frontend, p Packet) []Outcome {
	if w.insideOnly(f) && !w.isInside(p) || !w.mayConnect(f, p.From.Addr()) {
		return []Outcome{{Kind: Dropped}} // behaviors 32, 33, 37 and 190
	}
	all := w.backendsOf(f)
	chosen, choose := w.everywhere(f, all), func(group []backend) []backend { return w.everywhereIn(f, group) }
	if len(chosen) == 0 {
		return []Outcome{{Kind: Refused}} // behaviors 16, 26, 42, 54, 56 and 64
	}
	if w.localOnly(f, p) {
		choose = onBoxIn
		if chosen = onBox(all); len(chosen) == 0 {
			// Behaviors 53 and 56: others have some, so there is no answer, or the one that the
			// Service asks for.
			if f.service.Metadata.Annotations[annotationNoLocal] == "reject" {
				return []Outcome{{Kind: Refused}}
			}
			return []Outcome{{Kind: Dropped}}
		}
	}
	var outcomes []Outcome
	for _, b := range chosen {
		to := b.address
		if f.isRange() {
			to = netip.AddrPortFrom(to.Addr(), p.To.Port()) // behavior 389: the port stays
		}
		outcomes = append(outcomes, Outcome{Kind: Delivered, To: to, Source: w.source(f, p, to.Addr()), Idle: idleOf(f), Hashed: isHashed(f), Range: f.isRange()})
	}
	if w.refusesShare(f, all, choose) {
		outcomes = append(outcomes, Outcome{Kind: Refused, Hashed: isHashed(f), Range: f.isRange()})
	}
	return outcomes
}

// isHashed reports whether a hash chooses: the algorithm is one, or a range has clients that are to keep their endpoint (docs,
// port ranges: Which endpoint).
func isHashed(f frontend) bool {
	switch f.service.Metadata.Annotations[annotationBalance] {
	case "", object.BalanceRandom, object.BalanceRoundRobin, object.BalanceLeastConnection:
		return f.isRange() && f.service.Spec.SessionAffinity == object.AffinityClientIP
	}
	return true
}

// localOnly reports whether policy Local limits this client to local backends.
func (w *World) localOnly(f frontend, p Packet) bool {
	if f.place == atClusterIP {
		// Behavior 55: for everybody, the box and internal sources included.
		policy := f.service.Spec.InternalTrafficPolicy
		return policy != nil && *policy == object.PolicyLocal
	}
	// Behaviors 48, 49 and 53: internal sources and the box itself are exempt.
	return f.service.Spec.ExternalTrafficPolicy == object.PolicyLocal && !w.isInternal(p.From.Addr()) && !p.bySelf()
}

// source returns the client address that an endpoint sees.
func (w *World) source(f frontend, p Packet, endpoint netip.Addr) Source {
	if w.isLocal(endpoint) {
		// What ends on the box is not routed out of it: nothing is masqueraded, and replies
		// cannot miss the box. From the box to itself both addresses are its own.
		if p.bySelf() {
			return EitherSource
		}
		return Plain
	}
	client := p.From.Addr()
	switch {
	case client == endpoint:
		return Masqueraded // behaviors 8 and 9
	case !p.bySelf() && !w.Box.SNATNever && w.sameSegment(p.Interface, client, endpoint):
		return Masqueraded // behavior 14
	case f.place == atClusterIP:
		return w.clusterIPSource(p)
	case f.service.Spec.ExternalTrafficPolicy != object.PolicyLocal:
		return Masqueraded // behaviors 20, 25, 31, 41 and 47
	case p.bySelf() && w.isInternal(client):
		// An internal source is not masqueraded (behavior 49), the box's own connections are
		// (docs): where the box is both, no text decides, and the endpoint sees the box.
		return EitherSource
	case p.bySelf():
		return Masqueraded // docs: the box may have taken the VIP for its address
	}
	return Plain // behaviors 48 and 49; --masquerade-all does not matter (behavior 13)
}

func (w *World) clusterIPSource(p Packet) Source {
	if w.Box.MasqueradeAll {
		return Masqueraded // behavior 13
	}
	for _, internal := range w.Box.InternalSources {
		// Behaviors 10 and 11; behavior 12: without internal sources, of the family,
		// no client counts as outside.
		if internal.Addr().Is4() == p.From.Addr().Is4() && !w.isInternal(p.From.Addr()) {
			return Masqueraded
		}
	}
	return Plain
}

func (w *World) isInternal(client netip.Addr) bool {
	return anyContains(w.Box.InternalSources, client)
}

// sameSegment reports whether both are neighbors on the interface, so that the endpoint
// would answer the client directly.
func (w *World) sameSegment(name string, client, endpoint netip.Addr) bool {
	for _, i := range w.Box.Interfaces {
		for _, p := range i.Addresses {
			if i.Name == name && p.Contains(client) && p.Contains(endpoint) {
				return true
			}
		}
	}
	return false
}

// decidePing returns the outcome of an ICMP echo request (behavior 17).
func (w *World) decidePing(p Packet) []Outcome {
	addr := p.To.Addr()
	if !w.isVIP(addr) {
		if w.isOwned(addr) {
			return []Outcome{{Kind: Dropped}} // behaviors 6 and 260
		}
		return []Outcome{{Kind: Untouched}}
	}
	if w.isInternalAddress(addr) && !w.isInside(p) {
		return []Outcome{{Kind: Dropped}} // behavior 191
	}
	switch w.Box.Ping {
	case PingNever:
		return []Outcome{{Kind: Dropped}}
	case PingAlways:
		return []Outcome{{Kind: Answered}}
	}
	for i, f := range w.frontends() {
		if f.address == addr && w.isFirst(i) && w.servesAnybody(f) {
			return []Outcome{{Kind: Answered}}
		}
	}
	return []Outcome{{Kind: Unreachable}}
}

// servesAnybody reports whether any client can reach a backend through the frontend. With
// policy Local, a cluster IP gives no client the backends of other nodes; elsewhere the
// host itself gets all.
func (w *World) servesAnybody(f frontend) bool {
	all := w.backendsOf(f)
	if w.localOnly(f, Packet{}) {
		return len(onBox(all)) > 0
	}
	return len(w.everywhere(f, all)) > 0
}

// isFirst reports whether the frontend at index i is the first claimant of its address
// and port (behavior 44).
func (w *World) isFirst(i int) bool {
	all := w.frontends()
	if all[i].isRange() {
		return slices.Contains(grantedRanges(all, all[i].address, all[i].protocol), i)
	}
	all = slices.DeleteFunc(slices.Clone(all[:i+1]), frontend.isRange) // which conflict with nothing
	i = len(all) - 1
	for _, earlier := range all[:i] {
		if earlier.address == all[i].address && earlier.protocol == all[i].protocol && earlier.number == all[i].number {
			return false
		}
	}
	return true
}
