package resolve

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Reasons of Problems about egress.
const (
	reasonEgressNotAllowed = "EgressNotAllowed"
	reasonSharedEndpoint   = "SharedEndpoint"
	reasonNoAddress        = "NoAddress"
	reasonReplyPaths       = "ReplyPaths"
)

// egress specifies the source address for outgoing connections of a Service's endpoints.
type egress struct {
	asked bool
	named []netip.Addr // addresses to use; nil means the first of each family
	to    *nft.SourceSets
	// sources are all addresses in the Service's EndpointSlices, whatever their conditions, since a server also makes connections while it starts or
	// drains.
	sources []netip.Addr
}

func (e *egress) add(source netip.Addr) {
	if e.asked {
		e.sources = append(e.sources, source)
	}
}

// AnnotationEgressTo lists the source sets with the destinations to which svcctl.io/egress applies, or with "!" does not, such as "partner,!lab".
const AnnotationEgressTo = "svcctl.io/egress-to"

// egressVIP is the value of svcctl.io/egress that selects the first load balancer IP of each family or, if there is none, the first external IP.
const egressVIP = "vip"

// readEgress reads the annotations for egress into r.egress.
func (r *resolver) readEgress() {
	value, given := r.Service.Metadata.Annotations[object.AnnotationEgress]
	r.egress.asked = given
	if r.readEgressTo(); !given || strings.TrimSpace(value) == egressVIP {
		return
	}
	for text := range strings.SplitSeq(value, ",") {
		text = strings.TrimSpace(text)
		addr, ok := parseAddr(text)
		own, known := r.mayHave(addr)
		switch {
		case !ok:
			r.badEgress("%q is neither %s nor an address of this Service; for an address of a pool write metallb.io/address-pool", text, egressVIP)
		case !own:
			r.badEgress("%s is no address of this Service, %s: write %s, or one of its own", addr, known, egressVIP)
		case slices.ContainsFunc(r.egress.named, func(a netip.Addr) bool { return a.BitLen() == addr.BitLen() }):
			r.badEgress("%q has two addresses of one family, and a host leaves with one: give a Service of their own to the hosts of the other", value)
		default:
			r.egress.named = append(r.egress.named, addr)
		}
	}
}

// readEgressTo reads the source sets with the destinations for egress. If one is unknown, egress is disabled, and endpoints keep their own source
// addresses.
func (r *resolver) readEgressTo() {
	const so = "endpoints leave with their own addresses"
	value, given := r.Service.Metadata.Annotations[AnnotationEgressTo]
	switch {
	case !given:
		return
	case !r.egress.asked:
		r.warnNoEffect(AnnotationEgressTo, "has no effect: the Service has no %s, whose destinations it is about", object.AnnotationEgress)
		return
	}
	names := strings.Split(value, ",")
	r.egress.to, r.egress.asked = new(nft.SourceSets), len(names) <= nft.MaxSourceSets
	if !r.egress.asked {
		r.warnValue(AnnotationEgressTo, reasonInvalidSets, "%d source sets are named, so %s; at most %d are possible: merge some of their files", len(names), so, nft.MaxSourceSets)
		return
	}
	for _, text := range names {
		name, but := strings.CutPrefix(strings.TrimSpace(text), "!")
		list := &r.egress.to.Allow
		if but {
			list = &r.egress.to.Deny
		}
		if name = strings.TrimSpace(name); name == "" {
			r.warnValue(AnnotationEgressTo, reasonInvalidSets, "%q is no name of a source set, so %s; write names with commas between them, like %q", text, so, "partner,!lab")
		} else if set := r.sourceSet(AnnotationEgressTo, name, so); set != nil {
			*list = append(*list, set)
			continue
		}
		r.egress.asked, r.out.Problems[len(r.out.Problems)-1].Warning = false, true // clients are served
	}
}

func (r *resolver) badEgress(format string, args ...any) {
	r.egress.asked = false
	r.warnValue(object.AnnotationEgress, reasonUnknownValue, format, args...)
}

// mayHave reports whether the Service has, or may be allocated, an address as its load balancer IP or external IP. If not, known is a clause for a
// message that lists the addresses that it has.
func (r *resolver) mayHave(addr netip.Addr) (is bool, known string) {
	svc := r.Service
	balancers := []string{svc.Spec.LoadBalancerIP}
	for _, asked := range annotation.Addresses(svc.Metadata.Annotations) {
		balancers = append(balancers, asked.Text)
	}
	balancers = append(balancers, svc.IngressIPs()...)
	if svc.Spec.Type != object.TypeLoadBalancer {
		balancers = nil
	}
	ofFamily := func(texts []string) (list []netip.Addr) {
		for _, text := range texts {
			if a, ok := parseAddr(text); ok && a.BitLen() == addr.BitLen() {
				list = append(list, a)
			}
		}
		return list
	}
	of := ofFamily(balancers)
	if len(of) == 0 && svc.Spec.Type == object.TypeLoadBalancer {
		return true, "" // it may be allocated
	}
	of = sortedOnce(append(of, ofFamily(svc.Spec.ExternalIPs)...))
	if len(of) == 0 {
		return false, "which has no load balancer IP and no external IP of that family"
	}
	return slices.Contains(of, addr), "which has " + First(of, maxNamed)
}

