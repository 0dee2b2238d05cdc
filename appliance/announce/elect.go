package announce

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"iter"
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
	"svcctl.io/svcctl/appliance/announce/neighbor"
	"svcctl.io/svcctl/appliance/announce/vrrp"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/task"
)

// election takes part in a VRRP election on all links of the box. The box is active on all of them or on none; another box counts as alive
// while its adverts arrive on any link.
type election struct {
	cfg   vrrp.Config
	log   *slog.Logger
	wake  chan struct{}
	moved chan struct{} // capacity 1: the result of outcome changed

	mu      sync.Mutex
	m       *vrrp.Machine
	links   map[int]*heartbeat
	alone   bool            // no link carries frames
	macs    map[string]bool // MAC addresses of this box, to ignore its own adverts
	addrs   [2][]netip.Addr // the addresses to list in adverts, by family
	assert  bool            // the third result of outcome
	foreign foreign
	rival   rival
	moves   uint64 // number of state changes
}

// rival is another box with a lower priority that sends adverts while this one is active, so it does not receive the adverts of this one.
// After a network split heals, that is normal for a moment.
type rival struct {
	at          netip.Addr
	priority    uint8
	link        string
	since, last time.Time     // times of the first and the last advert
	gap         time.Duration // the rival counts as gone after this time without an advert
	reported    bool
}

// rivalry is how long a rival must keep sending adverts before it is reported as a problem. It is also the lower bound of rival.gap, which is
// otherwise three times the rival's advert interval.
const rivalry = 3 * time.Second

func (r *rival) note(now time.Time, a *vrrp.Advert, link string) {
	if r.at != a.Source || now.Sub(r.last) >= r.gap {
		*r = rival{since: now}
	}
	r.at, r.priority, r.link, r.last, r.gap = a.Source, a.Priority, link, now, max(rivalry, 3*a.Interval)
}

// lasts reports whether the rival is still sending adverts and has done so for at least rivalry.
func (r *rival) lasts(now time.Time) bool {
	return r.at.IsValid() && now.Sub(r.last) < r.gap && r.last.Sub(r.since) >= rivalry
}

// foreign holds the addresses in the adverts of the active box while this box is not active.
type foreign struct {
	at    netip.Addr // source address of the adverts
	addrs []netip.Addr
	since time.Time // since when the addresses differ from ours; zero if they are equal
}

func newElection(cfg vrrp.Config, log *slog.Logger) *election {
	return &election{
		cfg: cfg, log: log, wake: make(chan struct{}, 1), moved: make(chan struct{}, 1),
		m: vrrp.New(time.Now(), cfg), links: map[int]*heartbeat{}, alone: true,
	}
}

// changes returns a channel that gets a value when the result of outcome changed. Without an election it returns nil.
func (e *election) changes() <-chan struct{} {
	if e == nil {
		return nil
	}
	return e.moved
}

// setLinks starts sending and receiving adverts on the given links, by interface index, and stops it on all others. macs are the MAC
// addresses of this box. If no link of the box had a carrier before, it joins the election as backup.
func (e *election) setLinks(ctx context.Context, links map[int]node.Link, macs map[string]bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.macs = macs
	for index, h := range e.links {
		if l, still := links[index]; still && source(&l) == h.own && slices.Equal(l.MAC, h.link.MAC) {
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
		task.Wake(e.moved)
	}
	e.alone = alone
	return nil
}

// do calls f, which returns the priorities of the adverts to send, sends an advert with each of them on all links, and signals changes. Before that
// it processes the adverts queued in the sockets, so that a process that was suspended does not count them as missing.
func (e *election) do(f func(now time.Time) []uint8) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, _ := e.m.State()
	master, at := e.m.Master(), time.Now()
	var adverts []uint8
	for _, h := range e.links {
		adverts = append(adverts, e.receive(at, h)...)
	}
	for _, priority := range slices.Compact(append(adverts, f(at)...)) { // one for all that were received
		for _, h := range e.links {
			h.send(advert(h, vrrp.Advert{VRID: e.cfg.VRID, Priority: priority, Interval: e.m.Interval(), Addresses: e.addrs[familyOf(h.own)]}))
		}
	}
	now, _ := e.m.State()
	if now != before {
		e.rival = rival{}
		e.moves++
		e.foreign = foreign{} // it was of the active box before
		e.log.Info("the election has another outcome", "vrid", e.cfg.VRID, "state", now.String(), "master", e.m.Master())
	}
	reported := e.rival.reported
	e.rival.reported = e.rival.lasts(at)
	if now != before || master != e.m.Master() || e.assert || reported != e.rival.reported {
		task.Wake(e.moved)
	}
	task.Wake(e.wake)
}

