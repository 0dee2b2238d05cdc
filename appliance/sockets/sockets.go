package sockets

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/node"
)

// Socket is a socket that takes connections or datagrams from any peer.
type Socket struct {
	Protocol string // "tcp" or "udp"
	// Local is the address that it listens on; the unspecified address stands for all of its
	// family.
	Local netip.AddrPort
	// BothFamilies is set when the unspecified IPv6 address accepts IPv4 too.
	BothFamilies bool

	inode  uint32
	cookie uint64 // unique among all sockets there ever were
}

// String is "tcp 0.0.0.0:80".
func (s Socket) String() string { return s.Protocol + " " + s.Local.String() }

// Covers reports whether packets to an address and port of the box come to the socket.
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

// Compare orders sockets by where they listen, and those that listen at the same place, as workers of a
// server do, in an order that does not change.
func (s Socket) Compare(other Socket) int {
	return cmp.Or(cmp.Compare(s.Protocol, other.Protocol), s.Local.Compare(other.Local), cmp.Compare(s.cookie, other.cookie))
}

// kind is a protocol, and the state that its sockets are in when they listen.
type kind struct {
	name            string
	protocol, state uint8
}

// The kinds of sockets that listen: TCP's in state LISTEN, and UDP's that are bound and not
// connected, which the kernel calls CLOSE.
var kinds = [...]kind{
	{"tcp", unix.IPPROTO_TCP, unix.BPF_TCP_LISTEN},
	{"udp", unix.IPPROTO_UDP, unix.BPF_TCP_CLOSE},
}

// maxJudged bounds what a View remembers.
const maxJudged = 4096

// View lists the sockets of other programs. It remembers which are this process's own, so that it
// looks for those among its descriptors, of which there may be thousands, once for each socket. It
// may be used by several at a time.
type View struct {
	mu     sync.Mutex
	judged map[uint64]bool // whether the socket is our own, by its cookie
}

// NewView is a View that has seen nothing yet.
func NewView() *View { return &View{judged: map[uint64]bool{}} }

// Listening lists the sockets of the calling thread's network namespace that listen on one of these
// ports, without those of this process. Without the kernel's module for a protocol
// (tcp_diag, udp_diag), none of it are listed. The kernel sends those between the
// lowest and the highest port, so it is cheap on hosts with many sockets elsewhere.
func (v *View) Listening(ports *Ports) ([]Socket, error) {
	all, err := listening(ports)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.judge(all); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s Socket) bool { return v.judged[s.cookie] }), nil
}

// judge finds out which of the sockets are our own.
func (v *View) judge(all []Socket) error {
	known := func(s Socket) bool { _, known := v.judged[s.cookie]; return known }
	if !slices.ContainsFunc(all, func(s Socket) bool { return !known(s) }) {
		return nil
	}
	if len(v.judged) > maxJudged {
		clear(v.judged)
	}
	own, err := inodesOf("self")
	if err != nil {
		return fmt.Errorf("list the sockets of this process: %w", err)
	}
	for _, s := range all {
		if !known(s) {
			v.judged[s.cookie] = slices.Contains(own, s.inode)
		}
	}
	return nil
}

func listening(ports *Ports) ([]Socket, error) {
	var all []Socket
	for i, kind := range kinds {
		first, last, ok := ports.bounds(i)
		if !ok {
			continue
		}
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			messages, err := request(kind, family, first, last)
			switch {
			case errors.Is(err, unix.ENOENT): // no such module
			case err != nil && !errors.Is(err, netlink.ErrDumpInterrupted):
				return nil, fmt.Errorf("list the %s sockets that listen: %w", kind.name, err)
			}
			for _, m := range messages {
				if s, ok := parse(m); ok && ports.has(i, s.Local.Port()) {
					s.Protocol = kind.name
					all = append(all, s)
				}
			}
		}
	}
	return all, nil
}

// request asks the kernel for the sockets of a kind and family with ports from first to last. Each
// message is a struct inet_diag_msg with attributes.
func request(kind kind, family uint8, first, last uint16) ([][]byte, error) {
	return node.Try(func() ([][]byte, error) {
		r := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		r.AddData(diagRequest{family, kind.protocol, 1 << kind.state})
		r.AddData(nl.NewRtAttr(attrBytecode, between(first, last)))
		return r.Execute(unix.NETLINK_INET_DIAG, 0)
	})
}

// attrBytecode is INET_DIAG_REQ_BYTECODE: a filter that the kernel applies to each socket.
const attrBytecode = 1

// between is the filter for local ports from first to last: two comparisons of struct
// inet_diag_bc_op (linux/inet_diag.h), each with its operand in a second one. yes and no are
// where to go on, in bytes; the end of the filter takes the socket, beyond it leaves it out.
func between(first, last uint16) []byte {
	const (
		size         = 4 // of struct inet_diag_bc_op: code, yes, no
		greaterEqual = 2 // INET_DIAG_BC_S_GE
		lessEqual    = 3 // INET_DIAG_BC_S_LE
	)
	var b []byte
	op := func(code, yes uint8, no uint16) {
		b = append(b, code, yes)
		b = binary.NativeEndian.AppendUint16(b, no)
	}
	op(greaterEqual, 2*size, 5*size)
	op(0, 0, first)
	op(lessEqual, 2*size, 3*size)
	op(0, 0, last)
	return b
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
	diagPort        = 4  // where the local port is in it
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
// the local port; the remote port; both addresses, of 16 bytes; the interface; the cookie, in two
// halves; and further on the inode.
func parse(b []byte) (Socket, bool) {
	if len(b) < diagMessageSize {
		return Socket{}, false
	}
	addr := netip.AddrFrom4([4]byte(b[8:12]))
	if b[0] == unix.AF_INET6 {
		addr = netip.AddrFrom16([16]byte(b[8:24])).Unmap()
	}
	s := Socket{
		Local:  netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[diagPort:])),
		inode:  binary.NativeEndian.Uint32(b[68:]),
		cookie: uint64(binary.NativeEndian.Uint32(b[48:]))<<32 | uint64(binary.NativeEndian.Uint32(b[44:])),
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
