package reconcile

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/sockets"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// occupied has the sockets of the box's programs at addresses of Services. The older one keeps the port: a
// Service does not get a port at which a program listens, and a program that comes later gets no clients
// from outside; both are problems. A request for a port is answered from a look at that moment; everything
// else is done by portWatch, beside the loop. It has more than 15 fields: three views meet here, of the
// listeners, of the served frontends, and of the Services that wait.
type occupied struct {
	look  func(*sockets.Ports) ([]sockets.Socket, error)
	owner func(sockets.Socket) string
	log   *slog.Logger
	// nodePorts are looked at together, so that many Services at once cost one look.
	nodePorts PortRange
	watch     *portWatch

	mu sync.Mutex // Services are resolved several at once
	// looked are the ports that the plan under way has looked at, and list who listens there.
	looked sockets.Ports
	list   []sockets.Socket
	names  map[sockets.Socket]string // the programs of those that were in a Service's way
	// before is the ruleset of the kernel before the first plan.
	before nft.Ruleset

	served  map[hostPort]int    // of the host, with how many frontends have them
	waiting map[string]struct{} // Services that wait for a port that a program has
	waited  map[hostPort]struct{}
	ports   sockets.Ports // those of served
	dirty   bool          // portWatch does not know of served and waited yet
	present []listener    // what portWatch has found
}

// maxNames bounds the programs that are remembered: finding one takes a look at all processes.
const maxNames = 256

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

// hostPort is a port of the host.
type hostPort struct {
	protocol string // as in sockets.Socket
	port     uint16
}

// newOccupied is one that looks at this host.
func newOccupied(nodePorts PortRange, log *slog.Logger) *occupied {
	view := sockets.NewView()
	o := &occupied{look: view.Listening, owner: sockets.Owner, log: log, nodePorts: nodePorts, watch: newPortWatch(view.Listening, sockets.Owner, log)}
	o.reset()
	return o
}

// reset forgets all Services.
func (o *occupied) reset() {
	o.served, o.waiting, o.waited = map[hostPort]int{}, map[string]struct{}{}, map[hostPort]struct{}{}
	o.ports, o.present, o.dirty = sockets.Ports{}, nil, true
	o.names = map[sockets.Socket]string{}
}

// begin is called before these Services, which are sorted, are planned.
func (o *occupied) begin(changed []string) {
	if o == nil {
		return
	}
	if !o.looked.Empty() {
		o.looked, o.list = sockets.Ports{}, nil
	}
	for key := range o.waiting {
		if _, planned := slices.BinarySearch(changed, key); !planned {
			return
		}
	}
	if len(o.waited) > 0 { // those that still wait for a port will say so
		clear(o.waited)
		o.dirty = true
	}
}

// record notes what a Service had of the host's ports, has now, and does not get.
func (o *occupied) record(key string, had, has []nft.ServicePort, problems []resolve.Problem) {
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
	if slices.ContainsFunc(problems, func(p resolve.Problem) bool { return p.Reason == resolve.ReasonPortInUse }) {
		o.waiting[key] = struct{}{}
	} else {
		delete(o.waiting, key)
	}
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

// tell lets portWatch know which ports matter, if they are others now.
func (o *occupied) tell() {
	if o == nil || !o.dirty {
		return
	}
	o.dirty = false
	if len(o.waiting) == 0 {
		clear(o.waited)
	}
	if o.watch != nil {
		o.watch.want(o.ports, slices.Collect(maps.Keys(o.waited)))
	}
}

// at finds a socket that the box's own traffic to an address and port would come to.
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

// taken is resolve.Facts.Taken.
func (p *planner) taken(f nft.Family, proto nft.Protocol, at netip.AddrPort) string {
	o := p.occupied
	if _, known := protocolsOf[proto.String()]; !known {
		return ""
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.before.Serves(f, proto, at) || p.compiler.Serves(f, proto, at) {
		return ""
	}
	addrs := p.addresses(f, at.Addr())
	s, is := o.at(proto.String(), addrs, at.Port())
	if !is { // newer than what portWatch has found
		o.present = slices.DeleteFunc(slices.Clone(o.present), func(l listener) bool { return l.covers(proto.String(), addrs, at.Port()) })
		return ""
	}
	port := hostPort{proto.String(), at.Port()}
	if _, known := o.waited[port]; !known {
		o.waited[port] = struct{}{}
		o.dirty = true
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

// addresses returns the addresses that a frontend answers on.
func (p *planner) addresses(f nft.Family, addr netip.Addr) []netip.Addr {
	if addr.IsValid() {
		return []netip.Addr{addr}
	}
	return slices.DeleteFunc(slices.Clone(p.host.Box.NodePortAddresses), func(a netip.Addr) bool { return nft.FamilyOf(a) != f })
}

// heard takes who listens at the ports that Services have or wait for. Those that wait are
// planned again.
func (l *Loop) heard(list []listener) {
	o := l.planner.occupied
	o.present = list
	l.planner.again = slices.Sorted(maps.Keys(o.waiting))
}

// protocolsOf are the protocols that sockets are known of.
var protocolsOf = map[string]nft.Protocol{"tcp": nft.TCP, "udp": nft.UDP}

// late are the problems of Services at whose node ports, or ports of the host's addresses, programs listen that came later.
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
