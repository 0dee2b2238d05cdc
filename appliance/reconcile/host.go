package reconcile

import (
	"iter"
	"net/netip"
	"reflect"
	"slices"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// affectedBy returns the Services whose plan depends on what differs between the host that is planned for and another one; all are those that
// there are. Mostly these are few: the kernel has found an address to be unique (DAD), or somebody adds a VIP to an
// interface, which is of no interest to a Service that has nothing at this address. What the elements of the box are is
// the compiler's matter.
func (p *planner) affectedBy(host *Host, objs Objects, all []string) []string {
	was, is := p.host.Resolve, host.Resolve
	moved := map[netip.Addr]bool{}
	for _, pair := range [][2]map[netip.Addr]string{{was.Host, is.Host}, {is.Host, was.Host}} {
		for addr, what := range pair[0] {
			if other, has := pair[1][addr]; !has || other != what {
				moved[addr] = true
			}
		}
	}
	for _, pair := range [][2]map[netip.Addr]bool{{was.Broadcast, is.Broadcast}, {is.Broadcast, was.Broadcast}, {was.Local, is.Local}, {is.Local, was.Local}} {
		for addr := range pair[0] {
			if !pair[1][addr] {
				moved[addr] = true
			}
		}
	}
	otherRelays := !reflect.DeepEqual(was.Relays, is.Relays)
	was.Host, was.Broadcast, was.Local, was.Relays = is.Host, is.Broadcast, is.Local, is.Relays
	if !reflect.DeepEqual(was, is) || !slices.Equal(p.host.Loopback, host.Loopback) {
		return all
	}
	var services []string
	if len(moved) > 0 {
		services = usersOf(moved, objs, all)
	}
	if otherRelays {
		services = append(services, p.needs.users([]resolve.Need{resolve.AnyListener})...)
	}
	return services
}

// usersOf returns the Services among some that ask for one of the addresses, or have an endpoint there. What the kernel has of a
// Service follows from its objects, so that these are looked at.
func usersOf(addrs map[netip.Addr]bool, objs Objects, services []string) (users []string) {
	is := func(text string) bool {
		addr, err := netip.ParseAddr(text)
		return err == nil && addrs[addr.Unmap()]
	}
	for _, key := range services {
		svc, endpointSlices, _ := objs.Service(key)
		if svc != nil && slices.ContainsFunc(addressesAsked(svc), is) || slices.ContainsFunc(endpointSlices, func(s *object.EndpointSlice) bool {
			return slices.ContainsFunc(s.Endpoints, func(e object.Endpoint) bool { return slices.ContainsFunc(e.Addresses, is) })
		}) {
			users = append(users, key)
		}
	}
	return users
}

// addressesAsked returns the texts of all addresses that a Service asks for or was given.
func addressesAsked(svc *object.Service) []string {
	texts := slices.Concat([]string{svc.Spec.ClusterIP, svc.Spec.LoadBalancerIP}, svc.Spec.ClusterIPs, svc.Spec.ExternalIPs)
	for _, ingress := range svc.Status.LoadBalancer.Ingress {
		texts = append(texts, ingress.IP)
	}
	return texts
}

// Addresses separates the host's own addresses from VIPs that were assigned to it.
type Addresses interface {
	// Place takes new facts. wasService reports whether an address was a Service's before it came.
	Place(facts *node.Facts, wasService func(netip.Addr) (bool, error)) error
	// Known reports whether all of the host's own addresses before the start are known.
	Known() bool
}

// placeHost separates the host's own addresses from VIPs, when there are new facts: an address of a Service that is in force or stored
// is a VIP.
func (l *Loop) placeHost() error {
	switch {
	case !l.observed.moved || l.observed.facts == nil:
		return nil
	case l.adopted:
		return l.opts.Addresses.Place(l.observed.facts, func(addr netip.Addr) (bool, error) { return l.planner.claims.HasAddress(addr), nil })
	}
	var stored map[netip.Addr]bool
	return l.opts.Addresses.Place(l.observed.facts, func(addr netip.Addr) (bool, error) {
		if stored == nil {
			have, err := l.applier.read()
			if err != nil {
				return false, err
			}
			// Where it is not known what was the host's, a stored Service proves nothing: it may
			// have been refused.
			if stored = vipsBefore(have, l.observed.facts); l.opts.Addresses.Known() {
				addAsked(stored, l.opts.Store)
			}
		}
		return stored[addr], nil
	})
}

// vipsBefore are the addresses of this host that Services have in the kernel.
func vipsBefore(have nft.Ruleset, facts *node.Facts) map[netip.Addr]bool {
	vips := map[netip.Addr]bool{}
	for _, a := range facts.Addresses {
		if addr := a.Prefix.Addr(); have.HasVIP(addr) {
			vips[addr] = true
		}
	}
	return vips
}

// addAsked adds the addresses that stored Services ask for, and those that they ask for before a rollout comes here.
func addAsked(vips map[netip.Addr]bool, objects *store.Store) {
	all := slices.Collect(values(objects.Services()))
	for _, svc := range slices.AppendSeq(all, values(objects.InForce().Services())) {
		texts := slices.Concat(svc.Spec.ClusterIPs, svc.Spec.ExternalIPs)
		for _, ingress := range svc.Status.LoadBalancer.Ingress {
			texts = append(texts, ingress.IP)
		}
		for _, text := range texts {
			if addr, err := netip.ParseAddr(text); err == nil {
				vips[addr] = true
			}
		}
	}
}

// values are the values of a sequence of pairs.
func values[K, V any](of iter.Seq2[K, V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range of {
			if !yield(v) {
				return
			}
		}
	}
}
