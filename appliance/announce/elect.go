package announce

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/vrrp"
	"svcctl.io/svcctl/appliance/node"
)

// election is a virtual router on the links of the box: it is active on all of them or on none. A partner
// is alive when it is heard on any.
type election struct {
	cfg   vrrp.Config
	log   *slog.Logger
	wake  chan struct{}
	moved chan struct{} // the state is another one, or the box should announce itself anew

	mu     sync.Mutex
	m      *vrrp.Machine
	links  map[int]*heartbeat
	alone  bool            // no link carries frames
	macs   map[string]bool // of this box: its own adverts are not heard
	addrs  [2][]netip.Addr // that adverts list, by family
	assert bool
	others others
	moves  uint64 // how often the state was another one
}

// others has the addresses in the adverts of the box that answers.
type others struct {
	at    netip.Addr
	addrs []netip.Addr
	since time.Time // since when that differs from ours; zero: it does not
}

// heartbeat is the adverts on one link.
type heartbeat struct {
	conn net.PacketConn
	raw  syscall.RawConn // of conn
	link node.Link
	own  netip.Addr // what adverts are sent from
	stop context.CancelFunc
}

func newElection(cfg vrrp.Config, log *slog.Logger) *election {
	return &election{
		cfg: cfg, log: log, wake: make(chan struct{}, 1), moved: make(chan struct{}, 1),
		m: vrrp.New(time.Now(), cfg), links: map[int]*heartbeat{}, alone: true,
	}
}

// changes signals that outcome has another result; never without an election.
func (e *election) changes() <-chan struct{} {
	if e == nil {
		return nil
	}
	return e.moved
}

// source is the address of a link that adverts come from: an IPv4 address with a network, else the
// link-local one.
func source(l *node.Link) netip.Addr {
	for _, wanted := range []func(netip.Prefix) bool{
		func(p netip.Prefix) bool { return p.Addr().Is4() && !p.IsSingleIP() },
		func(p netip.Prefix) bool { return p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() },
	} {
		if i := slices.IndexFunc(l.Addresses, wanted); i >= 0 {
			return l.Addresses[i].Addr()
		}
	}
	return netip.Addr{}
}

// setLinks has adverts sent and heard on these links. A box that had no carrier at all joins as backup:
// what it believed meanwhile counts for nothing.
func (e *election) setLinks(ctx context.Context, links map[int]node.Link, macs map[string]bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.macs = macs
	for index, h := range e.links {
		l, still := links[index]
		if still && source(&l) == h.own && slices.Equal(l.MAC, h.link.MAC) {
			h.link = l
			continue
		}
		h.stop()
		delete(e.links, index)
	}
	alone := true
	for index, l := range links {
		alone = alone && !l.Carrier
		if e.links[index] != nil || !source(&l).IsValid() {
			continue
		}
		if err := e.open(ctx, l); errors.Is(err, fs.ErrPermission) {
			return err
		} else if err != nil {
			e.log.Warn("no election on an interface for now", "interface", l.Name, "err", err)
		}
	}
	if state, _ := e.m.State(); e.alone && !alone && (state == vrrp.Active || state == vrrp.Backup) {
		e.m.Join(time.Now())
		signal(e.moved)
	}
	e.alone = alone
	return nil
}

// open begins to hear adverts on a link.
func (e *election) open(ctx context.Context, l node.Link) error {
	h := &heartbeat{link: l, own: source(&l)}
	ether, group := unix.ETH_P_IP, vrrp.Group4
	if h.own.Is6() {
		ether, group = unix.ETH_P_IPV6, vrrp.Group6
	}
	program, err := onlyAdverts(h.own.Is6())
	if err != nil {
		return err
	}
	conn, err := packet.Listen(&net.Interface{Index: l.Index, Name: l.Name, HardwareAddr: l.MAC}, packet.Raw, ether, &packet.Config{Filter: program})
	if err != nil {
		return fmt.Errorf("listen for adverts on %s: %w", l.Name, err)
	}
	h.conn = conn
	if h.raw, err = conn.SyscallConn(); err == nil {
		err = joinGroup(h.raw, l.Index, groupMAC(group))
	}
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("join the group of VRRP on %s: %w", l.Name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	h.stop = func() { cancel(); _ = conn.Close() }
	e.links[l.Index] = h
	go e.listen(ctx, h)
	return nil
}

// onlyAdverts is a program (bpf(7), classic) that passes VRRP. Of all traffic that comes in on a link, copies would fill
// the socket, and adverts behind them be lost.
func onlyAdverts(v6 bool) ([]bpf.RawInstruction, error) {
	protocol := uint32(etherLen + 9)
	if v6 {
		protocol = etherLen + 6
	}
	return bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: protocol, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: vrrp.Protocol, SkipFalse: 1},
		bpf.RetConstant{Val: maxFrame},
		bpf.RetConstant{Val: 0},
	})
}

