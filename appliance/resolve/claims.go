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

// Claims decides which Service gets a frontend that several ask for: the one that asked for it first, by revisions of the store. The other Services
// keep their other frontends, and have a problem that names the holder. Precedence also applies to addresses: an endpoint stays usable if a Service
// asks for its address later, and a load balancer IP is not shared with the external IPs of Services that ask for it later. The zero value holds no
// claims. Claims is not safe for concurrent use.
type Claims struct {
	byFrontend map[claimed][]claimant // in order of precedence; the first one holds the frontend
	byService  map[string][]claimed
	balancers  map[netip.Addr][]claimant // Services with a load balancer IP, in order of precedence
	externals  addressIndex              // Services with an external IP
	loops      loops
	ranges     rangeClaims
	host       hostPorts
	egress     egressClaims
	undo       *undo // reverts the changes since Try; nil unless made by Try
}

// Claim holds the frontends that one Service asks for. Without Ports it asks for none.
type Claim struct {
	Service string // "namespace/name"
	Ports   []nft.ServicePort
	Unready []netip.Addr // addresses of endpoints that no port uses at present
	// HealthPort is the health-check node port (TCP), on which the appliance itself listens; 0 if there is none.
	HealthPort uint16
	// Since returns the ages of the requests. If nil, all are equally old.
	Since Ages
}

// Ages returns the ages of a Service's claims as revisions of the store: a lower one is older.
type Ages interface {
	// Of returns the revision at which the Service first asked for an address and port, or for a node port if at has the zero Addr. protocol is as in
	// manifests, such as "TCP".
	Of(protocol string, at netip.AddrPort) uint64
	// OfRange returns the revision at which the Service first asked for a range of ports, from the port of at to last.
	OfRange(protocol string, at netip.AddrPort, last uint16) uint64
}

func (c *Claim) since(key claimed) uint64 {
	if c.Since == nil {
		return 0
	}
	return c.Since.Of(key.proto.Name(), netip.AddrPortFrom(key.addr, key.port))
}

// claimed identifies a frontend in the kernel. For a node port, addr is the zero Addr.
type claimed struct {
	addr   netip.Addr
	family nft.Family
	proto  nft.Protocol
	port   uint16
}

type claimant struct {
	service string // "namespace/name"
	since   uint64
	host    bool // the frontend has an address of the host
	relayed bool
}

func (a claimant) compare(b claimant) int {
	return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.service, b.service))
}

// Set replaces the claims of some Services. It returns the other Services that gain or lose a frontend or an endpoint as a result. If an address
// becomes both an endpoint and a frontend in one call, the endpoint takes precedence, unless inForce reports that the kernel already has a frontend
// there. inForce may be nil.
func (c *Claims) Set(inForce func(f nft.Family, proto nft.Protocol, at netip.AddrPort) bool, claims ...Claim) (affected []string) {
	if c.byFrontend == nil {
		c.byFrontend, c.byService = map[claimed][]claimant{}, map[string][]claimed{}
		c.balancers, c.externals = map[netip.Addr][]claimant{}, addressIndex{}
	}
	for i := range claims {
		affected = append(affected, c.set(&claims[i])...)
	}
	affected = append(affected, c.loops.set(c.undo, inForce, claims)...)
	asked := make(map[string]bool, len(claims))
	for i := range claims {
		asked[claims[i].Service] = true
	}
	isAsked := func(key string) bool { return asked[key] }
	affected = slices.DeleteFunc(affected, isAsked) // at a start all are
	affected = append(affected, c.setEgress(slices.AppendSeq(slices.Clone(affected), maps.Keys(asked)))...)
	affected = slices.DeleteFunc(affected, isAsked)
	slices.Sort(affected)
	return slices.Compact(affected)
}

