package appliance

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/object"
)

// externalCheck refuses externalIPs that would not be served to clients that ask for them:
// the answer is where they look first. Those of files, and addresses that the box gets later,
// become problems. It may be used by several at a time.
type externalCheck struct {
	cfg  *Config
	read func() (node.Facts, error)

	mu    sync.Mutex
	at    time.Time // of facts
	facts resolve.Facts
}

// check is store.Config.ExternalIP. When the host cannot be seen, nothing of it is refused.
func (c *externalCheck) check(svc *object.Service, addr netip.Addr) error {
	what, isHost := c.host()[addr]
	ranges := c.cfg.ExternalIPRanges
	switch {
	case isHost && svc.Metadata.Annotations[resolve.AnnotationHostAddress] != "true":
		return fmt.Errorf("it is %s, which would not be reached any more: choose another one, or annotate the Service with %s: \"true\"",
			what, resolve.AnnotationHostAddress)
	case len(ranges) > 0 && !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr) }):
		return fmt.Errorf("it is in no --external-ip-range %v: choose one that is", ranges)
	}
	return nil
}

// host are the addresses that must stay the host's, each with what it is.
func (c *externalCheck) host() map[netip.Addr]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) > portCheckEvery {
		c.facts = resolve.Facts{}
		if facts, err := c.read(); err == nil {
			c.facts = c.cfg.resolveFacts(&facts)
		}
		c.at = time.Now()
	}
	return c.facts.Host
}
