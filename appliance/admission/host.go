package admission

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/sockets"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// believed is the maximum age at which a snapshot of the host is reused instead of being read again.
const believed = 200 * time.Millisecond

// Check refreshes the snapshot of the host's addresses and listening ports that the store uses to validate writes. It is safe for
// concurrent use.
type Check struct {
	cfg   *config.Config
	store *store.Store
	isVIP func(netip.Addr) bool // reports whether a host address is the VIP of a Service; nil means that none is
	read  func() (node.Facts, error)

	looking sync.Mutex // held while the host is read; guards at and ports
	at      time.Time  // when the addresses were last read
	ports   *portView

	mu   sync.Mutex
	seen host // the snapshot last passed to the store
}

// New returns a Check of this host. isVIP reports whether an address of the host was added to an interface as a VIP; nil means that none
// was.
func New(cfg *config.Config, objects *store.Store, isVIP func(netip.Addr) bool) *Check {
	return &Check{cfg: cfg, store: objects, isVIP: isVIP, read: node.Read, ports: newPortView(cfg.Addresses.NodePortRange)}
}

// Look refreshes the store's snapshot of the host before a client writes svc. If svc is nil, it refreshes only the addresses, for writes
// that concern no particular Service.
func (c *Check) Look(svc *object.Service) {
	if svc != nil && c.asksNothing(svc) {
		return
	}
	c.looking.Lock()
	defer c.looking.Unlock()
	if time.Since(c.at) > believed {
		facts, err := c.read()
		if err != nil {
			facts = node.Facts{}
		}
		c.Take(&facts)
		c.at = time.Now()
	}
	if listeners, changed := c.ports.look(svc, c.nodePortAddresses()); changed {
		c.update(func(h *host) { h.listeners = listeners })
	}
}

// asksNothing reports whether a Service has the same spec and annotations as its stored version. Such a write is accepted without reading
// the host, which is slow with many routes.
func (c *Check) asksNothing(svc *object.Service) bool {
	stored, _ := c.store.Get(object.Ref{Kind: object.KindService, Namespace: svc.Metadata.Namespace, Name: svc.Metadata.Name})
	before, is := stored.(*object.Service)
	return is && reflect.DeepEqual(before.Spec, svc.Spec) && maps.Equal(before.Metadata.Annotations, svc.Metadata.Annotations)
}

// nodePortAddresses returns the host addresses on which node ports answer, from the latest snapshot.
func (c *Check) nodePortAddresses() []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen.nodePorts
}

// Take replaces the addresses in the store's snapshot of the host by those in facts. It reads nothing from the host.
func (c *Check) Take(facts *node.Facts) {
	of := c.cfg.ResolveFacts(facts, c.isVIP)
	resolvers := c.cfg.Resolvers()
	maps.DeleteFunc(resolvers, func(addr netip.Addr, _ bool) bool { return c.cfg.IsSetAside(addr) })
	nodePorts := c.cfg.HostNodePortAddresses(facts)
	c.update(func(h *host) {
		h.facts, h.resolvers, h.ranges, h.nodePorts = of, resolvers, c.cfg.Addresses.ClusterIPRanges, nodePorts
	})
}

// update modifies the snapshot with set and passes it to the store.
func (c *Check) update(set func(*host)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	set(&c.seen)
	c.store.SetHost(c.seen)
}

// host is a snapshot of the host's addresses and listening sockets. It is immutable.
type host struct {
	facts     resolve.Facts
	resolvers map[netip.Addr]bool // addresses of the name servers in use, except those set aside for Services
	ranges    []netip.Prefix      // the cluster IP ranges
	nodePorts []netip.Addr        // host addresses on which node ports answer
	listeners listeners
}

// ExternalIP implements store.Host. It refuses an external IP that the host itself answers on, since clients would reach the host instead
// of the Service.
func (h host) ExternalIP(svc *object.Service, addr netip.Addr) error {
	if what := h.Reserved(svc, addr); what != "" {
		return fmt.Errorf("it is %s, which would not be reached any more: choose another one, or annotate the Service with %s: \"true\"",
			what, resolve.AnnotationHostAddress)
	}
	if _, why := h.facts.ExternalIPRefusal(addr); why != "" {
		return fmt.Errorf("%s", why)
	}
	if h.resolvers[addr] {
		return fmt.Errorf("it is a resolver of this host, whose answers would come from the Service: choose another one, or set it aside with --external-ip-range")
	}
	return nil
}

// Reserved implements store.Host. It returns a description of the host's own use of addr; "" if addr is free.
func (h host) Reserved(svc *object.Service, addr netip.Addr) string {
	if svc != nil && svc.Metadata.Annotations[resolve.AnnotationHostAddress] == "true" {
		return ""
	}
	if what := h.facts.Host[addr]; what != "" || svc != nil {
		return what
	}
	if h.facts.Broadcast[addr] {
		return "a broadcast address of this host"
	}
	return ""
}

// Avoid implements store.Host. It reports whether the allocator must not assign addr as a cluster IP because it lies in a connected network
// of the host. If that network covers a whole range of cluster IPs, only addresses of endpoints (isEndpoint) are avoided.
func (h host) Avoid(addr netip.Addr, isEndpoint func() bool) bool {
	return slices.ContainsFunc(h.facts.Connected, func(p netip.Prefix) bool {
		return p.Contains(addr) && (isEndpoint() || !slices.ContainsFunc(h.ranges, func(r netip.Prefix) bool { return p.Bits() <= r.Bits() && p.Overlaps(r) }))
	})
}