// set replaces the claims of a Service. It returns the Services that gain or lose a frontend as a result, possibly with duplicates.
func (c *Claims) set(claim *Claim) (affected []string) {
	service := claim.Service
	before, had := map[claimed]string{}, map[claimed]claimant{}
	for _, key := range c.byService[service] {
		before[key] = c.byFrontend[key][0].service
		had[key] = c.drop(key, service)
	}
	keep(c.undo, c.byService, service)
	delete(c.byService, service)
	var keys []claimed
	claim.each(func(key claimed, as claimant) {
		if slices.Contains(keys, key) {
			return
		}
		keys = append(keys, key)
		if _, ok := before[key]; !ok && len(c.byFrontend[key]) > 0 {
			before[key] = c.byFrontend[key][0].service
		}
		keep(c.undo, c.byFrontend, key)
		c.byFrontend[key] = insert(slices.Clone(c.byFrontend[key]), as)
	})
	if len(keys) > 0 {
		c.byService[service] = keys
	}
	for key, owner := range before {
		if now := c.holder(key); now != owner {
			affected = append(affected, owner, now)
		}
	}
	affected = append(affected, c.setHost(service, had, keys)...)
	affected = slices.DeleteFunc(affected, func(key string) bool { return key == "" })
	affected = append(affected, c.ranges.set(c.undo, claim)...)
	return append(affected, c.setBalancers(claim, keys)...)
}

// each calls add for each frontend of the claim, except for port ranges. It may call add more than once for the same frontend.
func (c *Claim) each(add func(key claimed, as claimant)) {
	for i := range c.Ports {
		p := &c.Ports[i]
		for j := range p.Frontends {
			if fe := &p.Frontends[j]; !fe.IsRange() {
				key := claimOf(p, fe)
				add(key, claimant{c.Service, c.since(key), fe.Addr.IsValid() && fe.HostOwned, p.Relayed()})
			}
		}
	}
	for _, family := range nft.Families {
		if key := (claimed{family: family, proto: nft.TCP, port: c.HealthPort}); c.HealthPort != 0 {
			add(key, claimant{service: c.Service, since: c.since(key)})
		}
	}
}

// setBalancers replaces the load balancer IPs and external IPs of a Service. keys are its claimed frontends. It returns the affected Services: those
// with an external IP at which a load balancer IP was added or removed, or has changed its age.
func (c *Claims) setBalancers(claim *Claim, keys []claimed) (affected []string) {
	known := c.loops.known[claim.Service]
	balancersBefore := known.of(nft.LoadBalancerIP)
	now := known
	now.ports = claim.Ports
	c.externals.replace(c.undo, nil, claim.Service, known.of(nft.ExternalIP), now.of(nft.ExternalIP))
	balancersNow := now.of(nft.LoadBalancerIP)
	oldest := map[netip.Addr]uint64{}
	for _, key := range keys {
		if slices.Contains(balancersNow, key.addr) {
			since := claim.since(key)
			if before, has := oldest[key.addr]; !has || since < before {
				oldest[key.addr] = since
			}
		}
	}
	for _, addr := range slices.AppendSeq(slices.Clone(balancersBefore), maps.Keys(oldest)) {
		list := slices.DeleteFunc(slices.Clone(c.balancers[addr]), func(w claimant) bool { return w.service == claim.Service })
		if since, has := oldest[addr]; has {
			list = insert(list, claimant{service: claim.Service, since: since})
		}
		if !slices.Equal(list, c.balancers[addr]) {
			affected = append(affected, c.externals.of(addr)...)
		}
		keep(c.undo, c.balancers, addr)
		if c.balancers[addr] = list; len(list) == 0 {
			delete(c.balancers, addr)
		}
	}
	return affected
}

func claimOf(p *nft.ServicePort, fe *nft.Frontend) claimed {
	return claimed{fe.Addr, p.Family, p.Protocol, fe.Port}
}

// NameHolders completes the messages of problems about endpoints in a service range: it adds the Service that has the address as its cluster IP. It
// modifies out.Problems.
func (c *Claims) NameHolders(service string, out *Output) {
	for i, addr := range out.InRange {
		if holders := c.loops.vips.of(addr); len(holders) > 0 {
			out.Problems[i].Message = vipAsEndpoint(addr, "the cluster IP", holders[0], service)
		}
	}
}

// Owner returns the Service, as "namespace/name", that holds the frontend with an address and port, or a node port if at has the zero Addr. It
// returns "" if no Service holds it.
func (c *Claims) Owner(f nft.Family, proto nft.Protocol, at netip.AddrPort) string {
	return c.holder(claimed{at.Addr(), f, proto, at.Port()})
}

