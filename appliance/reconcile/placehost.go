package reconcile

import (
	"iter"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
)

// Addresses separates the host's own addresses from VIPs that were assigned to it.
type Addresses interface {
	// Place takes new facts. wasService reports whether an address was a Service's before it came.
	Place(facts *node.Facts, wasService func(netip.Addr) (bool, error)) error
	// Known reports whether all of the host's own addresses before the start are known.
	Known() bool
}

// placeHost separates the host's own addresses from VIPs, when there are new facts. Services in force or stored by
// now were there before them.
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
