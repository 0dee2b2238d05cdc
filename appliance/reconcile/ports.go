package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/sockets"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// occupied finds sockets of this host's programs that listen at addresses and ports of Services. Whichever came first keeps the port: a Service does
// not get a port on which a program already listens, and a program that starts to listen later gets no clients from outside. Both are reported as
// problems. For a new port of a Service the sockets are read at once; portWatch does everything else, concurrently with the loop.
type occupied struct {
	look  func(*sockets.Ports) ([]sockets.Socket, error)
	owner func(sockets.Socket) string
	log   *slog.Logger
	// The sockets that listen on any of nodePorts are read together, so that they are read once even if many Services are planned.
	nodePorts store.PortRange
	watch     *portWatch

	mu sync.Mutex // guards looked, list and names, since Services are resolved concurrently
	// looked holds the ports that were looked up during the present plan, list the sockets that listen on them.
	looked sockets.Ports
	list   []sockets.Socket
	names  map[sockets.Socket]string // cache of sockets.Owner: the program that owns a socket

	served  map[hostPort]int // number of frontends that use each port of the host
	ports   sockets.Ports    // the keys of served
	dirty   bool             // ports changed since they were last passed to portWatch
	present []listener       // the sockets that portWatch found last
}

// maxNames bounds the number of cached program names. They are cached because finding one requires reading all processes.
const maxNames = 256

// hostPort is a protocol and port of the host.
type hostPort struct {
	protocol string // "tcp" or "udp", as in sockets.Socket
	port     uint16
}

// newOccupied returns an occupied that finds sockets with look. If look is nil, it finds the sockets of this host.
func newOccupied(nodePorts store.PortRange, look func(*sockets.Ports) ([]sockets.Socket, error), log *slog.Logger) *occupied {
	if look == nil {
		look = sockets.NewView().Listening
	}
	o := &occupied{look: look, owner: sockets.Owner, log: log, nodePorts: nodePorts, watch: newPortWatch(look, sockets.Owner, log)}
	o.reset()
	return o
}

// reset removes all Services and cached results.
func (o *occupied) reset() {
	o.served = map[hostPort]int{}
	o.ports, o.present, o.dirty = sockets.Ports{}, nil, true
	o.names = map[sockets.Socket]string{}
}

// begin drops the sockets that were looked up during the last plan. It is called before Services are planned.
func (o *occupied) begin() {
	if o != nil && !o.looked.Empty() {
		o.looked, o.list = sockets.Ports{}, nil
	}
}

// record updates o.served for one Service. had holds the previous ports of the Service, has the new ones.
func (o *occupied) record(had, has []nft.ServicePort) {
	if o == nil {
		return
	}
	count := func(ports []nft.ServicePort, by int) {
		for i := range ports {
			for j := range ports[i].Frontends {
				if fe := &ports[i].Frontends[j]; !fe.Addr.IsValid() || fe.HostOwned && !fe.IsRange() {
					o.count(hostPort{ports[i].Protocol.String(), fe.Port}, by)
				}
			}
		}
	}
	count(has, 1)
	count(had, -1)
}

func (o *occupied) count(p hostPort, by int) {
	before := o.served[p]
	now := before + by
	switch {
	case now == 0:
		delete(o.served, p)
		o.ports.Remove(p.protocol, p.port)
	default:
		o.served[p] = now
		o.ports.Add(p.protocol, p.port)
	}
	o.dirty = o.dirty || now == 0 || before == 0
}

// notify passes the ports to watch to portWatch, if they changed: the ports of the host that Services have, and those they wait for.
func (o *occupied) notify(n *needs) {
	if o == nil || !o.dirty && !n.portsChanged {
		return
	}
	o.dirty, n.portsChanged = false, false
	if o.watch == nil {
		return
	}
	var waited []hostPort
	for need := range n.by[resolve.NeedHostPort] {
		waited = append(waited, hostPort{need.Protocol.String(), need.At.Port()})
	}
	o.watch.want(o.ports, waited)
}