// HasAddress reports whether a Service asks for a frontend at an address that does not belong to the host.
func (c *Claims) HasAddress(addr netip.Addr) bool { return c.loops.vips[addr.As16()] != nil }

func (c *Claims) holder(key claimed) string {
	if list := c.byFrontend[key]; len(list) > 0 {
		return list[0].service
	}
	return ""
}

func insert(list []claimant, who claimant) []claimant {
	at, _ := slices.BinarySearchFunc(list, who, claimant.compare)
	return slices.Insert(list, at, who)
}

func (c *Claims) drop(key claimed, service string) (had claimant) {
	keep(c.undo, c.byFrontend, key)
	list := slices.DeleteFunc(slices.Clone(c.byFrontend[key]), func(w claimant) bool {
		if w.service == service {
			had = w
		}
		return w.service == service
	})
	if len(list) == 0 {
		delete(c.byFrontend, key)
		return had
	}
	c.byFrontend[key] = list
	return had
}

// Grant returns a Service's ports with only the frontends that it holds, and without endpoints at addresses of frontends. It returns a problem for
// each omission. It does not modify ports.
func (c *Claims) Grant(ref object.Ref, ports []nft.ServicePort) ([]nft.ServicePort, []Problem) {
	var problems []Problem
	granted := ports
	for i := range ports {
		p := &ports[i]
		lost := func(fe *nft.Frontend) string { return c.refusal(ref.Key(), p, fe) }
		if !slices.ContainsFunc(p.Frontends, func(fe nft.Frontend) bool { return lost(&fe) != "" }) {
			continue
		}
		if &granted[0] == &ports[0] {
			granted = slices.Clone(ports)
		}
		granted[i].Frontends = nil
		for j := range p.Frontends {
			fe := &p.Frontends[j]
			if why := lost(fe); why != "" {
				field := ""
				if fe.IsRange() {
					field = annotation.Field(object.AnnotationPortRanges)
				}
				problems = append(problems, Problem{Object: ref, Field: field, Reason: ReasonPortConflict, Message: why})
				continue
			}
			granted[i].Frontends = append(granted[i].Frontends, *fe)
		}
	}
	granted, looping := c.loops.cut(ref, granted)
	granted, relayed := c.cutRelayed(ref, granted)
	granted, shared := c.cutEgress(ref, granted)
	return granted, slices.Concat(problems, looping, relayed, shared)
}

// HealthPort returns a problem if another Service holds the health-check node port of the Service ref at an address of the host.
func (c *Claims) HealthPort(ref object.Ref, port uint16) []Problem {
	if port == 0 {
		return nil
	}
	for _, family := range nft.Families {
		if owner, as := c.rival(ref.Key(), claimed{family: family, proto: nft.TCP, port: port}); owner != "" {
			return []Problem{{Object: ref, Field: "spec.healthCheckNodePort", Reason: "Conflict", Message: fmt.Sprintf("health checks are not answered there: %s is that of Service %s, which asked for it first; choose another port", as, owner)}}
		}
	}
	return nil
}

// refusal returns the message that explains why a Service does not get a frontend, "" if it gets the frontend.
func (c *Claims) refusal(service string, p *nft.ServicePort, fe *nft.Frontend) string {
	key := claimOf(p, fe)
	what := fmt.Sprintf("node port %d/%s", fe.Port, p.Protocol)
	if fe.Addr.IsValid() {
		what = fmt.Sprintf("%s port %s/%s", fe.Addr, fe.PortText(), p.Protocol)
		switch owner := c.loops.endpointOf(fe.Addr); owner {
		case "":
		case service:
			return fmt.Sprintf("%s is not served for this Service: %s is an endpoint of it too; choose another address, or name its servers by theirs", what, fe.Addr)
		default:
			return fmt.Sprintf("%s is not served for this Service: %s was an endpoint of Service %s before, which stays; choose another address", what, fe.Addr, owner)
		}
		asked, asks := c.claimantOf(service, p, fe)
		if owner := c.balancerBefore(service, fe, asked, asks); owner != "" {
			return fmt.Sprintf("%s is not served for this Service: %s is a load balancer IP of Service %s; choose another address", what, fe.Addr, owner)
		}
	}
	if fe.IsRange() {
		return c.ranges.refusal(service, p, fe)
	}
	if owner := c.holder(key); owner != service {
		return fmt.Sprintf("%s is not served for this Service: Service %s, which asked for it first, has it", what, owner)
	}
	if owner, as := c.rival(service, key); owner != "" {
		return fmt.Sprintf("%s is not served for this Service: it is %s of Service %s, which asked for it first; choose another port", what, as, owner)
	}
	return ""
}

