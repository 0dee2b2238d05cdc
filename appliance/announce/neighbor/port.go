package neighbor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/task"
)

// Port announces addresses and answers for them by ARP and NDP on one interface. Its methods may be called concurrently.
type Port struct {
	log     *slog.Logger
	arp     *packet.Conn
	ndp     *packet.Conn
	wake    chan struct{}
	changed func()      // called after addresses changed their states
	may     func() bool // reports whether this box still answers; called before frames are sent unless the machine is passive; may be nil

	mu     sync.Mutex
	m      *machine
	groups *groups
}

// Open opens an interface in the calling thread's network namespace. Frames about addresses outside of the prefixes are ignored. The function
// `changed` is called after the state of an address changed, and must not block. The function `may` reports whether frames may be sent; nil means
// always. It is called before frames are sent, unless the port is passive.
func Open(ifi *net.Interface, prefixes []netip.Prefix, log *slog.Logger, changed func(), may func() bool) (*Port, error) {
	if len(ifi.HardwareAddr) != len(MAC{}) {
		return nil, fmt.Errorf("interface %s is no Ethernet: it has no address of 6 bytes", ifi.Name)
	}
	p := &Port{
		log: log, wake: make(chan struct{}, 1), changed: changed, may: may,
		m: newMachine(MAC(ifi.HardwareAddr), rand.N[time.Duration]), groups: &groups{index: ifi.Index, uses: map[netip.Addr]int{}, member: map[netip.Addr]*groupSocket{}},
	}
	for _, each := range []struct {
		conn  **packet.Conn
		ether int
		v6    bool
	}{{&p.arp, etherARP, false}, {&p.ndp, etherIPv6, true}} {
		program, err := filter(prefixes, each.v6)
		if err == nil {
			*each.conn, err = packet.Listen(ifi, packet.Raw, each.ether, &packet.Config{Filter: program})
		}
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("listen on %s: %w", ifi.Name, err)
		}
	}
	return p, nil
}