// at returns a socket that receives this host's own packets to one of addrs and the port. It returns false if there is none.
func (o *occupied) at(protocol string, addrs []netip.Addr, port uint16) (sockets.Socket, bool) {
	if !o.looked.Has(protocol, port) {
		var ports sockets.Ports
		ports.Add(protocol, port)
		if o.nodePorts.First <= port && port <= o.nodePorts.Last {
			ports.AddRange(protocol, o.nodePorts.First, o.nodePorts.Last)
			o.looked.AddRange(protocol, o.nodePorts.First, o.nodePorts.Last)
		}
		o.looked.Add(protocol, port)
		list, err := o.look(&ports)
		if err != nil {
			o.log.Warn("it is not known which programs listen on this host; Services may take ports away from them", "err", err)
		}
		o.list = append(o.list, list...)
	}
	for _, s := range o.list {
		if (listener{Socket: s}).covers(protocol, addrs, port) {
			return s, true
		}
	}
	return sockets.Socket{}, false
}

// taken returns the program that listens on a frontend's address and port and would lose its clients, in the form "nginx (pid 812) listens on tcp
// 0.0.0.0:30080". It returns "" if there is none, or if the kernel served the frontend before the program started. The result is the state of
// resolve.NeedHostPort.
func (p *planner) taken(f nft.Family, proto nft.Protocol, at netip.AddrPort) string {
	o := p.occupied
	if _, known := protocolsOf[proto.String()]; !known {
		return ""
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.found != nil && p.found.Serves(f, proto, at) || p.compiler.Serves(f, proto, at) {
		return ""
	}
	addrs := p.addresses(f, at.Addr())
	s, is := o.at(proto.String(), addrs, at.Port())
	if !is { // newer than what portWatch has found
		o.present = slices.DeleteFunc(slices.Clone(o.present), func(l listener) bool { return l.covers(proto.String(), addrs, at.Port()) })
		return ""
	}
	who, known := o.names[s]
	if !known {
		if len(o.names) > maxNames {
			clear(o.names)
		}
		who = o.owner(s)
		o.names[s] = who
	}
	return listener{s, who}.String()
}

// addresses returns the addresses of a frontend: addr or, for a node port (zero addr), the addresses of the family that serve node ports.
func (p *planner) addresses(f nft.Family, addr netip.Addr) []netip.Addr {
	if addr.IsValid() {
		return []netip.Addr{addr}
	}
	return slices.DeleteFunc(slices.Clone(p.host.Box.NodePortAddresses), func(a netip.Addr) bool { return nft.FamilyOf(a) != f })
}

// takeListeners records the programs that portWatch has found, and makes the loop plan the Services that wait for a port again.
func (l *Loop) takeListeners(list []listener) {
	l.planner.occupied.present = list
	l.Changed(slices.Collect(maps.Keys(l.planner.needs.by[resolve.NeedHostPort]))...)
}

// protocolsOf maps the protocols of package sockets to those of package nft.
var protocolsOf = map[string]nft.Protocol{"tcp": nft.TCP, "udp": nft.UDP}

// late returns a problem for each program that started to listen on a port after a Service got it. The port is a node port, or a port of one of the
// host's addresses.
func (p *planner) late() []resolve.Problem {
	if p.occupied == nil {
		return nil
	}
	var problems []resolve.Problem
	for _, s := range p.occupied.present {
		proto, port := protocolsOf[s.Protocol], s.Local.Port()
		report := func(f nft.Family, at netip.AddrPort, what string) {
			if p.compiler.Serves(f, proto, at) && s.covers(s.Protocol, p.addresses(f, at.Addr()), port) {
				problems = append(problems, resolve.Problem{
					Object: object.ServiceRef(p.claims.Owner(f, proto, at)), Field: "spec.ports", Reason: resolve.ReasonPortInUse, Warning: true,
					Message: fmt.Sprintf("%s, which is %s of this Service: connections to the host's addresses do not reach it", s, what),
				})
			}
		}
		for _, f := range nft.Families {
			report(f, netip.AddrPortFrom(netip.Addr{}, port), fmt.Sprintf("node port %d/%s", port, proto))
		}
		for _, addr := range slices.SortedFunc(maps.Keys(p.host.Resolve.Host), netip.Addr.Compare) {
			report(nft.FamilyOf(addr), netip.AddrPortFrom(addr, port), fmt.Sprintf("%s port %d/%s", addr, port, proto))
		}
	}
	return problems
}

const (
	// portWatchEvery is the interval at which sockets are read to find programs that have started to listen. The kernel does not report when a socket
	// is bound.
	portWatchEvery = 10 * time.Second
	// portWatchPause is the minimum pause between two reads of the sockets, as a program may close thousands of connections a second.
	portWatchPause = 200 * time.Millisecond
)

// listener is a listening socket and the program that owns it.
type listener struct {
	sockets.Socket
	owner string // such as "nginx (pid 812)"; "" if the owner is not visible
}

// String returns a text such as "nginx (pid 812) listens on tcp 0.0.0.0:80".
func (l listener) String() string {
	return fmt.Sprintf("%s listens on %s", cmp.Or(l.owner, "another program"), l.Socket)
}

// covers reports whether the socket receives packets of the protocol to the port at one of addrs.
func (l listener) covers(protocol string, addrs []netip.Addr, port uint16) bool {
	return l.Protocol == protocol && slices.ContainsFunc(addrs, func(a netip.Addr) bool { return l.Covers(netip.AddrPortFrom(a, port)) })
}

// portWatch finds the programs that listen on ports that Services have or wait for. It runs in its own goroutine, since reading the sockets may take
// long. It reads them every portWatchEvery while Services have or wait for such ports, and when the kernel reports that a socket was closed at a port
// that a Service waits for.
type portWatch struct {
	look  func(*sockets.Ports) ([]sockets.Socket, error)
	owner func(sockets.Socket) string
	// closed returns a channel that signals when a socket at one of the ports is closed, and a function that ends this.
	closed func(*sockets.Ports) (told <-chan struct{}, stop func() error, err error)
	log    *slog.Logger
	found  chan []listener // the listening programs are sent to it when they change, or when a port in waited is free

	mu      sync.Mutex
	ports   sockets.Ports // the ports that Services have
	waited  []hostPort    // the ports that Services wait for
	changed chan struct{} // signals a change of ports or waited; capacity 1

	before  []listener
	failure task.LastError // of reading the sockets
	names   map[sockets.Socket]string
}

func newPortWatch(look func(*sockets.Ports) ([]sockets.Socket, error), owner func(sockets.Socket) string, log *slog.Logger) *portWatch {
	return &portWatch{
		look: look, owner: owner, log: log, found: make(chan []listener), changed: make(chan struct{}, 1),
		closed: func(ports *sockets.Ports) (<-chan struct{}, func() error, error) {
			c, err := sockets.WatchClosed(ports)
			if err != nil {
				return nil, nil, err
			}
			return c.C, c.Close, nil
		},
	}
}

// want sets the ports to watch. ports has the ports of Services, and waited has the ports that Services wait for. If waited changes, the sockets are
// read at once; otherwise at the next regular time.
func (w *portWatch) want(ports sockets.Ports, waited []hostPort) {
	slices.SortFunc(waited, func(a, b hostPort) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.port, b.port))
	})
	waited = slices.Compact(waited)
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.ports.Empty() != ports.Empty() || !slices.Equal(w.waited, waited)
	w.ports, w.waited = ports, waited
	if now {
		task.Wake(w.changed)
	}
}