// balancerBefore returns another Service whose load balancer IP is the address of fe, if fe is an external IP that this Service asked for later. It
// returns "" if there is none. asked is the claim of this Service to fe; asks is false if it has none.
func (c *Claims) balancerBefore(service string, fe *nft.Frontend, asked claimant, asks bool) string {
	list := c.balancers[fe.Addr]
	if len(list) == 0 || fe.Kind != nft.ExternalIP {
		return ""
	}
	if list[0].service == service || asks && asked.compare(list[0]) < 0 {
		return ""
	}
	return list[0].service
}

// claimantOf returns the claim of a Service to a frontend. It returns false if there is none.
func (c *Claims) claimantOf(service string, p *nft.ServicePort, fe *nft.Frontend) (claimant, bool) {
	if fe.IsRange() {
		return c.ranges.claimantOf(service, p, fe)
	}
	list := c.byFrontend[claimOf(p, fe)]
	at := slices.IndexFunc(list, func(w claimant) bool { return w.service == service })
	if at < 0 {
		return claimant{}, false
	}
	return list[at], true
}

// Ranges of ports are claims of their own: an exact port within a range is no conflict, as the
// dataplane asks for exact ones first. Of two ranges with a port in common the older one is granted
// as a whole, and the other one not at all.

// rangePlace is an address, family and protocol at which overlapping port ranges of different Services exclude each other.
type rangePlace struct {
	addr   netip.Addr
	family nft.Family
	proto  nft.Protocol
}

// rangeClaim is the claim of a Service to a port range.
type rangeClaim struct {
	claimant
	first, last uint16
}

func (a rangeClaim) overlaps(b rangeClaim) bool { return a.first <= b.last && b.first <= a.last }

// rangeClaims holds the claims to port ranges at each rangePlace, in order of precedence.
type rangeClaims struct {
	at     map[rangePlace][]rangeClaim
	places map[string][]rangePlace // by Service
}

func rangePlaceOf(p *nft.ServicePort, fe *nft.Frontend) rangePlace {
	return rangePlace{fe.Addr, p.Family, p.Protocol}
}

// winners returns the claims at a place that are granted. A claim is granted unless it overlaps a granted claim of another Service that takes
// precedence.
func (c *rangeClaims) winners(place rangePlace) (granted []rangeClaim) {
	for _, claim := range c.at[place] {
		taken := func(other rangeClaim) bool { return other.service != claim.service && other.overlaps(claim) }
		if !slices.ContainsFunc(granted, taken) {
			granted = append(granted, claim)
		}
	}
	return granted
}

// set replaces the port ranges of a Service. It returns the Services that gain or lose a range as a result.
func (c *rangeClaims) set(u *undo, claim *Claim) (affected []string) {
	before := map[rangePlace][]rangeClaim{}
	begin := func(place rangePlace) {
		if _, kept := before[place]; !kept {
			before[place] = c.winners(place)
			keep(u, c.at, place)
		}
	}
	keep(u, c.places, claim.Service)
	for _, place := range c.places[claim.Service] {
		begin(place)
		c.at[place] = slices.DeleteFunc(slices.Clone(c.at[place]), func(r rangeClaim) bool { return r.service == claim.Service })
		if len(c.at[place]) == 0 {
			delete(c.at, place)
		}
	}
	delete(c.places, claim.Service)
	for i := range claim.Ports {
		p := &claim.Ports[i]
		for j := range p.Frontends {
			fe := &p.Frontends[j]
			if !fe.IsRange() {
				continue
			}
			if c.at == nil {
				*c = rangeClaims{map[rangePlace][]rangeClaim{}, map[string][]rangePlace{}}
			}
			place := rangePlaceOf(p, fe)
			begin(place)
			var since uint64
			if claim.Since != nil {
				since = claim.Since.OfRange(p.Protocol.Name(), netip.AddrPortFrom(fe.Addr, fe.Port), fe.Last)
			}
			c.at[place] = append(slices.Clone(c.at[place]), rangeClaim{claimant{service: claim.Service, since: since}, fe.Port, fe.Last})
			slices.SortStableFunc(c.at[place], func(a, b rangeClaim) int { return a.compare(b.claimant) })
			c.places[claim.Service] = append(c.places[claim.Service], place)
		}
	}
	for place, was := range before {
		now := c.winners(place)
		for _, list := range [][]rangeClaim{was, now} {
			for _, r := range list {
				if !slices.Contains(was, r) || !slices.Contains(now, r) {
					affected = append(affected, r.service)
				}
			}
		}
	}
	return affected
}

