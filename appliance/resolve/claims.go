package resolve

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Claims decides which Service has a frontend that several ask for: the one that asked first, by
// revisions that outlive a restart. The others keep their other frontends and get a problem that
// names the holder. A whole address stays with its first holder, too: an endpoint does not lose its
// other Services to one that names it as its own address later, and a load balancer IP is not
// shared with another Service's external IPs that come later.
//
// The zero value holds no claims. Not safe for concurrent use.
type Claims struct {
	byFrontend map[claimed][]claimant // in order: the first one has it
	byService  map[string][]claimed
	balancers  map[netip.Addr][]claimant // of load balancer IPs, in order
	externals  addressIndex              // the Services with an external IP
	loops      loops
	ranges     rangeClaims
	host       hostPorts
}

// Claim holds the frontends that one Service asks for; without ports it asks for none.
type Claim struct {
	Service string // "namespace/name"
	Ports   []nft.ServicePort
	Unready []netip.Addr // of endpoints that no port has for now
	// HealthPort is the health-check node port, over TCP, at which the appliance listens; 0: none.
	HealthPort uint16
	// Since gives the revision at which the Service first asked for an address and port, or,
	// with the zero Addr, for a node port; nil means that all are equally old.
	Since func(proto nft.Protocol, at netip.AddrPort) uint64
	// RangeSince gives the same for a range of ports, which begins with that of at; nil: all are
	// equally old.
	RangeSince func(proto nft.Protocol, at netip.AddrPort, last uint16) uint64
}

func (c *Claim) since(key claimed) uint64 {
	if c.Since == nil {
		return 0
	}
	return c.Since(key.proto, netip.AddrPortFrom(key.addr, key.port))
}

// claimed is a frontend as the dataplane tells them apart. Addr is the zero Addr for
// a node port.
type claimed struct {
	addr   netip.Addr
	family nft.Family
	proto  nft.Protocol
	port   uint16
}

type claimant struct {
	service string // "namespace/name"
	since   uint64
	host    bool // the frontend is at an address of the host
	relayed bool
}

func (a claimant) compare(b claimant) int {
	return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.service, b.service))
}

// Set replaces what some Services ask for. It returns the other Services that gained or lost a
// frontend or an endpoint by that.
//
// Endpoints and addresses that come in one call: the endpoint was first, unless inForce says of
// a frontend at the address that the kernel has it. It may be nil.
func (c *Claims) Set(inForce func(f nft.Family, proto nft.Protocol, at netip.AddrPort) bool, claims ...Claim) (affected []string) {
	if c.byFrontend == nil {
		c.byFrontend, c.byService = map[claimed][]claimant{}, map[string][]claimed{}
		c.balancers, c.externals = map[netip.Addr][]claimant{}, addressIndex{}
	}
	for i := range claims {
		affected = append(affected, c.set(&claims[i])...)
	}
	affected = append(affected, c.loops.set(inForce, claims)...)
	slices.Sort(affected)
	affected = slices.Compact(affected)
	asked := make(map[string]bool, len(claims))
	for i := range claims {
		asked[claims[i].Service] = true
	}
	return slices.DeleteFunc(affected, func(key string) bool { return asked[key] })
}

// set replaces the frontends of a Service.
func (c *Claims) set(claim *Claim) (affected []string) {
	service := claim.Service
	before, had := map[claimed]string{}, map[claimed]claimant{}
	for _, key := range c.byService[service] {
		before[key] = c.byFrontend[key][0].service
		had[key] = c.drop(key, service)
	}
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
		c.byFrontend[key] = insert(c.byFrontend[key], as)
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
	affected = append(affected, c.ranges.set(claim)...)
	return append(affected, c.setBalancers(claim, keys)...)
}

// each lists the frontends that are no ranges, some perhaps twice.
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

// setBalancers replaces the load balancer IPs and external IPs of a Service. It returns the
// Services with external IPs at load balancer IPs that came or went.
func (c *Claims) setBalancers(claim *Claim, keys []claimed) (affected []string) {
	known := c.loops.known[claim.Service]
	balancersBefore := known.of(nft.LoadBalancerIP)
	now := known
	now.ports = claim.Ports
	c.externals.replace(nil, claim.Service, known.of(nft.ExternalIP), now.of(nft.ExternalIP))
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
	for _, addr := range balancersBefore {
		if _, stays := oldest[addr]; !stays {
			affected = append(affected, c.externals.of(addr)...)
		}
		c.balancers[addr] = slices.DeleteFunc(c.balancers[addr], func(w claimant) bool { return w.service == claim.Service })
		if len(c.balancers[addr]) == 0 {
			delete(c.balancers, addr)
		}
	}
	for addr, since := range oldest {
		c.balancers[addr] = insert(c.balancers[addr], claimant{service: claim.Service, since: since})
		if !slices.Contains(balancersBefore, addr) {
			affected = append(affected, c.externals.of(addr)...)
		}
	}
	return affected
}

func claimOf(p *nft.ServicePort, fe *nft.Frontend) claimed {
	return claimed{fe.Addr, p.Family, p.Protocol, fe.Port}
}

// NameHolders names the Service whose cluster IP an endpoint in a service range is. The problems given are changed.
func (c *Claims) NameHolders(problems []Problem) {
	for i := range problems {
		if holders := c.loops.vips.of(problems[i].Endpoint); problems[i].Endpoint.IsValid() && len(holders) > 0 {
			problems[i].Message = vipAsEndpoint(problems[i].Endpoint, "the cluster IP", holders[0])
		}
	}
}

// Owner returns the Service, "namespace/name", that has a frontend: an address and port, or, with
// the zero Addr, a node port; "" when none has it.
func (c *Claims) Owner(f nft.Family, proto nft.Protocol, at netip.AddrPort) string {
	return c.holder(claimed{at.Addr(), f, proto, at.Port()})
}

// HasAddress reports whether a Service asks for an address that is not the host's.
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
	list := slices.DeleteFunc(c.byFrontend[key], func(w claimant) bool {
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

// Grant returns a Service's ports with only the frontends that it was granted, and only endpoints
// that are no Service's frontends, and a problem for each that is left out. The given ports are not
// changed.
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
				problems = append(problems, Problem{Object: ref, Field: field, Reason: "PortConflict", Message: why})
				continue
			}
			granted[i].Frontends = append(granted[i].Frontends, *fe)
		}
	}
	granted, looping := c.loops.cut(ref, granted)
	granted, relayed := c.cutRelayed(ref, granted)
	return granted, slices.Concat(problems, looping, relayed)
}

// HealthPort returns a problem when the health-check node port of a Service is at an address of the host where another Service
// asked for it first.
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

// refusal returns why a Service does not have a frontend; "" when it has.
func (c *Claims) refusal(service string, p *nft.ServicePort, fe *nft.Frontend) string {
	key := claimOf(p, fe)
	what := fmt.Sprintf("node port %d/%s", fe.Port, p.Protocol)
	if fe.Addr.IsValid() {
		what = fmt.Sprintf("%s port %s/%s", fe.Addr, fe.PortText(), p.Protocol)
		if owner := c.loops.endpointOf(fe.Addr); owner != "" {
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

// balancerBefore is another Service whose load balancer IP the address was before this Service
// named it as an external IP.
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

// claimantOf returns the claimant that a Service has asked for a frontend as.
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