// run calls the machine's Tick when it is due, until ctx is done.
func (e *election) run(ctx context.Context) error {
	var due time.Time // of the next Tick, as it was found last
	task.Repeat(ctx, e.wake, func() time.Time {
		if !time.Now().Before(due) {
			e.do(func(now time.Time) []uint8 { return e.m.Tick(now) })
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		due = e.m.Next()
		return due
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range e.links {
		h.stop()
	}
	return nil
}

// outcome reports whether this box answers for the addresses, which box is the master, and whether this box should announce the addresses
// again (reset by the call).
func (e *election) outcome() (answers bool, master netip.Addr, assert bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	state, _ := e.m.State()
	assert, e.assert = e.assert, false
	return state.Answers(), e.m.Master(), assert
}

// set passes inputs to the election: whether this box is unhealthy, which lowers its priority, and the addresses to list in its adverts, by
// family.
func (e *election) set(unwell bool, addrs [2][]netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.m.Priority()
	if e.m.SetPriority(unwell); e.m.Priority() != before {
		e.log.Warn("the priority in the election is another one", "vrid", e.cfg.VRID, "priority", e.m.Priority(), "unwell", unwell)
	}
	e.addrs = addrs
	e.evaluateForeign(time.Now())
}

// compare records the addresses in the advert of another box while this box is not active. The active box does not compare.
func (e *election) compare(now time.Time, a *vrrp.Advert) {
	if state, _ := e.m.State(); state.Answers() {
		return
	}
	if a.VRID != e.cfg.VRID || a.Priority == 0 || e.foreign.at == a.Source && slices.Equal(e.foreign.addrs, a.Addresses) {
		return
	}
	e.foreign.at, e.foreign.addrs = a.Source, a.Addresses
	e.evaluateForeign(now)
}

// evaluateForeign updates foreign.since, the time since which the addresses in the adverts of the active box differ from those of this box.
func (e *election) evaluateForeign(now time.Time) {
	if !e.foreign.at.IsValid() {
		return
	}
	before := e.foreign.since
	switch {
	case slices.Equal(e.foreign.addrs, e.addrs[familyOf(e.foreign.at)]):
		e.foreign.since = time.Time{}
	case before.IsZero():
		e.foreign.since = now
	}
	if before.IsZero() != e.foreign.since.IsZero() {
		task.Wake(e.moved)
	}
}

// group returns the state of the election for the report to serve; nil if there is none.
func (e *election) group() *wire.Group {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	state, since := e.m.State()
	g := &wire.Group{VRID: e.cfg.VRID, State: state.String(), Since: since.UTC(), Priority: e.m.Priority(), Interval: e.m.Interval().String(), Transitions: e.moves}
	if m := e.m.Master(); m.IsValid() {
		g.Master = m.String()
	}
	if !e.foreign.since.IsZero() {
		ours := e.addrs[familyOf(e.foreign.at)]
		g.Differs = &wire.GroupDifference{With: e.foreign.at.String(), Since: e.foreign.since.UTC(), Theirs: without(e.foreign.addrs, ours), Ours: without(ours, e.foreign.addrs)}
	}
	return g
}

// problems describes the problems with adverts of other boxes. Differences between address lists are reported by group instead.
func (e *election) problems() (all []string) {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := &e.rival; r.lasts(time.Now()) {
		all = append(all, fmt.Sprintf("the box %s answers too, with priority %d: it does not receive the adverts of this one, which has %d; look for what drops VRRP (IP protocol 112) on the way to it: `tcpdump -n -i %s vrrp` there, and on this box",
			r.at, r.priority, e.m.Priority(), r.link))
	}
	if asked, most := e.m.Longer(); asked > 0 {
		all = append(all, fmt.Sprintf("the active box %s advertises an interval of %s, and this one waits for adverts as if it were %s, five times its own: give all boxes of --vrid %d the same --interval; if it is none of them, it forges adverts",
			e.m.Master(), asked, most, e.cfg.VRID))
	}
	return all
}

// without returns, as text, the addresses that are not in others. Digests are left out.
func without(addrs, others []netip.Addr) (texts []string) {
	for _, a := range addrs {
		if !isDigest(a) && !slices.Contains(others, a) {
			texts = append(texts, a.String())
		}
	}
	return texts
}

// isActive reports whether this box answers for the addresses now. If its timers are overdue (the process was suspended), it first processes the
// adverts that wait in the sockets, since another box may have taken over.
func (e *election) isActive() bool {
	e.mu.Lock()
	silent := e.m.Silent(time.Now())
	e.mu.Unlock()
	if silent {
		e.do(e.m.Tick)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	state, _ := e.m.State()
	return state.Answers()
}

// leave starts to hand the addresses over to another box. This box answers for them until it receives an advert of that box, for at most `patience`.
func (e *election) leave(patience time.Duration) {
	e.do(func(now time.Time) []uint8 { return e.m.Leave(now, patience) })
}

// listing summarizes a set of addresses for adverts: the lowest addresses of each family, and a digest of all addresses. Boxes compare
// digests to detect that their sets differ. add and remove take constant time, but complete must run after a listed address was removed.
type listing struct {
	low    [2][]netip.Addr // for IPv4 and IPv6, each sorted
	count  [2]int
	digest uint64
}

// mostListed is the largest number of addresses of a family in an advert.
const mostListed = 20

func (l *listing) add(addr netip.Addr) {
	f := familyOf(addr)
	l.digest ^= digestOf(addr)
	l.count[f]++
	if len(l.low[f]) < min(mostListed, l.count[f]-1) {
		return // it is not complete
	}
	i, _ := slices.BinarySearchFunc(l.low[f], addr, netip.Addr.Compare)
	l.low[f] = slices.Insert(l.low[f], i, addr)
	l.low[f] = l.low[f][:min(len(l.low[f]), mostListed)]
}

func (l *listing) remove(addr netip.Addr) {
	f := familyOf(addr)
	l.digest ^= digestOf(addr)
	l.count[f]--
	if i, listed := slices.BinarySearchFunc(l.low[f], addr, netip.Addr.Compare); listed {
		l.low[f] = slices.Delete(l.low[f], i, i+1)
	}
}

// complete lists further addresses in place of listed ones that were removed, up to mostListed of each family. all yields all announced
// addresses.
func (l *listing) complete(all iter.Seq[netip.Addr]) {
	for f := range l.low {
		if len(l.low[f]) == min(mostListed, l.count[f]) {
			continue
		}
		var family []netip.Addr
		for addr := range all {
			if familyOf(addr) == f {
				family = append(family, addr)
			}
		}
		slices.SortFunc(family, netip.Addr.Compare)
		l.low[f] = slices.Clone(family[:min(len(family), mostListed)])
	}
}

// listed returns the addresses for adverts: IPv4 at index 0, IPv6 at index 1. The last address of each list encodes the digest. It lies in
// 240.0.0.0/4 (RFC 1112) or 100::/64 (RFC 6666), which no host uses.
func (l *listing) listed() (by [2][]netip.Addr) {
	digest4 := [4]byte{}
	binary.BigEndian.PutUint32(digest4[:], 0xf0000000|uint32(l.digest^l.digest>>28)&0x0fffffff)
	digest6 := [16]byte{0: 1}
	binary.BigEndian.PutUint64(digest6[8:], l.digest)
	by[0] = append(slices.Clone(l.low[0]), netip.AddrFrom4(digest4))
	by[1] = append(slices.Clone(l.low[1]), netip.AddrFrom16(digest6))
	return by
}

// isDigest reports whether an address in an advert encodes a digest of listing.
func isDigest(addr netip.Addr) bool {
	b := addr.As16()
	return addr.Is4() && addr.As4()[0]&0xf0 == 0xf0 || addr.Is6() && binary.BigEndian.Uint64(b[:8]) == 1<<56
}

// familyOf returns the index of an address's family: 0 for IPv4 and 1 for IPv6.
func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return 0
	}
	return 1
}

func digestOf(addr netip.Addr) uint64 {
	h := fnv.New64a()
	b := addr.As16()
	_, _ = h.Write(b[:])
	n := h.Sum64()
	n ^= n >> 33 // neighboring addresses differ in a few bits: spread them (MurmurHash3's finalizer)
	n *= 0xff51afd7ed558ccd
	n ^= n >> 33
	return n
}

// heartbeat is the packet socket that sends and receives the adverts of one link.
type heartbeat struct {
	conn net.PacketConn
	raw  syscall.RawConn // of conn
	link node.Link
	own  netip.Addr // source address of our adverts
	stop context.CancelFunc
}

// source returns the source address for adverts on a link: an IPv4 address with a prefix shorter than 32 bits, else the link-local IPv6
// address.
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

// open opens the packet socket of a link and starts receiving adverts on it.
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
		err = joinGroup(h.raw, l.Index, neighbor.GroupMAC(group))
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

// onlyAdverts returns a classic BPF program (bpf(7)) that passes only VRRP packets, over IPv6 if v6 is set, otherwise over IPv4. Without it all
// traffic of a link would fill the socket, and adverts would be lost.
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

// joinGroup makes the interface accept frames to a multicast MAC address (packet(7)).
func joinGroup(raw syscall.RawConn, index int, mac net.HardwareAddr) error {
	request := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(mac))}
	copy(request.Address[:], mac)
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptPacketMreq(int(fd), unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &request)
	})
	return errors.Join(err, failed)
}