// refusal returns the message that explains why a Service does not get a port range, "" if it gets the range.
func (c *rangeClaims) refusal(service string, p *nft.ServicePort, fe *nft.Frontend) string {
	asked := rangeClaim{claimant{service: service}, fe.Port, fe.Last}
	for _, other := range c.winners(rangePlaceOf(p, fe)) {
		if other.service != service && other.overlaps(asked) {
			return fmt.Sprintf("%s ports %s/%s are not served for this Service: they overlap %d-%d of Service %s, which asked for them first; choose another range, or another address",
				fe.Addr, fe.PortText(), p.Protocol, other.first, other.last, other.service)
		}
	}
	return ""
}

// claimantOf returns the claim of a Service to a port range. It returns false if there is none.
func (c *rangeClaims) claimantOf(service string, p *nft.ServicePort, fe *nft.Frontend) (claimant, bool) {
	list := c.at[rangePlaceOf(p, fe)]
	at := slices.IndexFunc(list, func(r rangeClaim) bool { return r.service == service && r.first == fe.Port && r.last == fe.Last })
	if at < 0 {
		return claimant{}, false
	}
	return list[at].claimant, true
}

// Reasons of Problems about ranges of ports.
const (
	// reasonRangeByHash is the Reason of the problem that clients of a port range keep their endpoint by a hash of their address, not by stored
	// affinity as at the other ports.
	reasonRangeByHash = "RangeByHash"
	// reasonRangeNotServed is the Reason of the problem that a port range is not served at an address.
	reasonRangeNotServed = "RangeNotServed"
)

// readPortRanges returns the port ranges in the annotation svcctl.io/port-ranges.
func (r *resolver) readPortRanges(balance nft.Balance, idle bool) []object.PortRange {
	value, given := r.Service.Metadata.Annotations[object.AnnotationPortRanges]
	if !given {
		return nil
	}
	field := annotation.Field(object.AnnotationPortRanges)
	ranges, err := object.ParsePortRanges(value, r.Service.Spec.Ports)
	if err != nil {
		r.refuse(field, reasonUnknownValue, "%v: no range is served", err)
		return nil
	}
	if r.affinity() > 0 && byChance(balance) {
		r.warn(r.ref, field, reasonRangeByHash,
			"clients of a range keep their endpoint by a hash of their address, and at the ports of spec by memory, so the two may differ: svcctl.io/balance: source-hash without sessionAffinity gives a client one endpoint for all ports")
	}
	if idle {
		r.warn(r.ref, field, reasonNoEffect, "%s has no effect on ranges: their connections live by the settings of the host", AnnotationIdle)
	}
	if key := r.relayed.Key; key != "" {
		r.warn(r.ref, field, ReasonNotRelayed, "%s has no effect on ranges: they are served by the kernel, and endpoints see no header and no other endpoint is tried", key)
	}
	return slices.DeleteFunc(ranges, func(pr object.PortRange) bool {
		i := slices.IndexFunc(r.Service.Spec.Ports, func(p object.ServicePort) bool { return p.Name == pr.Name })
		key := r.front(i).Key
		if key == "" || pr.Protocol != object.ProtocolTCP {
			return false
		}
		r.refuse(field, reasonTLSNotTerminated, "%s is not served, rather than passed through as it is: %s asks for TLS or HTTP at that port, and ranges are not relayed: "+
			"list the ports in spec.ports, or give the range to a port that %s.NAME: none excludes", pr, key, annotation.TLSSecret)
		return true
	})
}

