package appliance

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/object"
)

// addressCheck refuses addresses that would not be served to clients that ask for them: the
// answer is where they look first. Those of files, and addresses that the box gets later,
// become problems. It may be used by several at a time.
type addressCheck struct {
	cfg   *config.Config
	read  func() (node.Facts, error)
	hosts *control.HostAddresses // nil: nobody brings VIPs to this host

	mu        sync.Mutex
	at        time.Time // of what follows
	facts     resolve.Facts
	resolvers map[netip.Addr]bool
}

// external is store.Config.ExternalIP. When the host cannot be seen, nothing of it is refused.
func (c *addressCheck) external(svc *object.Service, addr netip.Addr) error {
	facts, resolvers := c.look()
	if what := reserved(facts, svc, addr); what != "" {
		return fmt.Errorf("it is %s, which would not be reached any more: choose another one, or annotate the Service with %s: \"true\"",
			what, resolve.AnnotationHostAddress)
	}
	if _, why := facts.ExternalIPRefusal(addr); why != "" {
		return fmt.Errorf("%s", why)
	}
	if resolvers[addr] && !c.cfg.IsSetAside(addr) {
		return fmt.Errorf("it is a resolver of this host, whose answers would come from the Service: choose another one, or set it aside with --external-ip-range")
	}
	return nil
}

// reserved is store.Config.Reserved.
func (c *addressCheck) reserved(svc *object.Service, addr netip.Addr) string {
	facts, _ := c.look()
	return reserved(facts, svc, addr)
}

func reserved(facts *resolve.Facts, svc *object.Service, addr netip.Addr) string {
	if svc != nil && svc.Metadata.Annotations[resolve.AnnotationHostAddress] == "true" {
		return ""
	}
	if what := facts.Host[addr]; what != "" || svc != nil {
		return what
	}
	if facts.Broadcast[addr] {
		return "a broadcast address of this host"
	}
	return ""
}

// onNetwork is store.Config.Avoid: cluster IPs are not given out of a network of the host in a
// service range. Where the network is larger than the range, there are no others, and only the
// hosts that are known are passed over.
func (c *addressCheck) onNetwork(addr netip.Addr, isEndpoint func() bool) bool {
	facts, _ := c.look()
	for _, p := range facts.Connected {
		if p.Contains(addr) && (isEndpoint() || !slices.ContainsFunc(c.cfg.ServiceClusterIPRanges, func(r netip.Prefix) bool { return p.Bits() <= r.Bits() && p.Overlaps(r) })) {
			return true
		}
	}
	return false
}

// look gives the newest facts, which nobody changes.
func (c *addressCheck) look() (*resolve.Facts, map[netip.Addr]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) > portCheckEvery {
		facts, err := c.read()
		if err != nil {
			facts = node.Facts{}
		}
		c.facts, c.resolvers = c.cfg.ResolveFacts(&facts, c.hosts.IsVIP), c.cfg.Resolvers()
		c.at = time.Now()
	}
	facts := c.facts
	return &facts, c.resolvers
}
