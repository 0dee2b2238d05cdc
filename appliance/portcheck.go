package appliance

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/sockets"
)

// portCheckEvery is how long is believed what was seen of the host, so that many Services at
// once cost one look.
const portCheckEvery = 200 * time.Millisecond

// portCheck refuses node ports at which programs of the host listen to clients that ask for
// them: the answer is where they look first. What files ask for, and programs that come
// later, are the matter of occupied. It may be used by several at a time.
type portCheck struct {
	read  func() ([]sockets.Socket, error)
	owner func(sockets.Socket) string
	addrs func() ([]netip.Addr, error) // that node ports answer on

	mu      sync.Mutex
	at      time.Time // of what follows
	sockets []sockets.Socket
	on      []netip.Addr
}

func newPortCheck(cfg *config.Config) *portCheck {
	var ports sockets.Ports
	for _, protocol := range []string{"tcp", "udp"} {
		ports.AddRange(protocol, cfg.ServiceNodePortRange.First, cfg.ServiceNodePortRange.Last)
	}
	view := sockets.NewView()
	return &portCheck{read: func() ([]sockets.Socket, error) { return view.Listening(&ports) }, owner: sockets.Owner, addrs: func() ([]netip.Addr, error) {
		facts, err := node.Read()
		return cfg.HostNodePortAddresses(&facts), err
	}}
}

// check is store.Config.NodePort. When the host cannot be seen, nothing is refused.
func (c *portCheck) check(protocol string, port uint16) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) > portCheckEvery {
		var err error
		if c.sockets, err = c.read(); err == nil {
			c.on, err = c.addrs()
		}
		if err != nil {
			c.sockets = nil
		}
		c.at = time.Now()
	}
	for _, s := range c.sockets {
		if s.Protocol != strings.ToLower(protocol) || s.Local.Port() != port {
			continue
		}
		if slices.ContainsFunc(c.on, func(a netip.Addr) bool { return s.Covers(netip.AddrPortFrom(a, port)) }) {
			return fmt.Errorf("%s listens on %s: stop that program, or ask for another port", cmp.Or(c.owner(s), "another program"), s)
		}
	}
	return nil
}
