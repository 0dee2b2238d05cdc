package reconcile

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/test/judge"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

const (
	// kernelWorlds are loaded one after the other, each with packetsPerKernelWorld.
	kernelWorlds          = 510
	packetsPerKernelWorld = 24
	// outgoing are the packets of hosts to others in each of them.
	outgoing = 12
	// silence is how long nothing may come back to a packet that is to be dropped: other
	// answers take a millisecond.
	silence = 40 * time.Millisecond
	// patience is how long to wait for what must come; at the second try a minute.
	patience = 2 * time.Second
)

// TestOraclePackets loads random worlds into a kernel, each by the transition from the
// one before, sends packets between network namespaces, and compares who answered, whom
// that one saw, or how the packet was refused, to what package oracle says.
func TestOraclePackets(t *testing.T) {
	t.Parallel()
	l := newOracleLab(t)
	met, left := map[oracle.Kind]int{}, map[string]int{}
	for seed := *oracleSeed; seed < *oracleSeed+kernelWorlds/3; seed++ {
		r := rand.New(rand.NewPCG(seed, 3))
		first := oracle.Generate(r)
		first.Egress(r)
		l.settleFrom = int(seed % 2)
		for _, world := range []*oracle.World{first, first.Next(r), oracle.Generate(r)} {
			if seed%4 > 0 && world != first {
				world.Egress(r)
			}
			before := l.loaded
			world.Hold()
			if err := l.load(world); err != nil {
				t.Fatalf("seed %d: %v\n%s\nafter\n%s", seed, err, world, before)
			}
			if err := l.verify(); err != nil {
				t.Fatalf("seed %d: %v\n%s\nafter\n%s", seed, err, world, before)
			}
			packets := world.Packets(r, packetsPerKernelWorld)
			for range outgoing {
				packets = append(packets, world.OutgoingPacket(r))
			}
			packets = slices.DeleteFunc(packets, func(p oracle.Packet) bool { return !l.sendable(world, p) })
			for _, p := range packets {
				of := world.Decide(p)[0].Kind
				if met[of]++; of == oracle.Untouched {
					left[leaves(world, p)]++
				}
			}
			if wrong := l.sendAll(world, packets); wrong != nil {
				l.report(seed, world, wrong[0])
				return
			}
		}
	}
	for _, kind := range []oracle.Kind{oracle.Delivered, oracle.Refused, oracle.Unreachable, oracle.Dropped, oracle.Answered, oracle.Untouched} {
		if met[kind] < kernelWorlds/20 {
			t.Errorf("packets that are %s: only %d", kind, met[kind])
		}
	}
	if left["own"] < kernelWorlds || left["of a Service"] < kernelWorlds/5 || left["own, for its destination"] < kernelWorlds/12 {
		t.Errorf("packets left with these addresses: %v: the worlds are too tame", left)
	}
	t.Logf("packets by what became of them: %v, and by the address that they left with: %v; %d answered only when asked again", met, left, l.slow)
}

// oracleLab is the standard network with the box's planner and applier on GW1.
type oracleLab struct {
	*netlab.Standard
	t     *testing.T
	hosts map[netip.Addr]*netlab.Host // clients by address
	slow  int                         // packets whose first try was wrong and whose second was not
	raw   map[*netlab.Host]*sync.Mutex
	pings atomic.Uint32 // whose identifiers are given

	planner *planner
	applier *applier
	loaded  *oracle.World
	loads   int
	// settleFrom is that of the box.
	settleFrom int
	// contents counts the contents of source sets.
	contents int
	bound    []netip.Prefix
}

const (
	// boundVIPs is the interface of a world that has the VIPs which the box has for
	// addresses, loopback the one that has them in the lab.
	boundVIPs = "vip0"
	loopback  = "lo"
)