// listen processes adverts of a link when they arrive, until the socket is closed.
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
			if !task.Sleep(ctx, 100*time.Millisecond) {
				return
			}
			continue
		}
		e.do(func(time.Time) []uint8 { return nil })
	}
}

const (
	// maxFrame is the largest number of bytes of a frame that are read.
	maxFrame = 2048
	// maxWaiting is the maximum number of adverts of a link that are read in one call, so that a flood of adverts cannot delay the machine's
	// timers.
	maxWaiting = 64
)

// receive passes the adverts that wait in the socket of a link to the machine. It returns the priorities of the adverts to send in answer.
func (e *election) receive(now time.Time, h *heartbeat) (adverts []uint8) {
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
			if assert {
				e.rival.note(now, &a, h.link.Name)
			}
		}
	})
	return adverts
}

// The lengths of Ethernet and IP headers in bytes.
const (
	etherLen = 14
	ipv4Len  = 20
	ipv6Len  = 40
)

// parseAdvert decodes an Ethernet frame. It returns false when the frame holds no valid VRRP advert, or was forwarded by a router (TTL
// below 255).
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

// advert returns an Ethernet frame with an advert from the address of a link.
func advert(h *heartbeat, a vrrp.Advert) []byte {
	a.Source, a.Destination = h.own, vrrp.Group4
	ether := uint16(unix.ETH_P_IP)
	if h.own.Is6() {
		a.Destination, ether = vrrp.Group6, unix.ETH_P_IPV6
	}
	payload := a.Marshal()
	f := slices.Concat(neighbor.GroupMAC(a.Destination), h.link.MAC, binary.BigEndian.AppendUint16(nil, ether))
	if h.own.Is6() {
		f = append(f, 0x60, 0, 0, 0, byte(len(payload)>>8), byte(len(payload)), vrrp.Protocol, vrrp.HopLimit)
		return slices.Concat(f, a.Source.AsSlice(), a.Destination.AsSlice(), payload)
	}
	size := ipv4Len + len(payload)
	header := slices.Concat([]byte{0x45, 0xc0, byte(size >> 8), byte(size), 0, 0, 0, 0, vrrp.HopLimit, vrrp.Protocol, 0, 0}, a.Source.AsSlice(), a.Destination.AsSlice())
	binary.BigEndian.PutUint16(header[10:], vrrp.Checksum(netip.Addr{}, netip.Addr{}, header))
	return slices.Concat(f, header, payload)
}

// send sends a frame without blocking. One that cannot be sent is dropped: the link is down, or its queue is full.
func (h *heartbeat) send(frame []byte) {
	_ = h.raw.Control(func(fd uintptr) { _, _ = unix.Write(int(fd), frame) })
}
