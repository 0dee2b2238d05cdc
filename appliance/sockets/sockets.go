package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Socket is one that takes connections or datagrams from anybody.
type Socket struct {
	Protocol string // "tcp" or "udp"
	// Local is where it listens; the unspecified address stands for all of its family.
	Local netip.AddrPort
	// BothFamilies says that the unspecified IPv6 address stands for IPv4 too.
	BothFamilies bool

	inode uint32
}

// String is "tcp 0.0.0.0:80".
func (s Socket) String() string { return s.Protocol + " " + s.Local.String() }

// Covers reports whether what is sent to an address and port of the box comes to the socket.
func (s Socket) Covers(at netip.AddrPort) bool {
	local := s.Local.Addr()
	switch {
	case s.Local.Port() != at.Port():
		return false
	case local.IsUnspecified():
		return local.Is4() == at.Addr().Is4() || s.BothFamilies
	}
	return local == at.Addr()
}

// The kinds of sockets that listen: TCP's in state LISTEN, and UDP's that are bound and not
// connected, which the kernel calls CLOSE.
var kinds = []struct {
	name            string
	protocol, state uint8
}{
	{"tcp", unix.IPPROTO_TCP, unix.BPF_TCP_LISTEN},
	{"udp", unix.IPPROTO_UDP, unix.BPF_TCP_CLOSE},
}

// Listening lists the sockets of the calling thread's network namespace that listen,
// without those of this process. Where the kernel cannot tell about a protocol, which
// takes a module (tcp_diag, udp_diag), none of it are listed.
func Listening() ([]Socket, error) {
	all, err := listening()
	if err != nil {
		return nil, err
	}
	own, err := inodesOf("self")
	if err != nil {
		return nil, fmt.Errorf("list the sockets of this process: %w", err)
	}
	return slices.DeleteFunc(all, func(s Socket) bool { return slices.Contains(own, s.inode) }), nil
}

func listening() ([]Socket, error) {
	var all []Socket
	for _, kind := range kinds {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
			request.AddData(diagRequest{family, kind.protocol, 1 << kind.state})
			messages, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
			switch {
			case errors.Is(err, unix.ENOENT): // no such module
			case err != nil && !errors.Is(err, netlink.ErrDumpInterrupted):
				return nil, fmt.Errorf("list the %s sockets that listen: %w", kind.name, err)
			}
			for _, m := range messages {
				if s, ok := parse(m); ok {
					s.Protocol = kind.name
					all = append(all, s)
				}
			}
		}
	}
	return all, nil
}

// diagRequest is struct inet_diag_req_v2 (linux/inet_diag.h): all sockets of a family and
// protocol in some states.
type diagRequest struct {
	family, protocol uint8
	states           uint32
}

const (
	diagRequestSize = 56
	diagMessageSize = 72 // struct inet_diag_msg, before its attributes
)

// Len implements nl.NetlinkRequestData.
func (diagRequest) Len() int { return diagRequestSize }

// Serialize implements nl.NetlinkRequestData.
func (r diagRequest) Serialize() []byte {
	b := make([]byte, diagRequestSize)
	b[0], b[1] = r.family, r.protocol
	binary.NativeEndian.PutUint32(b[4:], r.states)
	return b
}

// attrSKV6Only is INET_DIAG_SKV6ONLY (kernel 3.11): a byte that is 1 when the socket does
// without IPv4. Sockets of IPv6 that listen always have it.
const attrSKV6Only = 11

// parse reads struct inet_diag_msg: family, state, timer and retransmissions, a byte each;
// the local port; the remote port; both addresses, of 16 bytes; and further on the inode.
func parse(b []byte) (Socket, bool) {
	if len(b) < diagMessageSize {
		return Socket{}, false
	}
	addr := netip.AddrFrom4([4]byte(b[8:12]))
	if b[0] == unix.AF_INET6 {
		addr = netip.AddrFrom16([16]byte(b[8:24])).Unmap()
	}
	s := Socket{
		Local: netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[4:])),
		inode: binary.NativeEndian.Uint32(b[68:]),
	}
	if addr.Is6() && addr.IsUnspecified() {
		value, given := attribute(b[diagMessageSize:], attrSKV6Only)
		s.BothFamilies = given && value == 0
	}
	return s, s.Local.Port() != 0
}

// attribute is the first byte of an attribute (struct nlattr: length with its header,
// type; then the value, padded to a multiple of 4).
func attribute(b []byte, wanted uint16) (value byte, given bool) {
	const header = 4
	for len(b) >= header {
		length := int(binary.NativeEndian.Uint16(b))
		if length < header || length > len(b) {
			break
		}
		if binary.NativeEndian.Uint16(b[2:]) == wanted && length > header {
			return b[header], true
		}
		b = b[min(len(b), (length+3)&^3):]
	}
	return 0, false
}