// Close ends Run, and leaves all multicast groups.
func (p *Port) Close() {
	for _, conn := range []*packet.Conn{p.arp, p.ndp} {
		if conn != nil {
			_ = conn.Close()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.groups.sockets {
		_ = unix.Close(s.fd)
	}
}

// Run answers for the addresses and announces them until ctx is done, or returns an error when the interface is gone.
func (p *Port) Run(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, func() {
		past := time.Unix(1, 0)
		_ = p.arp.SetReadDeadline(past)
		_ = p.ndp.SetReadDeadline(past)
	})
	defer stop()
	tasks.Go(func() error { return p.listen(ctx, p.arp) })
	tasks.Go(func() error { return p.listen(ctx, p.ndp) })
	tasks.Go(func() error { task.Repeat(ctx, p.wake, p.tick); return nil })
	return tasks.Wait()
}

// listen passes the frames of a socket to receive until ctx is done or the socket fails.
func (p *Port) listen(ctx context.Context, conn *packet.Conn) error {
	buf := make([]byte, snapLen)
	for {
		n, _, err := conn.ReadFrom(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // ENETDOWN: the interface is down, and may come back
			task.Sleep(ctx, 100*time.Millisecond)
			continue
		}
		p.receive(buf[:n])
	}
}

// receive passes a frame to the machine, unless this box must not send.
func (p *Port) receive(frame []byte) {
	p.do(func(now time.Time) [][]byte {
		if !p.maySend() {
			return nil
		}
		return p.m.receive(now, frame)
	})
}

// recheck is the interval at which tick calls may (see Open) again after it returned false.
const recheck = 100 * time.Millisecond

// maySend reports whether frames may be sent. A passive machine sends at most probes, so may is not called for it.
func (p *Port) maySend() bool { return p.m.passive || p.may == nil || p.may() }

// tick sends the frames that are due, and returns the time of the next call; the zero Time if none is needed.
func (p *Port) tick() (next time.Time) {
	p.do(func(now time.Time) (frames [][]byte) {
		if !p.maySend() { // SetPassive is about to be called
			next = now.Add(recheck)
			return nil
		}
		frames, next = p.m.tick(now)
		return frames
	})
	return next
}

// sendPatience is the longest time for which a send waits for room in the queue of the interface.
const sendPatience = 100 * time.Millisecond

// do calls f with the machine locked, sends the frames that f returns, and calls changed if addresses changed state.
func (p *Port) do(f func(now time.Time) [][]byte) {
	p.mu.Lock()
	before := p.next()
	frames := f(time.Now())
	next := p.next()
	changed, sooner := len(p.m.changed) > 0, !next.IsZero() && (before.IsZero() || next.Before(before))
	p.mu.Unlock()
	for _, frame := range frames {
		conn := p.arp
		if frame[12] == etherIPv6>>8 {
			conn = p.ndp
		}
		// A link that is down sends nothing; everything is announced again when it is up.
		_ = conn.SetWriteDeadline(time.Now().Add(sendPatience))
		_, _ = conn.WriteTo(frame, &packet.Addr{HardwareAddr: frame[:6]})
	}
	if sooner {
		task.Wake(p.wake)
	}
	if changed {
		p.changed()
	}
}

func (p *Port) next() time.Time {
	if len(p.m.queue) == 0 {
		return time.Time{}
	}
	return p.m.queue[0].next
}

// Add starts to probe an address, and announces it if no other host has it. If known is set, this box announced the address a moment ago,
// and it is announced without probes.
func (p *Port) Add(a netip.Addr, known bool) {
	p.do(func(now time.Time) [][]byte {
		if p.m.entries[a] == nil && a.Is6() {
			if err := p.groups.join(groupOf(a)); err != nil {
				p.log.Warn("neighbors may not find an address", "address", a, "err", err)
			}
		}
		p.m.add(now, a, known)
		return nil
	})
}

// Remove stops answering for an address.
func (p *Port) Remove(a netip.Addr) {
	p.do(func(time.Time) [][]byte {
		if p.m.entries[a] != nil && a.Is6() {
			p.groups.leave(groupOf(a))
		}
		p.m.remove(a)
		return nil
	})
}

// Refresh announces the announced addresses again, for example after the link came up, and probes those in conflict.
func (p *Port) Refresh() {
	p.do(func(now time.Time) [][]byte { p.m.refresh(now); return nil })
}

// SetPassive(true) leaves all addresses to another box, SetPassive(false) takes them over. Before the first call the host that had an address first
// keeps it; from then on the caller's election decides.
func (p *Port) SetPassive(passive bool) {
	p.do(func(now time.Time) [][]byte { p.m.setPassive(now, passive); return nil })
}

// Verify probes an address to check that the other box, which should answer for all addresses, does so. If no host replies,
// Status.Unanswered is set.
func (p *Port) Verify() {
	p.do(func(now time.Time) [][]byte { p.m.verify(now); return nil })
}

// SetMine sets the MAC addresses of this box. Frames from them are no conflict.
func (p *Port) SetMine(macs []MAC) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.m.mine = map[MAC]bool{p.m.own: true}
	for _, mac := range macs {
		p.m.mine[mac] = true
	}
}

// Changed returns the addresses whose state changed since the last call, and those that were removed since.
func (p *Port) Changed() (now []Status, gone []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a := range p.m.changed {
		if e := p.m.entries[a]; e != nil {
			now = append(now, e.Status)
		} else {
			gone = append(gone, a)
		}
	}
	clear(p.m.changed)
	return now, gone
}

// Counters returns the counters of frames since Open.
func (p *Port) Counters() Counters {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.m.Counters
}

// groupsOfSocket is the maximum number of group memberships of one socket. The kernel charges memberships to the socket's option memory,
// limited by net.core.optmem_max: 128 KiB hold 2,340 memberships; before Linux 6.7 the limit was 20 KiB.
const groupsOfSocket = 2000

// groups joins the solicited-node multicast groups of an interface and counts their uses: addresses with equal last 24 bits share a group.
// The kernel reports memberships to switches (MLD).
type groups struct {
	index   int // interface index
	uses    map[netip.Addr]int
	member  map[netip.Addr]*groupSocket
	sockets []*groupSocket
}

type groupSocket struct {
	fd, groups int
	full       bool
}

// join adds a use of a group, and joins it on the first one.
func (g *groups) join(group netip.Addr) error {
	g.uses[group]++
	if g.uses[group] > 1 && g.member[group] != nil {
		return nil
	}
	request := &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(g.index)}
	for {
		s, err := g.socket()
		if err != nil {
			return err
		}
		err = unix.SetsockoptIPv6Mreq(s.fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, request)
		if errors.Is(err, unix.ENOMEM) && s.groups > 0 { // option memory, less than expected
			s.full = true
			continue
		}
		if err != nil {
			return fmt.Errorf("join the multicast group %s: %w", group, err)
		}
		s.groups++
		g.member[group] = s
		return nil
	}
}

