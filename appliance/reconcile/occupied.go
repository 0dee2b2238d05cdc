package reconcile

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/sockets"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// occupiedEvery is how often it is looked who listens on this host: a Service that waits
// for a port has it so long after it was given up.
const occupiedEvery = 5 * time.Second

// occupied knows which programs of the box listen where Services answer. Who was there
// first stays: a Service does not get a port at which a program listens, and a program
// that comes later gets no clients from outside; both are told.
type occupied struct {
	read  func() ([]sockets.Socket, error)
	owner func(sockets.Socket) string
	log   *slog.Logger

	mu   sync.Mutex // Services are resolved several at once
	list []sockets.Socket
	// names are the programs of those that were asked about.
	names map[sockets.Socket]string
	// known says that list is of the plan under way.
	known bool
	// before is what the kernel held before the first plan.
	before nft.Ruleset
	// late are the problems of Services at whose ports programs listen that came later.
	late []resolve.Problem
}

func newOccupied(log *slog.Logger) *occupied {
	return &occupied{read: sockets.Listening, owner: sockets.Owner, log: log, names: map[sockets.Socket]string{}}
}

// sockets are those that listen now; they are read once for a plan.
func (o *occupied) sockets() []sockets.Socket {
	if !o.known {
		list, err := o.read()
		if err != nil {
			o.log.Warn("it is not known which programs listen on this host; Services may take ports away from them", "err", err)
		}
		o.list, o.known = list, true
		maps.DeleteFunc(o.names, func(s sockets.Socket, _ string) bool { return !slices.Contains(list, s) })
	}
	return o.list
}

// at finds a socket that the box's own traffic to an address and port would come to.
func (o *occupied) at(proto nft.Protocol, addrs []netip.Addr, port uint16) (sockets.Socket, bool) {
	for _, s := range o.sockets() {
		if s.Protocol != proto.String() || s.Local.Port() != port {
			continue
		}
		if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return s.Covers(netip.AddrPortFrom(a, port)) }) {
			return s, true
		}
	}
	return sockets.Socket{}, false
}

func (o *occupied) describe(s sockets.Socket) string {
	who, known := o.names[s]
	if !known {
		if who = o.owner(s); who == "" {
			who = "another program"
		}
		o.names[s] = who
	}
	return fmt.Sprintf("%s listens on %s", who, s)
}

// taken is resolve.Facts.Taken.
func (p *planner) taken(f nft.Family, proto nft.Protocol, at netip.AddrPort) string {
	o := p.occupied
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.before.Serves(f, proto, at) || p.compiler.Serves(f, proto, at) {
		return ""
	}
	if s, is := o.at(proto, p.addresses(f, at.Addr()), at.Port()); is {
		return o.describe(s)
	}
	return ""
}

// addresses are those that a frontend answers on.
func (p *planner) addresses(f nft.Family, addr netip.Addr) []netip.Addr {
	if addr.IsValid() {
		return []netip.Addr{addr}
	}
	return slices.DeleteFunc(slices.Clone(p.host.Box.NodePortAddresses), func(a netip.Addr) bool { return a.Is4() != (f == nft.IPv4) })
}

// recheck looks again which programs listen on this host, and reports whether that is news.
func (l *Loop) recheck() bool {
	o := l.planner.occupied
	if o == nil || !l.adopted {
		return false
	}
	before := o.late
	l.planner.again = l.planner.lookAgain()
	return len(l.planner.again) > 0 || !slices.Equal(before, o.late)
}

// protocolsOf are the protocols that sockets are known of.
var protocolsOf = map[string]nft.Protocol{"tcp": nft.TCP, "udp": nft.UDP}

// lookAgain reads the sockets anew. It gives the Services that wait for a port, and notes
// whose ports programs listen at without avail.
func (p *planner) lookAgain() (waiting []string) {
	o := p.occupied
	o.known, o.late = false, nil
	for _, s := range o.sockets() {
		proto := protocolsOf[s.Protocol]
		for _, f := range nft.Families {
			at := netip.AddrPortFrom(netip.Addr{}, s.Local.Port())
			if !p.compiler.Serves(f, proto, at) || !slices.ContainsFunc(p.addresses(f, netip.Addr{}), func(a netip.Addr) bool {
				return s.Covers(netip.AddrPortFrom(a, s.Local.Port()))
			}) {
				continue
			}
			namespace, name, _ := cutKey(p.claims.Owner(f, proto, at))
			o.late = append(o.late, resolve.Problem{
				Object: object.Ref{Kind: object.KindService, Namespace: namespace, Name: name}, Field: "spec.ports",
				Reason: resolve.ReasonPortInUse, Warning: true,
				Message: fmt.Sprintf("%s, which is node port %d/%s of this Service: connections to the host's addresses do not reach it",
					o.describe(s), s.Local.Port(), proto),
			})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.problems)) {
		inUse := func(q resolve.Problem) bool { return q.Reason == resolve.ReasonPortInUse }
		if slices.ContainsFunc(p.problems[key], inUse) {
			waiting = append(waiting, key)
		}
	}
	return waiting
}