func newOracleLab(t *testing.T) *oracleLab {
	l := &oracleLab{Standard: netlab.NewStandard(t), t: t, planner: newPlanner(), hosts: map[netip.Addr]*netlab.Host{}}
	conn, err := kernel.Open(kernel.Options{NetNS: l.GW1.Namespace()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.HoldSentinel(); err != nil {
		t.Fatal(err)
	}
	l.applier = &applier{kernel: conn, log: slog.New(slog.DiscardHandler)}
	l.RTR.Route("10.0.0.0/8", netlab.BoxAddr4)
	l.RTR.Route("fd00:10::/32", netlab.BoxAddr6)
	// Whatever a packet may reach by mistake answers, and says who it is.
	ports := []uint16{53, 80, 443, 5353, 8080, 9999, 30001, 30002, 30003, 30004}
	for _, network := range []string{"tcp", "udp", "sctp"} {
		for _, h := range []*netlab.Host{l.GW1, l.RTR, l.IN} {
			h.Serve(network, ports...)
		}
		l.EXT.Serve(network, 5353)
		l.BLK.Serve(network, 5353)
	}
	l.raw = map[*netlab.Host]*sync.Mutex{l.GW1: {}}
	for h, addresses := range map[*netlab.Host][]string{
		l.IN: {"10.0.0.2", "fd00:10::2"}, l.EXT: {"203.0.113.2", "2001:db8:203::2"}, l.BLK: {"203.0.113.130", "2001:db8:203:0:8000::2"},
		l.RTR: {"192.0.2.254", "192.0.3.254", "2001:db8::fe", "2001:db8:1::fe"},
		l.L1:  {"10.180.0.1", "fd00:10:180::1"}, l.L2: {"10.180.0.2", "fd00:10:180::2"}, l.Near: {"10.180.0.77", "fd00:10:180::77"}, l.R1: {"10.181.1.1", "fd00:10:181::1"},
	} {
		l.raw[h] = &sync.Mutex{}
		for _, a := range addresses {
			l.hosts[netip.MustParseAddr(a)] = h
		}
	}
	return l
}

// load makes a world the kernel's, by the way that the appliance takes from the one
// that was loaded before.
func (l *oracleLab) load(world *oracle.World) error {
	l.bind(world)
	var facts node.Facts
	if err := l.GW1.Do(func() (err error) { facts, err = node.Read(); return err }); err != nil {
		return err
	}
	cfg, objs := judge.Config(&world.Box), (*worldObjects)(world)
	host := Host{Facts: &facts, Box: cfg.Box(&facts), Resolve: cfg.ResolveFacts(&facts, nil)}
	host.Box.SettleFrom = l.settleFrom
	if l.loads%2 == 1 {
		l.planner.compiler.Settle()
	}
	before := l.loaded
	l.loaded = world
	l.contents++
	setWorld(l.planner, world, uint64(l.contents))
	if before == nil {
		have, err := l.applier.read()
		if err != nil {
			return err
		}
		tr := l.planner.adopt(have, host, objs, objs.keys())
		_, err = l.applier.apply(tr, l.planner.compiler.From)
		return err
	}
	var tr nft.Transition
	if reflect.DeepEqual(before.Box, world.Box) {
		tr = l.planner.update(objs, changedServices(before, world))
	} else {
		tr = l.planner.relocate(host, objs, append((*worldObjects)(before).keys(), objs.keys()...))
	}
	if _, err := l.applier.apply(tr, l.planner.compiler.From); err != nil {
		return err
	}
	// The flows of another world would keep the endpoints that they had there.
	return l.GW1.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
}

// verify reads the kernel back: it must hold what was planned, and nft must be able to
// print it.
func (l *oracleLab) verify() error {
	have, err := l.applier.read()
	if err != nil {
		return err
	}
	if tr := l.planner.compiler.From(have); !tr.Empty() {
		return fmt.Errorf("the kernel does not hold what was planned: %+v is missing", tr)
	}
	l.loads++
	if l.loads%25 != 0 {
		return nil
	}
	_, _, err = l.GW1.Run("nft", "list", "ruleset")
	return err
}

// bind makes the addresses of the interface for VIPs those of the world.
func (l *oracleLab) bind(world *oracle.World) {
	var want []netip.Prefix
	for _, i := range world.Box.Interfaces {
		if i.Name == boundVIPs {
			want = i.Addresses
		}
	}
	for _, p := range l.bound {
		if !slices.Contains(want, p) {
			l.GW1.RemoveAddr(loopback, p.String())
		}
	}
	for _, p := range want {
		if !slices.Contains(l.bound, p) {
			l.GW1.AddAddr(loopback, p.String())
		}
	}
	l.bound = slices.Clone(want)
}

// sendable reports whether a packet comes by the box at all, and whether its answer can
// come back.
func (l *oracleLab) sendable(world *oracle.World, p oracle.Packet) bool {
	to := p.To.Addr()
	if !p.From.Addr().IsValid() || p.Interface != "" && neighbors(world, p.Interface, p.From.Addr(), to) {
		return false
	}
	if slices.Contains(world.Box.Gateways, to) && (p.Interface == "ext0" || p.Interface == "alt0") {
		return false // the router keeps it
	}
	for _, o := range world.Decide(p) {
		if o.Kind == oracle.Untouched && slices.Contains(world.Box.Gateways, world.Leaves(p)) {
			return false // the router keeps the answer
		}
		if o.Kind == oracle.Untouched && p.Protocol == oracle.SCTP && !l.servesAll(world, to) {
			return false // nothing says that an endpoint does not serve it
		}
		if o.Kind != oracle.Delivered {
			continue
		}
		if p.Protocol == oracle.SCTP && o.To.Port() != 5353 || !slices.Contains([]uint16{80, 5353, 8080}, o.To.Port()) {
			return false // endpoints do not serve it
		}
		// Behavior 14, --snat never: the endpoint answers its neighbor past the box.
		if o.Source == oracle.Plain && p.Interface != "" && neighbors(world, p.Interface, p.From.Addr(), o.To.Addr()) {
			return false
		}
	}
	return true
}

// neighbors reports whether two addresses are of the box's segment behind an interface,
// or the second one is while the first is behind its router, and none is the box's.
func neighbors(world *oracle.World, name string, client, other netip.Addr) bool {
	for _, i := range world.Box.Interfaces {
		for _, p := range i.Addresses {
			if p.Addr() == other {
				return false
			}
		}
	}
	for _, i := range world.Box.Interfaces {
		for _, p := range i.Addresses {
			if i.Name == name && p.Contains(client) && p.Contains(other) {
				return true
			}
		}
	}
	return false
}

// mistake is a packet that met what the oracle does not allow.
type mistake struct {
	packet oracle.Packet
	what   string
}

// sendAll sends packets, all at once. What goes wrong is tried once more alone.
func (l *oracleLab) sendAll(world *oracle.World, packets []oracle.Packet) []mistake {
	first := make([]string, len(packets))
	var wg sync.WaitGroup
	for i, p := range packets {
		wg.Go(func() { first[i] = l.send(world, p, patience) })
	}
	wg.Wait()
	var mistakes []mistake
	for i, p := range packets {
		if first[i] == "" {
			continue
		}
		if again := l.send(world, p, time.Minute); again != "" {
			mistakes = append(mistakes, mistake{p, again})
			continue
		}
		l.slow++
		l.t.Logf("the second time right: %v: %s", p, first[i])
	}
	return mistakes
}

// send sends one packet and says what was wrong with its answer, which may take wait.
func (l *oracleLab) send(world *oracle.World, p oracle.Packet, wait time.Duration) string {
	want := world.Decide(p)
	if want[0].Kind == oracle.Dropped || want[0].Kind == oracle.Untouched && !l.isSomebodys(world, p.To.Addr()) {
		wait = silence
	}
	from := l.hosts[p.From.Addr()]
	if p.Interface == "" {
		from = l.GW1
	}
	if p.Protocol == oracle.SCTP || p.Protocol == oracle.Ping {
		// Raw sockets have no ports: each hears the refusals of all.
		l.raw[from].Lock()
		defer l.raw[from].Unlock()
	}
	var reply netlab.Reply
	var err error
	options := []netlab.Option{netlab.From(p.From.Addr()), netlab.Within(wait)}
	if p.Protocol == oracle.Ping {
		id := uint16(1 + l.pings.Add(1)%20000)
		err = from.Ping(p.To.Addr(), append(options, netlab.FromPort(id))...)
		reply.At = p.To
		if err == nil && want[0].Kind == oracle.Untouched {
			reply.Client = netip.AddrPortFrom(l.pingedAs(p, id), 0)
		}
	} else {
		network := map[oracle.Protocol]string{oracle.TCP: "tcp", oracle.UDP: "udp", oracle.SCTP: "sctp"}[p.Protocol]
		reply, err = from.Ask(network, p.To, options...)
	}
	if slices.ContainsFunc(want, func(o oracle.Outcome) bool { return l.met(world, o, p, reply, err) }) {
		return ""
	}
	if err != nil {
		return fmt.Sprintf("the oracle wants %v, the client got %v", want, err)
	}
	return fmt.Sprintf("the oracle wants %v, the client got an answer: %v", want, reply)
}

// met reports whether an answer, or its lack, is what the outcome means in this network.
func (l *oracleLab) met(world *oracle.World, want oracle.Outcome, p oracle.Packet, reply netlab.Reply, err error) bool {
	var failure *netlab.Failure
	errors.As(err, &failure)
	switch want.Kind {
	case oracle.Delivered:
		if err != nil || reply.At != want.To {
			return false
		}
		plain := reply.Client.Addr() == p.From.Addr()
		masqueraded := reply.Client.Addr() == towards(world, want.To.Addr())
		return want.Source == oracle.EitherSource || want.Source == oracle.Plain && plain || want.Source == oracle.Masqueraded && masqueraded
	case oracle.Answered:
		return err == nil
	case oracle.Dropped:
		// A packet of the box itself does not leave: its sender is told so.
		return failure != nil && (failure.Refusal == netlab.Timeout || p.Interface == "" && errors.Is(err, unix.EPERM))
	case oracle.Refused:
		if p.Protocol == oracle.TCP {
			return failure != nil && failure.Refusal == netlab.Refused
		}
		return failure != nil && failure.PortUnreachable()
	case oracle.Unreachable:
		code := map[bool][2]uint8{true: {3, 1}, false: {1, 3}}[p.To.Addr().Is4()] // host, address unreachable
		return isICMP(failure, code)
	}
	return l.metHost(world, p, reply, failure)
}

// metHost reports whether an answer is that of a host the packet was sent to: the box, the
// router, an endpoint. What nobody has goes back and forth between the box and the
// router until its time is over, which not every client is told.
func (l *oracleLab) metHost(world *oracle.World, p oracle.Packet, reply netlab.Reply, failure *netlab.Failure) bool {
	to := p.To.Addr()
	if l.isSomebodys(world, to) {
		if failure == nil {
			return reply.At == p.To && reply.Client.Addr() == world.Leaves(p)
		}
		return !l.servesAll(world, to) && (failure.Refusal == netlab.Refused || failure.Refusal == netlab.Unreachable)
	}
	exceeded := map[bool][2]uint8{true: {11, 0}, false: {3, 0}}[to.Is4()]
	return isICMP(failure, exceeded) || failure != nil && failure.Refusal == netlab.Timeout
}

// servesAll reports whether the address is of a host that answers on every port that
// packets are sent to: the box, the router, IN.
func (l *oracleLab) servesAll(world *oracle.World, addr netip.Addr) bool {
	return towards(world, addr) == addr || slices.Contains(l.bound, netip.PrefixFrom(addr, addr.BitLen())) ||
		slices.Contains([]*netlab.Host{l.RTR, l.IN, l.EXT, l.BLK}, l.hosts[addr])
}

// isSomebodys reports whether a host of the lab has the address.
func (l *oracleLab) isSomebodys(world *oracle.World, addr netip.Addr) bool {
	return towards(world, addr).IsValid() || l.hosts[addr] != nil || slices.Contains(l.bound, netip.PrefixFrom(addr, addr.BitLen()))
}

// pingedAs is the address that a ping which was answered left the box with.
func (l *oracleLab) pingedAs(p oracle.Packet, id uint16) netip.Addr {
	if p.Interface != "" {
		if as := l.GW1.PingSource(p.From.Addr(), p.To.Addr(), id); as.IsValid() {
			return as
		}
	}
	return p.From.Addr()
}

func isICMP(failure *netlab.Failure, code [2]uint8) bool {
	return failure != nil && failure.Refusal == netlab.Unreachable && failure.Type == code[0] && failure.Code == code[1]
}

// towards is the box's address on the segment of an address.
func towards(world *oracle.World, addr netip.Addr) netip.Addr {
	for _, i := range world.Box.Interfaces {
		for _, p := range i.Addresses {
			if i.Name != boundVIPs && p.Contains(addr) {
				return p.Addr()
			}
		}
	}
	return netip.Addr{}
}

// report shows the smallest world in which the packet goes wrong, and what the simulator
// makes of it: where it agrees with the oracle, it is the kernel that both do not know.
func (l *oracleLab) report(seed uint64, world *oracle.World, wrong mistake) {
	l.t.Helper()
	inSimulator := judge.Disagreement(world, l.planner.compiler.Ruleset(), wrong.packet)
	smallest := world.Shrink(func(w *oracle.World) bool {
		return l.sendable(w, wrong.packet) && l.load(w) == nil && l.send(w, wrong.packet, patience) != ""
	})
	l.t.Errorf("seed %d: %v: %s\nthe simulator: %s\nthe smallest world that does it too, or the whole one:\n%s",
		seed, wrong.packet, wrong.what, inSimulator, smallest)
}