// socket returns a socket with room for another membership; it opens one if need be.
func (g *groups) socket() (*groupSocket, error) {
	for _, s := range g.sockets {
		if !s.full && s.groups < groupsOfSocket {
			return s, nil
		}
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket for multicast groups: %w", err)
	}
	s := &groupSocket{fd: fd}
	g.sockets = append(g.sockets, s)
	return s, nil
}

// leave removes a use of a group, and leaves it after the last one.
func (g *groups) leave(group netip.Addr) {
	if g.uses[group]--; g.uses[group] > 0 {
		return
	}
	delete(g.uses, group)
	if s := g.member[group]; s != nil {
		delete(g.member, group)
		s.groups--
		s.full = false
		request := &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(g.index)}
		_ = unix.SetsockoptIPv6Mreq(s.fd, unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP, request) // the interface may be gone, and the membership with it
	}
}

// maxFilterBits limits the number of prefixes in a BPF program, times the bits of their addresses: 64 of IPv4, or 16 of IPv6. The kernel charges a
// program to the socket's option memory, and programs near 20 KiB are refused (see groupsOfSocket): they have 18 prefixes of IPv6. With more
// prefixes the program passes all frames.
const maxFilterBits = 64 * 32

// Offsets of fields in an Ethernet frame, in bytes.
const (
	offEtherType  = 12
	offARPSender  = etherLen + 14
	offARPTarget  = etherLen + 24
	offNextHeader = etherLen + 6
	offHopLimit   = etherLen + 7
	offSource     = etherLen + 8
	offICMPType   = etherLen + ipv6Len
	offNDPTarget  = etherLen + ipv6Len + 8
)

// snapLen is the largest number of bytes of a frame that are read.
const snapLen = 2048

// condition compares the 32-bit word at an offset of a frame, under a mask, with a value.
type condition struct{ offset, mask, value uint32 }

// filter returns a classic BPF program (bpf(7)) that passes packets about addresses in the prefixes: ARP packets or, if v6 is set, neighbor
// solicitations and advertisements.
func filter(prefixes []netip.Prefix, v6 bool) ([]bpf.RawInstruction, error) {
	var of []netip.Prefix
	for _, p := range prefixes {
		if p.Addr().Is6() == v6 {
			of = append(of, p.Masked())
		}
	}
	common, at := []condition{{offEtherType - 2, 0xffff, etherARP}}, []uint32{offARPTarget, offARPSender}
	if v6 {
		common = []condition{
			{offEtherType - 2, 0xffff, etherIPv6}, {offNextHeader - 3, 0xff, protoICMPv6}, {offHopLimit - 3, 0xff, hopLimit},
			{offICMPType, 0xf0 << 24, solicitation & 0xf0 << 24}, // both types, and some that are rare with this hop limit
		}
		at = []uint32{offNDPTarget, offSource}
	}
	if len(of) > 0 && len(of)*of[0].Addr().BitLen() > maxFilterBits {
		of = []netip.Prefix{netip.PrefixFrom(of[0].Addr(), 0).Masked()}
	}
	var program []bpf.Instruction
	compare := func(c condition, test bpf.JumpTest, skip int) {
		program = append(program,
			bpf.LoadAbsolute{Off: c.offset, Size: 4},
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: c.mask},
			bpf.JumpIf{Cond: test, Val: c.value, SkipTrue: uint8(skip)})
	}
	for _, c := range common {
		compare(c, bpf.JumpEqual, 1)
		program = append(program, bpf.RetConstant{Val: 0})
	}
	for _, p := range of {
		for _, offset := range at {
			all := inPrefix(offset, p)
			for i, c := range all {
				compare(c, bpf.JumpNotEqual, 3*(len(all)-i-1)+1) // behind the end of these conditions
			}
			program = append(program, bpf.RetConstant{Val: snapLen})
		}
	}
	return bpf.Assemble(append(program, bpf.RetConstant{Val: 0}))
}

// inPrefix returns the conditions that hold for a frame with an address of the prefix at offset.
func inPrefix(offset uint32, p netip.Prefix) (all []condition) {
	words := p.Addr().AsSlice()
	for left := p.Bits(); left > 0; left -= 32 {
		mask := ^uint32(0)
		if left < 32 {
			mask <<= 32 - left
		}
		all = append(all, condition{offset, mask, binary.BigEndian.Uint32(words) & mask})
		words, offset = words[4:], offset+4
	}
	return all
}