func (w *portWatch) wanted() (sockets.Ports, []hostPort) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ports := w.ports
	for _, p := range w.waited {
		ports.Add(p.protocol, p.port)
	}
	return ports, w.waited
}

// run reads the sockets and sends changes to the channel found, until ctx is done.
func (w *portWatch) run(ctx context.Context) error {
	poll := time.NewTicker(portWatchEvery)
	poll.Stop()
	polls := false
	var watched []hostPort
	var told <-chan struct{}
	stop := func() error { return nil }
	defer func() { _ = stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.changed:
		case <-told:
		case <-poll.C:
		}
		ports, waited := w.wanted()
		if !slices.Equal(waited, watched) { // before the look: the kernel reports sockets that are closed after it
			_ = stop()
			told, stop, watched = nil, func() error { return nil }, waited
			if len(waited) > 0 {
				told, stop = w.watchClosed(waited)
			}
		}
		if wants := !ports.Empty(); wants != polls {
			if polls = wants; polls {
				poll.Reset(portWatchEvery)
			} else {
				poll.Stop()
			}
		}
		if list, news := w.seen(&ports, waited); news {
			if !task.Send(ctx, w.found, list) {
				return nil
			}
		}
		if !task.Sleep(ctx, portWatchPause) {
			return nil
		}
	}
}