// NodePort implements store.Host. It refuses a node port at which the appliance or a program of the host listens.
func (h host) NodePort(protocol string, port uint16) error {
	if err := h.own(netip.Addr{}, protocol, port); err != nil {
		return err
	}
	return h.listeners.refuse(h.nodePorts, protocol, port)
}

// HostPort implements store.Host. It refuses a port of a host address at which the appliance or a program of the host listens.
func (h host) HostPort(addr netip.Addr, protocol string, port uint16) error {
	if h.facts.Host[addr] == "" {
		return nil
	}
	if err := h.own(addr, protocol, port); err != nil {
		return err
	}
	return h.listeners.refuse([]netip.Addr{addr}, protocol, port)
}

// own returns an error if the appliance itself listens at the port.
func (h host) own(addr netip.Addr, protocol string, port uint16) error {
	if use := h.facts.Own(protocol, netip.AddrPortFrom(addr, port)); use != "" {
		return fmt.Errorf("%s: ask for another port", use)
	}
	return nil
}

// AnswersNodePorts implements store.Host. It reports whether addr is an address of the host on which node ports answer.
func (h host) AnswersNodePorts(addr netip.Addr) bool {
	return h.facts.Host[addr] != "" && slices.Contains(h.nodePorts, addr)
}

// portView caches which programs of the host listen at node ports, and at ports of the host's addresses that Services ask for.
// Check.looking guards it.
type portView struct {
	read   func(*sockets.Ports) ([]sockets.Socket, error)
	owner  func(sockets.Socket) string // returns the program that owns a socket, "" if unknown
	always sockets.Ports               // the node port range, which every read covers
	at     time.Time                   // when seen was read
	looked sockets.Ports               // the ports that the last read covered
	seen   listeners
}

// listeners is a snapshot of the listening sockets of the host. It is immutable.
type listeners struct {
	sockets []sockets.Socket
	owners  map[sockets.Socket]string // programs of the sockets that were looked up so far
}

func newPortView(nodePorts config.PortRange) *portView {
	w := &portView{read: sockets.NewView().Listening, owner: sockets.Owner}
	for _, protocol := range []string{"tcp", "udp"} {
		w.always.AddRange(protocol, nodePorts.First, nodePorts.Last)
	}
	return w
}

// askedPort is a port that a Service requests on some addresses of the host.
type askedPort struct {
	protocol string
	port     uint16
	on       []netip.Addr
}

// asked returns the ports that a Service requests on the host: its node ports on the addresses in on, and its ports on the host's own
// addresses if the annotation allows them as externalIPs.
func asked(svc *object.Service, on []netip.Addr) (ports []askedPort) {
	if svc == nil {
		return nil
	}
	var own []netip.Addr
	if svc.Metadata.Annotations[resolve.AnnotationHostAddress] == "true" {
		own = object.Addrs(svc.Spec.ExternalIPs)
	}
	for _, p := range svc.Spec.Ports {
		protocol := strings.ToLower(cmp.Or(p.Protocol, object.ProtocolTCP))
		if protocol == "sctp" {
			continue // its sockets are not known
		}
		if p.NodePort != 0 {
			ports = append(ports, askedPort{protocol, uint16(p.NodePort), on})
		}
		if len(own) > 0 {
			ports = append(ports, askedPort{protocol, uint16(p.Port), own})
		}
	}
	return ports
}

// look returns the listening sockets to check svc against, and whether they were read again or an owner was looked up. on holds the
// addresses on which node ports answer. If svc asks for no port of the host, nothing is read.
func (w *portView) look(svc *object.Service, on []netip.Addr) (seen listeners, changed bool) {
	ports := asked(svc, on)
	unknown := func(p askedPort) bool { return !w.looked.Has(p.protocol, p.port) }
	if len(ports) == 0 {
		return w.seen, false
	}
	if time.Since(w.at) > believed || slices.ContainsFunc(ports, unknown) {
		w.looked = w.always
		for _, p := range ports {
			w.looked.Add(p.protocol, p.port)
		}
		w.seen, w.at, changed = w.now(), time.Now(), true
	}
	for _, p := range ports {
		s, found := w.seen.at(p.on, p.protocol, p.port)
		if _, known := w.seen.owners[s]; !found || known {
			continue
		}
		w.seen.owners = maps.Clone(w.seen.owners)
		w.seen.owners[s], changed = w.owner(s), true
	}
	return w.seen, changed
}

// now reads the listening sockets from the host. It returns no sockets if they cannot be read.
func (w *portView) now() listeners {
	seen := listeners{owners: map[sockets.Socket]string{}}
	all, err := w.read(&w.looked)
	if err != nil {
		return seen
	}
	seen.sockets = all
	for _, s := range all {
		if owner, known := w.seen.owners[s]; known {
			seen.owners[s] = owner
		}
	}
	return seen
}

// at returns the socket of a program that listens at a port on one of the addresses in on.
func (l listeners) at(on []netip.Addr, protocol string, port uint16) (sockets.Socket, bool) {
	for _, s := range l.sockets {
		if s.Protocol != strings.ToLower(protocol) || s.Local.Port() != port {
			continue
		}
		if slices.ContainsFunc(on, func(a netip.Addr) bool { return s.Covers(netip.AddrPortFrom(a, port)) }) {
			return s, true
		}
	}
	return sockets.Socket{}, false
}

// refuse returns an error that names the program listening at a port on one of the addresses in on; nil when none does.
func (l listeners) refuse(on []netip.Addr, protocol string, port uint16) error {
	if s, found := l.at(on, protocol, port); found {
		return fmt.Errorf("%s listens on %s: stop that program, or ask for another port", cmp.Or(l.owners[s], "another program"), s)
	}
	return nil
}
