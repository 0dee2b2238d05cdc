package appliance

import (
	"net/netip"
	"slices"
	"sync"

	"svcctl.io/svcctl/appliance/dns"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// hostAddresses tells the addresses that are the host's own from VIPs that somebody has brought
// to one of its interfaces, as a failover program does. A host prefix (/32, /128) is how a VIP
// is bound, and always one. Of other lengths, an address is a VIP when it came to the interface
// after it had become a Service's, or lies in a range that the operator has set aside for
// Services. The primary addresses of the host are never VIPs, and what was the host's own once
// stays so: a link that goes down and comes back hands nothing over.
//
// What was the host's before a restart is read off the Node, which lists it. It may be used by
// several at a time.
type hostAddresses struct {
	cfg *Config

	known bool // own is complete as of before the start

	mu   sync.Mutex
	own  map[netip.Addr]bool
	vips map[netip.Addr]bool
}

// newHostAddresses reads what the Node says, if there is one.
func (c *Config) newHostAddresses(objects *store.Store) *hostAddresses {
	h := &hostAddresses{cfg: c, own: map[netip.Addr]bool{}, vips: map[netip.Addr]bool{}}
	all, _, err := objects.List(object.KindNode, "", 0)
	if err != nil {
		return h
	}
	for _, o := range all {
		n, isNode := o.(*object.Node)
		if _, owner := objects.Get(object.RefOf(o)); !isNode || owner.Controller != nodeOwner {
			continue
		}
		addresses := 0
		for _, a := range n.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == object.NodeInternalIP {
				h.own[addr] = true
				addresses++
			}
		}
		h.known = addresses > 0 && addresses < maxNodeAddresses // else some may have been left out
	}
	return h
}

// isVIP reports whether an address of the host is one that was brought to it.
func (h *hostAddresses) isVIP(addr netip.Addr) bool {
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.vips[addr]
}

// place takes new facts. wasService reports whether an address was a Service's before it came.
func (h *hostAddresses) place(facts *node.Facts, wasService func(netip.Addr) (bool, error)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	vips := map[netip.Addr]bool{}
	for _, a := range facts.Addresses {
		addr := a.Prefix.Addr()
		if a.Prefix.IsSingleIP() || addr.IsLoopback() || addr.IsLinkLocalUnicast() {
			continue
		}
		switch {
		case slices.Contains(facts.Primary, addr):
		case h.cfg.isSetAside(addr) && !a.First:
			vips[addr] = true
		case h.own[addr]:
		case h.vips[addr]:
			vips[addr] = true
		default:
			was, err := wasService(addr)
			if err != nil {
				return err
			}
			vips[addr] = was
		}
		if !vips[addr] {
			h.own[addr] = true
		}
	}
	h.vips = vips
	return nil
}

// placeHost tells the host's own addresses from VIPs, when they are new. What is in force or
// stored by now was there before them.
func (l *loop) placeHost() error {
	switch {
	case !l.moved || l.facts == nil:
		return nil
	case l.adopted:
		return l.hosts.place(l.facts, func(addr netip.Addr) (bool, error) { return l.planner.claims.HasAddress(addr), nil })
	}
	var stored map[netip.Addr]bool
	return l.hosts.place(l.facts, func(addr netip.Addr) (bool, error) {
		if stored == nil {
			have, err := l.kernel.read()
			if err != nil {
				return false, err
			}
			// Where it is not known what was the host's, a stored Service proves nothing: it may
			// have been refused.
			if stored = vipsBefore(have, l.facts); l.hosts.known {
				addAsked(stored, l.store)
			}
		}
		return stored[addr], nil
	})
}

// isSetAside reports whether an address lies in a load balancer pool or an external IP range.
func (c *Config) isSetAside(addr netip.Addr) bool {
	return slices.ContainsFunc(c.ExternalIPRanges.Prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }) ||
		slices.ContainsFunc(c.LoadBalancerPools, func(r AddrRange) bool { return r.Overlaps(AddrRange{addr, addr}) })
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

// addAsked adds the addresses that stored Services ask for.
func addAsked(vips map[netip.Addr]bool, objects *store.Store) {
	for _, svc := range objects.Services() {
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

// resolvers are the name servers that this host asks.
func (c *Config) resolvers() map[netip.Addr]bool {
	addrs := map[netip.Addr]bool{}
	for _, upstream := range c.DNSUpstreams {
		addrs[upstream.Addr()] = true
	}
	for _, addr := range dns.Resolvers(resolvConf) {
		addrs[addr] = true
	}
	return addrs
}

// resolvConf is resolv.conf(5).
const resolvConf = "/etc/resolv.conf"