// byChance reports whether an algorithm may choose a different endpoint for each connection of a client.
func byChance(balance nft.Balance) bool {
	return balance == nft.Random || balance == nft.RoundRobin || balance == nft.LeastConnection
}

// portRanges returns one additional Service port for each port range that names spec.ports[index] and has a frontend to serve. p is the planned form
// of that port. If shared is set, p uses the endpoints of the other IP family; since the kernel cannot translate between families, clients of the
// ranges are refused.
func (r *resolver) portRanges(index int, p *nft.ServicePort, shared bool) (list []nft.ServicePort) {
	ranges := slices.DeleteFunc(slices.Clone(r.ranges), func(pr object.PortRange) bool { return pr.Name != r.Service.Spec.Ports[index].Name })
	if len(ranges) == 0 {
		return nil // mostly
	}
	behind := withoutPorts(p)
	if shared {
		behind = nft.ServicePort{Family: p.Family}
		r.refuse(annotation.Field(object.AnnotationPortRanges), reasonRangeNotServed,
			"clients of ranges are refused over %s: ranges are not relayed, and %s has no %[1]s endpoint: name one", p.Family.Name(), r.portText(index))
	}
	for _, pr := range ranges {
		added := behind
		added.Protocol, _ = nft.ProtocolNamed(pr.Protocol)
		added.ID = p.ID + "/" + strings.ToLower(pr.Protocol) + "-" + (&nft.Frontend{Port: pr.First, Last: pr.Last}).PortText()
		for _, fe := range p.Frontends {
			switch {
			case !fe.Addr.IsValid():
				continue // one node port cannot stand for many
			case fe.HostOwned:
				r.refuse(annotation.Field(object.AnnotationPortRanges), reasonRangeNotServed,
					"%s is an address of this host, whose programs would lose the ports %s: choose another address for the Service, or list its ports in spec.ports", fe.Addr, pr)
				continue
			}
			if fe.Port, fe.Last = pr.First, pr.Last; shared {
				fe.Internal, fe.External = nft.Route{}, nft.Route{}
			}
			added.Frontends = append(added.Frontends, fe)
		}
		if len(added.Frontends) > 0 {
			list = append(list, added)
		}
	}
	return list
}

// withoutPorts returns a Service port with the settings of p for its port ranges. Its endpoints are the addresses of the endpoints of p, with port 0
// and without duplicates.
func withoutPorts(p *nft.ServicePort) nft.ServicePort {
	behind := nft.ServicePort{Family: p.Family, Balance: p.Balance, Refused: p.Refused, Serving: addressesOf(p.Serving), Limits: p.Limits}
	switch {
	case p.Affinity > 0 && byChance(p.Balance):
		behind.Balance = nft.SourceHash
	case p.Balance == nft.LeastConnection: // whose feedback is that of the exact port
		behind.Balance = nft.Random
	}
	for pool := range p.Pools {
		behind.Pools[pool] = addressesOf(p.Pools[pool])
	}
	for pool, weights := range p.Weights {
		if len(weights) > 0 {
			behind.Weights[pool] = make(map[netip.AddrPort]uint16, len(weights))
		}
		for ap, w := range weights {
			at := netip.AddrPortFrom(ap.Addr(), 0)
			behind.Weights[pool][at] = max(behind.Weights[pool][at], w)
		}
	}
	return behind
}

// addressesOf returns the addresses of endpoints, with port 0 and without duplicates.
func addressesOf(endpoints []netip.AddrPort) []netip.AddrPort {
	list, seen := make([]netip.AddrPort, 0, len(endpoints)), make(map[netip.Addr]bool, len(endpoints))
	for _, ap := range endpoints {
		if !seen[ap.Addr()] {
			seen[ap.Addr()] = true
			list = append(list, netip.AddrPortFrom(ap.Addr(), 0))
		}
	}
	return list
}