// joinGroup has the interface take frames for a multicast group (packet(7)).
func joinGroup(raw syscall.RawConn, index int, mac net.HardwareAddr) error {
	request := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(mac))}
	copy(request.Address[:], mac)
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptPacketMreq(int(fd), unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &request)
	})
	return errors.Join(err, failed)
}

// groupMAC is the Ethernet address of a group (RFC 1112, RFC 2464).
func groupMAC(group netip.Addr) net.HardwareAddr {
	b := group.AsSlice()
	if group.Is4() {
		return net.HardwareAddr{0x01, 0x00, 0x5e, b[1] & 0x7f, b[2], b[3]}
	}
	return net.HardwareAddr{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// listen calls the machine whenever adverts wait, until the socket is closed.
func (e *election) listen(ctx context.Context, h *heartbeat) {
	for first := make([]byte, 1); ; {
		var failed error
		if err := h.raw.Read(func(fd uintptr) bool {
			_, _, failed = unix.Recvfrom(int(fd), first, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return !errors.Is(failed, unix.EAGAIN)
		}); err != nil {
			return
		}
		if failed != nil { // the link is down
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		e.do(func(time.Time) []uint8 { return nil })
	}
}

const (
	// maxFrame bounds the bytes of a frame that are read.
	maxFrame = 2048
	// maxWaiting bounds the adverts of a link that are read at a time, so that a flood of them cannot delay the machine's
	// timers.
	maxWaiting = 64
)

// hear has the machine take the adverts that wait on a link, and gives those to send.
func (e *election) hear(now time.Time, h *heartbeat) (adverts []uint8) {
	_ = h.raw.Control(func(fd uintptr) { // a link that is gone has none
		buf := make([]byte, maxFrame)
		for range maxWaiting {
			n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
			if err != nil {
				return
			}
			a, ok := parseAdvert(buf[:n])
			if !ok || e.macs[net.HardwareAddr(buf[6:12]).String()] {
				continue
			}
			e.compare(now, &a)
			out, assert := e.m.Receive(now, &a, h.own)
			adverts, e.assert = append(adverts, out...), e.assert || assert
		}
	})
	return adverts
}

// The lengths of headers.
const (
	etherLen = 14
	ipv4Len  = 20
	ipv6Len  = 40
)

// parseAdvert reads a frame; false when it is no advert that came straight from its sender.
func parseAdvert(frame []byte) (a vrrp.Advert, ok bool) {
	if len(frame) < etherLen+ipv4Len {
		return a, false
	}
	p := frame[etherLen:]
	var from, to netip.Addr
	var payload []byte
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_IP:
		header, size := int(p[0]&0xf)*4, int(binary.BigEndian.Uint16(p[2:]))
		if p[0]>>4 != 4 || p[9] != vrrp.Protocol || p[8] != vrrp.HopLimit || header < ipv4Len || size < header || len(p) < size || binary.BigEndian.Uint16(p[6:])&0x3fff != 0 {
			return a, false
		}
		from, to = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
		payload = p[header:size]
	case unix.ETH_P_IPV6:
		if len(p) < ipv6Len || p[0]>>4 != 6 || p[6] != vrrp.Protocol || p[7] != vrrp.HopLimit {
			return a, false
		}
		size := int(binary.BigEndian.Uint16(p[4:]))
		if len(p) < ipv6Len+size {
			return a, false
		}
		from, to = netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
		payload = p[ipv6Len : ipv6Len+size]
	default:
		return a, false
	}
	a, err := vrrp.Parse(from, to, payload)
	return a, err == nil
}

// advert is a frame with one.
func advert(h *heartbeat, a vrrp.Advert) []byte {
	a.Source, a.Destination = h.own, vrrp.Group4
	ether := uint16(unix.ETH_P_IP)
	if h.own.Is6() {
		a.Destination, ether = vrrp.Group6, unix.ETH_P_IPV6
	}
	payload := a.Marshal()
	f := slices.Concat(groupMAC(a.Destination), h.link.MAC, binary.BigEndian.AppendUint16(nil, ether))
	if h.own.Is6() {
		f = append(f, 0x60, 0, 0, 0, byte(len(payload)>>8), byte(len(payload)), vrrp.Protocol, vrrp.HopLimit)
		return slices.Concat(f, a.Source.AsSlice(), a.Destination.AsSlice(), payload)
	}
	size := ipv4Len + len(payload)
	header := slices.Concat([]byte{0x45, 0xc0, byte(size >> 8), byte(size), 0, 0, 0, 0, vrrp.HopLimit, vrrp.Protocol, 0, 0}, a.Source.AsSlice(), a.Destination.AsSlice())
	binary.BigEndian.PutUint16(header[10:], vrrp.Checksum(netip.Addr{}, netip.Addr{}, header))
	return slices.Concat(f, header, payload)
}

// do calls the machine, sends the adverts that it gives, and tells of what changed. Adverts that wait come first: a
// process that did not run for a while would take them for missing.
func (e *election) do(f func(now time.Time) []uint8) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, _ := e.m.State()
	master, at := e.m.Master(), time.Now()
	var adverts []uint8
	for _, h := range e.links {
		adverts = append(adverts, e.hear(at, h)...)
	}
	for _, priority := range append(adverts, f(at)...) {
		for _, h := range e.links {
			frame := advert(h, vrrp.Advert{VRID: e.cfg.VRID, Priority: priority, Interval: e.cfg.Interval, Addresses: e.addrs[familyOf(h.own)]})
			_, _ = h.conn.WriteTo(frame, &packet.Addr{HardwareAddr: frame[:6]}) // a link that is down takes nothing
		}
	}
	now, _ := e.m.State()
	if now != before {
		e.moves++
		e.others = others{} // it was of who answered before
		e.log.Info("the election has another outcome", "vrid", e.cfg.VRID, "state", now.String(), "master", e.m.Master())
	}
	if now != before || master != e.m.Master() || e.assert {
		signal(e.moved)
	}
	signal(e.wake)
}

// run keeps the time until ctx is done.
func (e *election) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, h := range e.links {
				h.stop()
			}
			return nil
		case <-timer.C:
			e.do(func(now time.Time) []uint8 { return e.m.Tick(now) })
		case <-e.wake:
		}
		e.mu.Lock()
		next := e.m.Next()
		e.mu.Unlock()
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// outcome reports whether this box answers, which box is master otherwise, and whether this one should announce
// its addresses anew.
func (e *election) outcome() (answers bool, master netip.Addr, assert bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	state, _ := e.m.State()
	assert, e.assert = e.assert, false
	return state.Answers(), e.m.Master(), assert
}

// set tells what the election depends on: whether others should take over, and what adverts list by family.
func (e *election) set(unwell bool, addrs [2][]netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.m.SetPriority(unwell)
	e.addrs = addrs
	e.judgeOthers(time.Now())
}

// compare notes what another box lists, unless this one answers: that one has to be as this one is, and
// falls silent.
func (e *election) compare(now time.Time, a *vrrp.Advert) {
	if state, _ := e.m.State(); state.Answers() {
		return
	}
	if a.VRID != e.cfg.VRID || a.Priority == 0 || e.others.at == a.Source && slices.Equal(e.others.addrs, a.Addresses) {
		return
	}
	e.others.at, e.others.addrs = a.Source, a.Addresses
	e.judgeOthers(now)
}

// judgeOthers notes since when the others list other addresses than this box.
func (e *election) judgeOthers(now time.Time) {
	if !e.others.at.IsValid() {
		return
	}
	before := e.others.since
	switch {
	case slices.Equal(e.others.addrs, e.addrs[familyOf(e.others.at)]):
		e.others.since = time.Time{}
	case before.IsZero():
		e.others.since = now
	}
	if before.IsZero() != e.others.since.IsZero() {
		signal(e.moved)
	}
}

// group is the election, to be told.
func (e *election) group() *wire.Group {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	state, since := e.m.State()
	g := &wire.Group{VRID: e.cfg.VRID, State: state.String(), Since: since.UTC(), Priority: e.m.Priority(), Transitions: e.moves}
	if m := e.m.Master(); m.IsValid() {
		g.Master = m.String()
	}
	if !e.others.since.IsZero() {
		ours := e.addrs[familyOf(e.others.at)]
		g.Differs = &wire.GroupDifference{With: e.others.at.String(), Since: e.others.since.UTC(), Theirs: without(e.others.addrs, ours), Ours: without(ours, e.others.addrs)}
	}
	return g
}

// without are the addresses that others do not have.
func without(addrs, others []netip.Addr) (texts []string) {
	for _, a := range addrs {
		if !isDigest(a) && !slices.Contains(others, a) {
			texts = append(texts, a.String())
		}
	}
	return texts
}

// join takes part again after leave.
func (e *election) join() {
	e.do(func(now time.Time) []uint8 {
		e.m.Join(now)
		return nil
	})
}

// leave hands over to another box, if there is one, within a time.
func (e *election) leave(patience time.Duration) {
	e.do(func(now time.Time) []uint8 { return e.m.Leave(now, patience) })
}