// leaveWith sets Egress of the Service's ports: the source address for outgoing connections of the endpoints.
func (r *resolver) leaveWith() {
	if !r.egress.asked {
		return // mostly
	}
	switch field := annotation.Field(object.AnnotationEgress); {
	case r.facts.Fleet:
		r.warn(r.ref, field, reasonReplyPaths, "endpoints leave with their own addresses: the boxes of a fleet announce an address by equal paths, and replies may reach a box without the connection; serve these hosts by a box or a pair without --fleet")
		return
	case len(r.facts.EgressFrom) == 0:
		r.warn(r.ref, field, reasonEgressNotAllowed, "endpoints leave with their own addresses: there is no --egress-from; name the ranges whose hosts may leave with an address of a Service (egressFrom in /etc/svcctl/svcctl.yaml)")
		return
	}
	sources := r.mayLeave()
	for _, family := range nft.Families {
		of := slices.DeleteFunc(slices.Clone(sources), func(a netip.Addr) bool { return nft.FamilyOf(a) != family })
		if len(of) == 0 {
			continue
		}
		addr := r.egressAddr(family)
		if !addr.IsValid() {
			lacks := Choose(r.egress.named == nil, "no load balancer IP and no external IP of that family", "no such address among those that the annotation names")
			r.warn(r.ref, annotation.Field(object.AnnotationEgress), reasonNoAddress, "endpoints leave with their own addresses over %s: the Service has %s", family.Name(), lacks)
			continue
		}
		at := slices.IndexFunc(r.out.Ports, func(p nft.ServicePort) bool {
			return slices.ContainsFunc(p.Frontends, func(fe nft.Frontend) bool { return fe.Addr == addr })
		})
		if at >= 0 { // else no port of it is served, which is a problem already
			r.out.Ports[at].Egress = nft.Egress{Addr: addr, Sources: of, To: r.egress.to}
		}
	}
}

// egressAddr returns the source address of a family for outgoing connections of the endpoints. It returns the zero Addr if there is none.
func (r *resolver) egressAddr(family nft.Family) netip.Addr {
	v := r.vips.of(family)
	for _, a := range slices.Concat(v.balancer, v.external) {
		if v.cluster.IsValid() && (r.egress.named == nil || slices.Contains(r.egress.named, a)) {
			return a
		}
	}
	return netip.Addr{}
}

// mayLeave returns the addresses of endpoints whose outgoing connections may use an address of the Service as their source: those in the operator's
// ranges (--egress-from). It omits addresses of this host and its gateways, whose BGP, SSH and VRRP would be affected.
func (r *resolver) mayLeave() (sources []netip.Addr) {
	field := annotation.Field(object.AnnotationEgress)
	var outside []netip.Addr
	for _, a := range sortedOnce(r.egress.sources) {
		what := cmp.Or(r.facts.Host[a], Choose(r.facts.Local[a], "an address of this host", ""))
		switch {
		case what != "":
			r.warn(r.ref, field, reasonEgressNotAllowed, "%s is %s, whose own connections keep their address", a, what)
		case !slices.ContainsFunc(r.facts.EgressFrom, func(p netip.Prefix) bool { return p.Contains(a) }):
			outside = append(outside, a)
		default:
			sources = append(sources, a)
		}
	}
	if len(outside) > 0 {
		r.warn(r.ref, field, reasonEgressNotAllowed, "%s %s in no --egress-from (%s)", First(outside, maxNamed),
			Choose(len(outside) > 1, "leave with their own addresses: they lie", "leaves with its own address: it lies"), First(r.facts.EgressFrom, maxNamed))
	}
	return sources
}

// onlyLeaves reports whether the Service serves only outgoing connections: its endpoints use its address, and the operator specified all of them as
// not ready. It returns false if a controller manages one of its EndpointSlices, since conditions are observations there.
func (r *resolver) onlyLeaves() bool {
	serves := func(e object.Endpoint) bool {
		return e.Conditions.Ready == nil || *e.Conditions.Ready || object.Deref(e.Conditions.Terminating)
	}
	return slices.ContainsFunc(r.out.Ports, func(p nft.ServicePort) bool { return len(p.Egress.Sources) > 0 }) &&
		!slices.ContainsFunc(r.Slices, func(s *object.EndpointSlice) bool {
			return s.Metadata.Labels[object.LabelManagedBy] != "" || slices.ContainsFunc(s.Endpoints, serves)
		})
}