// watchClosed returns a channel that signals when a socket is closed at a port that a Service waits for, and a function that ends this. The channel
// is nil if the kernel cannot report closed sockets; then they are noticed only by the regular reads.
func (w *portWatch) watchClosed(waited []hostPort) (told <-chan struct{}, stop func() error) {
	var ports sockets.Ports
	for _, p := range waited {
		ports.Add(p.protocol, p.port)
	}
	told, stop, err := w.closed(&ports)
	if err != nil {
		w.log.Debug("the kernel does not report when a port is closed", "err", err, "looksEvery", portWatchEvery)
		return nil, func() error { return nil }
	}
	return told, stop
}

// seen reads the sockets and returns the programs that listen on the ports. news is true if the programs changed, or if a port that a Service waits
// for is free.
func (w *portWatch) seen(ports *sockets.Ports, waited []hostPort) (list []listener, news bool) {
	var found []sockets.Socket
	if !ports.Empty() {
		var err error
		found, err = w.look(ports)
		w.failure.Log(w.log, err, "it is not known which programs listen on this host", "the programs that listen on this host are known again")
		if err != nil {
			return nil, false
		}
	}
	names := make(map[sockets.Socket]string, len(found))
	for _, s := range found {
		name, known := w.names[s]
		if !known {
			name = w.owner(s)
		}
		names[s] = name
		list = append(list, listener{s, name})
	}
	w.names = names
	slices.SortFunc(list, func(a, b listener) int { return a.Compare(b.Socket) })
	free := slices.ContainsFunc(waited, func(p hostPort) bool {
		return !slices.ContainsFunc(found, func(s sockets.Socket) bool { return s.Protocol == p.protocol && s.Local.Port() == p.port })
	})
	news = free || !slices.Equal(list, w.before)
	w.before = list
	return list, news
}

// affectedBy returns the Services, among all, whose plan depends on a difference between the present and the given host. Usually they are few: when
// duplicate address detection of an address has ended, or a VIP was added to an interface, only the Services at this address are affected. The
// compiler updates the elements that depend only on the box.
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
	for _, key := range all {
		if len(moved) > 0 && objs.Mentions(key, moved) {
			services = append(services, key)
		}
	}
	if otherRelays {
		services = append(services, p.needs.users([]resolve.Need{resolve.AnyListener})...)
	}
	return services
}

// Addresses distinguishes the host's own addresses from VIPs that were assigned to its interfaces.
type Addresses interface {
	// Place passes new facts of the host. wasService reports whether an address belonged to a Service before it was assigned to an interface.
	Place(facts *node.Facts, wasService func(netip.Addr) (bool, error)) error
	// Known reports whether all of the host's own addresses from before the start of this process have been determined.
	Known() bool
}

// placeHost passes new facts of the host to Addresses. An address of the host counts as a VIP if a planned Service has it or, before the first plan,
// a Service in the kernel or the store.
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

// vipsBefore returns the addresses of this host that are VIPs in have, the ruleset that was read from the kernel.
func vipsBefore(have nft.Ruleset, facts *node.Facts) map[netip.Addr]bool {
	vips := map[netip.Addr]bool{}
	for _, a := range facts.Addresses {
		if addr := a.Prefix.Addr(); have.HasVIP(addr) {
			vips[addr] = true
		}
	}
	return vips
}

// addAsked adds the addresses of stored Services to vips. It also adds those of Services in force, which may differ while a rollout has not reached
// this box.
func addAsked(vips map[netip.Addr]bool, objects *store.Store) {
	add := func(svc *object.Service, _ []*object.EndpointSlice, _ *object.Endpoints) {
		if svc == nil { // removed meanwhile
			return
		}
		for _, addr := range svc.VIPs() {
			vips[addr] = true
		}
	}
	for _, key := range objects.Services() {
		add(objects.Service(key))
	}
	for _, key := range objects.InForce().Services() {
		add(objects.InForce().Service(key))
	}
}
