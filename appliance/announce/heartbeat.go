package announce

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/announce/vrrp"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/task"
)

// heartbeat sends and receives the adverts of one link.
type heartbeat struct {
	conn net.PacketConn
	raw  syscall.RawConn // of conn
	link node.Link
	own  netip.Addr // the source of our adverts
	stop context.CancelFunc
}

// source returns the address of a link that adverts come from: an IPv4 address with a network, else the
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

// open begins to receive adverts on a link.
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

// onlyAdverts returns a program (bpf(7), classic) that passes VRRP alone: all traffic of a link would fill the socket, and
// adverts be lost.
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

// groupMAC returns the Ethernet address of a group (RFC 1112, RFC 2464).
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
			if !task.Sleep(ctx, 100*time.Millisecond) {
				return
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

// receive passes the adverts that wait on a link to the machine, and returns those to send.
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

// The lengths of headers.
const (
	etherLen = 14
	ipv4Len  = 20
	ipv6Len  = 40
)

// parseAdvert decodes a frame; false when it is no valid advert, or passed a router.
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

// advert returns a frame with an advert.
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

// send sends a frame, or drops it: a link that is down takes nothing, and none that is full holds up the others.
func (h *heartbeat) send(frame []byte) {
	_ = h.raw.Control(func(fd uintptr) { _, _ = unix.Write(int(fd), frame) })
}
