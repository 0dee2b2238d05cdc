package control

import (
	"net/netip"
	"slices"
	"sync"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// HostAddresses distinguishes the host's own addresses from VIPs that another program has added to
// one of its interfaces, as a failover program does. A host prefix (/32, /128) is how a VIP is
// bound, and always one. Of other lengths, an address is a VIP when it came to the interface after
// it had become a Service's, or lies in a range that the operator has set aside for Services. The
// primary addresses of the host are never VIPs, and what was the host's own once stays so: a link
// that goes down and comes back hands nothing over.
//
// What was the host's before a restart is read off the Node, which lists it. It may be used by
// several at a time.
type HostAddresses struct {
	// setAside reports whether an address lies in a load balancer pool or an external IP range.
	setAside func(netip.Addr) bool
	known    bool // own is complete as of before the start

	mu   sync.Mutex
	own  map[netip.Addr]bool
	vips map[netip.Addr]bool
}

// NewHostAddresses reads the addresses of the Node that belongs to owner, if there is one. setAside
// reports whether an address lies in a load balancer pool or an external IP range.
func NewHostAddresses(setAside func(netip.Addr) bool, objects *store.Store, owner string) *HostAddresses {
	h := &HostAddresses{setAside: setAside, own: map[netip.Addr]bool{}, vips: map[netip.Addr]bool{}}
	all, _, err := objects.List(object.KindNode, "", 0)
	if err != nil {
		return h
	}
	for _, o := range all {
		n, isNode := o.(*object.Node)
		if _, from := objects.Get(object.RefOf(o)); !isNode || from.Controller != owner {
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

// IsVIP reports whether an address of the host is one that was brought to it.
func (h *HostAddresses) IsVIP(addr netip.Addr) bool {
	if h == nil { // this host has no VIPs
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.vips[addr]
}

// Place takes new facts. wasService reports whether an address was a Service's before it came.
func (h *HostAddresses) Place(facts *node.Facts, wasService func(netip.Addr) (bool, error)) error {
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
		case h.setAside(addr) && !a.First:
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

// Known reports whether the Node listed all addresses of the host before the start.
func (h *HostAddresses) Known() bool { return h.known }