// Choose returns the text yes if its first argument is true, and otherwise the text no.
func Choose(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

// egressClaims holds the sources of outgoing connections by Service. If several Services have the same source, it belongs to the one whose name sorts
// first, so that all boxes with the same objects decide alike.
type egressClaims struct {
	sources addressIndex
	known   map[string]leaving // egress sources by Service
}

// leaving holds the egress sources of a Service. It omits those of ports whose egress address the Service does not hold. The elements of with are the
// egress address and destinations of each remaining port, as text (nft.Egress.String).
type leaving struct {
	sources []netip.Addr
	with    []string
}

// setEgress updates the egress sources of some Services. It returns the Services that may gain or lose a source.
func (c *Claims) setEgress(services []string) (affected []string) {
	for _, service := range services {
		before, now := c.egress.known[service], c.egressOf(service)
		if len(before.sources)+len(now.sources) == 0 {
			continue // mostly
		}
		if c.egress.known == nil {
			c.egress = egressClaims{addressIndex{}, map[string]leaving{}}
		}
		changed := c.egress.sources.replace(c.undo, nil, service, before.sources, now.sources)
		if !slices.Equal(before.with, now.with) {
			changed = append(changed, now.sources...)
		}
		for _, addr := range changed {
			affected = append(affected, c.egress.sources.of(addr)...)
		}
		keep(c.undo, c.egress.known, service)
		if c.egress.known[service] = now; len(now.sources) == 0 {
			delete(c.egress.known, service)
		}
	}
	return affected
}

// egressOf returns the egress sources of a Service. It omits those of ports whose egress address the Service does not hold.
func (c *Claims) egressOf(service string) (now leaving) {
	ports := c.loops.known[service].ports
	for i := range ports {
		if e := &ports[i].Egress; len(e.Sources) > 0 && c.has(service, e.Addr) {
			now.sources, now.with = append(now.sources, e.Sources...), append(now.with, e.String())
		}
	}
	now.sources = sortedOnce(now.sources)
	return now
}

// has reports whether a Service holds a frontend at an address.
func (c *Claims) has(service string, addr netip.Addr) bool {
	ports := c.loops.known[service].ports
	return slices.ContainsFunc(ports, func(p nft.ServicePort) bool {
		return slices.ContainsFunc(p.Frontends, func(fe nft.Frontend) bool { return fe.Addr == addr && c.refusal(service, &p, &fe) == "" })
	})
}

// leavesWith returns the egress address and destinations of a Service in one family as text, "" if there are none.
func (c *Claims) leavesWith(service string, family nft.Family) (text string) {
	for _, p := range c.loops.known[service].ports {
		if p.Family == family && len(p.Egress.Sources) > 0 {
			return p.Egress.String()
		}
	}
	return ""
}

// cutEgress returns a Service's ports without the egress sources that belong to another Service. It returns a problem if that Service uses another
// address or other destinations for them. It does not modify ports.
func (c *Claims) cutEgress(ref object.Ref, ports []nft.ServicePort) (cut []nft.ServicePort, problems []Problem) {
	cut = ports
	for i := range ports {
		e := &ports[i].Egress
		if len(e.Sources) == 0 {
			continue // mostly
		}
		kept, lost := []netip.Addr(nil), map[string][]netip.Addr{}
		for _, source := range e.Sources {
			of := c.egress.sources.of(source)
			if !slices.Contains(of, ref.Key()) {
				continue // the address is another Service's
			}
			if of[0] == ref.Key() {
				kept = append(kept, source)
			} else if c.leavesWith(of[0], ports[i].Family) != e.String() {
				lost[of[0]] = append(lost[of[0]], source)
			}
		}
		for _, winner := range slices.Sorted(maps.Keys(lost)) {
			with := c.leavesWith(winner, ports[i].Family)
			one := "one address" + Choose(strings.Contains(with+e.String(), " to "), " and one "+AnnotationEgressTo, "")
			problems = append(problems, Problem{Object: ref, Field: annotation.Field(object.AnnotationEgress), Reason: reasonSharedEndpoint, Warning: true,
				Message: fmt.Sprintf("%s %s with %s of %s, which comes first by name: give both Services %s, or each its own hosts", First(lost[winner], maxNamed),
					Choose(len(lost[winner]) > 1, "leave", "leaves"), with, winner, one)})
		}
		if len(kept) == len(e.Sources) {
			continue
		}
		if &cut[0] == &ports[0] {
			cut = slices.Clone(ports)
		}
		cut[i].Egress.Sources = kept
	}
	return cut, problems
}
