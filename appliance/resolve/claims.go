package resolve

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// Claims decides which Service has a frontend that several ask for: the oldest one,
// by creationTimestamp, then by namespace/name. So the answer is the same after a
// restart and in whatever order Services are looked at. The others keep their other
// frontends and are told who has it.
//
// The zero value holds no claims. Not safe for concurrent use.
type Claims struct {
	byFrontend map[claimed][]claimant // in order: the first one has it
	byService  map[string][]claimed
	loops      loops
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
	since   time.Time
}

func (a claimant) compare(b claimant) int {
	return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.service, b.service))
}

// Set replaces the claims of a Service by the frontends of its ports; without ports
// it has none. It returns the other Services that gained or lost a frontend or an
// endpoint by that.
func (c *Claims) Set(service string, since time.Time, ports []nft.ServicePort) (affected []string) {
	if c.byFrontend == nil {
		c.byFrontend, c.byService = map[claimed][]claimant{}, map[string][]claimed{}
	}
	before := map[claimed]string{}
	for _, key := range c.byService[service] {
		before[key] = c.byFrontend[key][0].service
		c.drop(key, service)
	}
	delete(c.byService, service)
	var keys []claimed
	for i := range ports {
		for j := range ports[i].Frontends {
			key := claimOf(&ports[i], &ports[i].Frontends[j])
			if slices.Contains(keys, key) {
				continue
			}
			keys = append(keys, key)
			if _, ok := before[key]; !ok && len(c.byFrontend[key]) > 0 {
				before[key] = c.byFrontend[key][0].service
			}
			c.insert(key, claimant{service, since})
		}
	}
	if len(keys) > 0 {
		c.byService[service] = keys
	}
	for key, owner := range before {
		var now string
		if list := c.byFrontend[key]; len(list) > 0 {
			now = list[0].service
		}
		if now == owner {
			continue
		}
		for _, name := range []string{owner, now} {
			if name != service && name != "" && !slices.Contains(affected, name) {
				affected = append(affected, name)
			}
		}
	}
	affected = append(affected, c.loops.set(service, ports)...)
	slices.Sort(affected)
	return slices.Compact(affected)
}

func claimOf(p *nft.ServicePort, fe *nft.Frontend) claimed {
	return claimed{fe.Addr, p.Family, p.Protocol, fe.Port}
}

// Owner is the Service, "namespace/name", that has a frontend: an address and port, or,
// with the zero Addr, a node port; "" when nobody has it.
func (c *Claims) Owner(f nft.Family, proto nft.Protocol, at netip.AddrPort) string {
	if list := c.byFrontend[claimed{at.Addr(), f, proto, at.Port()}]; len(list) > 0 {
		return list[0].service
	}
	return ""
}

func (c *Claims) insert(key claimed, who claimant) {
	list := c.byFrontend[key]
	at, _ := slices.BinarySearchFunc(list, who, claimant.compare)
	c.byFrontend[key] = slices.Insert(list, at, who)
}

func (c *Claims) drop(key claimed, service string) {
	list := slices.DeleteFunc(c.byFrontend[key], func(w claimant) bool { return w.service == service })
	if len(list) == 0 {
		delete(c.byFrontend, key)
		return
	}
	c.byFrontend[key] = list
}

// Grant is a Service's ports with only those frontends that it has, and only those
// endpoints that are nobody's frontends, and a problem for each that is left out. The
// ports given are not changed.
func (c *Claims) Grant(ref object.Ref, ports []nft.ServicePort) ([]nft.ServicePort, []Problem) {
	var problems []Problem
	granted := ports
	for i := range ports {
		p := &ports[i]
		lost := func(fe nft.Frontend) bool { return c.byFrontend[claimOf(p, &fe)][0].service != ref.Key() }
		if !slices.ContainsFunc(p.Frontends, lost) {
			continue
		}
		if &granted[0] == &ports[0] {
			granted = slices.Clone(ports)
		}
		granted[i].Frontends = nil
		for _, fe := range p.Frontends {
			if lost(fe) {
				owner := c.byFrontend[claimOf(p, &fe)][0].service
				problems = append(problems, conflict(ref, p, &fe, owner))
				continue
			}
			granted[i].Frontends = append(granted[i].Frontends, fe)
		}
	}
	granted, looping := c.loops.cut(ref, granted)
	return granted, append(problems, looping...)
}

func conflict(ref object.Ref, p *nft.ServicePort, fe *nft.Frontend, owner string) Problem {
	what := fmt.Sprintf("node port %d/%s", fe.Port, p.Protocol)
	if fe.Addr.IsValid() {
		what = fmt.Sprintf("%s port %d/%s", fe.Addr, fe.Port, p.Protocol)
	}
	return Problem{ref, "", "Conflict", fmt.Sprintf("%s is not served for this Service: Service %s, which is older, has it", what, owner), false}
}
