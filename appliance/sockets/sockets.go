package sockets

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// Socket is a TCP socket that listens, or a UDP socket that is bound but not connected.
type Socket struct {
	Protocol string // "tcp" or "udp"
	// Local is the address and port that it is bound to. The unspecified address stands for all addresses of its family.
	Local netip.AddrPort
	// BothFamilies is set when the socket is bound to the unspecified IPv6 address and accepts IPv4 too.
	BothFamilies bool

	inode  uint32
	cookie uint64 // the kernel's socket cookie, which is never reused
}

// String returns a text such as "tcp 0.0.0.0:80".
func (s Socket) String() string { return s.Protocol + " " + s.Local.String() }

// Covers reports whether the socket receives packets to an address and port of the box.
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

// Compare orders sockets by protocol and address. Sockets at the same address, such as those of a server's workers, are ordered by the kernel's
// socket cookie.
func (s Socket) Compare(other Socket) int {
	return cmp.Or(cmp.Compare(s.Protocol, other.Protocol), s.Local.Compare(other.Local), cmp.Compare(s.cookie, other.cookie))
}

// kind is a transport protocol with the kernel state of its listening sockets.
type kind struct {
	name            string
	protocol, state uint8
}

// kinds are the listening sockets: TCP sockets in state LISTEN, and UDP sockets that are bound but not connected, for which the kernel reports state
// CLOSE.
var kinds = [...]kind{
	{"tcp", unix.IPPROTO_TCP, unix.BPF_TCP_LISTEN},
	{"udp", unix.IPPROTO_UDP, unix.BPF_TCP_CLOSE},
}

// maxJudged is the maximum number of sockets in the cache of a View.
const maxJudged = 4096

// View lists the listening sockets of other programs. It caches which sockets belong to this process: to find out, it must read all file descriptors
// of the process, of which there may be thousands. It is safe for concurrent use.
type View struct {
	mu     sync.Mutex
	judged map[uint64]bool // whether a socket belongs to this process, by its cookie
}

// NewView returns a View with an empty cache.
func NewView() *View { return &View{judged: map[uint64]bool{}} }

// Listening returns the sockets in the calling thread's network namespace that listen on one of ports, except those of this process. It returns none
// of a protocol for which the kernel lacks the module (tcp_diag, udp_diag). The kernel filters by the lowest and the highest port, so the call is
// cheap on hosts with many sockets elsewhere.
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

// judge determines which of the sockets belong to this process, and caches the results.
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

// request asks the kernel for the sockets of a kind and family whose local ports are from first to last. It returns one message for each socket: a
// struct inet_diag_msg with attributes.
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

// between returns the INET_DIAG bytecode that accepts local ports from first to last. It consists of two comparisons. Each is a struct
// inet_diag_bc_op (linux/inet_diag.h), followed by a second one that holds the port. The fields yes and no are byte offsets to the next operation.
// The offset of the end of the filter accepts the socket; a larger one rejects it.
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

// diagRequest is struct inet_diag_req_v2 (linux/inet_diag.h): a request for all sockets of a family and protocol in a set of states.
type diagRequest struct {
	family, protocol uint8
	states           uint32
}

const (
	diagRequestSize = 56
	diagMessageSize = 72 // size of struct inet_diag_msg without attributes
	diagPort        = 4  // offset of the local port in it
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

// attrSKV6Only is INET_DIAG_SKV6ONLY (Linux 3.11): a byte that is 1 if the socket does not accept IPv4. The kernel always sends it for listening IPv6
// sockets.
const attrSKV6Only = 11

// parse decodes struct inet_diag_msg: family, state, timer and retransmissions, one byte each; the local port; the remote port; both addresses, 16
// bytes each; the interface; the cookie, in two halves; and at a later offset the inode. It reports false if b is too short or the local port is 0.
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
		s.BothFamilies = bytes.Equal(nfnetlink.Attribute(b[diagMessageSize:], attrSKV6Only), []byte{0})
	}
	return s, s.Local.Port() != 0
}

// closedGroups holds the multicast groups of NETLINK_SOCK_DIAG for destroyed sockets (enum sknetlink_groups, linux/sock_diag.h; Linux 4.4): for each
// of kinds, the groups for IPv4 and IPv6.
var closedGroups = [len(kinds)][2]int{{1, 3}, {2, 4}}

// Closed signals that sockets were closed. It should be open only while needed: it makes the kernel generate a message for each TCP or UDP socket of
// the host that is destroyed.
type Closed struct {
	// C receives a value after a socket with one of the ports was closed. Several closed sockets may cause one value.
	C    chan struct{}
	file *os.File
}

// WatchClosed signals closed sockets with one of these local ports, until Close is called. It requires CAP_NET_ADMIN.
func WatchClosed(ports *Ports) (*Closed, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("watch sockets that are closed: %w", err)
	}
	c := &Closed{C: make(chan struct{}, 1), file: os.NewFile(uintptr(fd), "sock_diag")}
	if err := subscribe(fd, ports); err != nil {
		return nil, errors.Join(fmt.Errorf("watch sockets that are closed: %w", err), c.file.Close())
	}
	wanted := *ports
	go c.read(&wanted)
	return c, nil
}

func subscribe(fd int, ports *Ports) error {
	filter := portFilter(ports)
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for i := range kinds {
		if ports.n[i] == 0 {
			continue
		}
		for _, group := range closedGroups[i] {
			if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); err != nil {
				return err
			}
		}
	}
	return nil
}

// portFilter returns a BPF filter that drops messages about local ports outside the range of the wanted ports before they are queued.
func portFilter(ports *Ports) []unix.SockFilter {
	first, last := uint16(1<<16-1), uint16(0)
	for i := range kinds {
		if low, high, ok := ports.bounds(i); ok {
			first, last = min(first, low), max(last, high)
		}
	}
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: unix.NLMSG_HDRLEN + diagPort},
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: uint32(first), Jf: 2},
		{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, K: uint32(last), Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1}, // all of it
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},         // nothing of it
	}
}

// read reads messages from the netlink socket until it is closed. It signals on c.C if a socket with one of ports was closed, or if messages were
// lost.
func (c *Closed) read(ports *Ports) {
	buf := make([]byte, 4096)
	for {
		switch n, err := c.file.Read(buf); {
		case errors.Is(err, unix.ENOBUFS): // messages were lost: the state is unknown
		case err != nil:
			return
		case !concerns(buf[:n], ports):
			continue
		}
		task.Wake(c.C)
	}
}

// concerns reports whether the local port in a message is one of ports, for any protocol. The message is a struct nlmsghdr followed by a struct
// inet_diag_msg.
func concerns(message []byte, ports *Ports) bool {
	if len(message) < unix.NLMSG_HDRLEN+diagPort+2 {
		return false
	}
	port := binary.BigEndian.Uint16(message[unix.NLMSG_HDRLEN+diagPort:])
	for i := range kinds {
		if ports.has(i, port) {
			return true
		}
	}
	return false
}

// Close ends the watch.
func (c *Closed) Close() error { return c.file.Close() }

// Owner returns the program that a socket belongs to, as "nginx (pid 812)", or "" if it cannot be determined. It needs permission to read processes
// of other users (CAP_SYS_PTRACE) and the same PID namespace. It reads all processes, so it is slow.
func Owner(s Socket) string {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return ""
	}
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		// A process that is gone, or that may not be looked at, is not the one.
		if inodes, err := inodesOf(p.Name()); err == nil && slices.Contains(inodes, s.inode) {
			name, _ := os.ReadFile(filepath.Join("/proc", p.Name(), "comm"))
			return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), p.Name())
		}
	}
	return ""
}

// inodesOf returns the inode numbers of the sockets that a process has open.
func inodesOf(process string) ([]uint32, error) {
	dir := filepath.Join("/proc", process, "fd")
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var inodes []uint32
	for _, f := range files {
		target, err := os.Readlink(filepath.Join(dir, f.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		number, is := strings.CutPrefix(target, "socket:[")
		if n, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 32); is && err == nil {
			inodes = append(inodes, uint32(n))
		}
	}
	return inodes, nil
}

// Ports is a set of TCP and UDP ports. The zero value is empty. It is a value of 16 KiB: copies are independent.
type Ports struct {
	sets [len(kinds)][1 << 16 / 64]uint64 // one bit for each port
	n    [len(kinds)]int
}

// indexOf returns the index of a protocol ("tcp", "udp") in kinds; -1 for others.
func indexOf(protocol string) int {
	return slices.IndexFunc(kinds[:], func(k kind) bool { return k.name == protocol })
}

// Add adds a port of a protocol, "tcp" or "udp". Other protocols are ignored.
func (p *Ports) Add(protocol string, port uint16) {
	if i := indexOf(protocol); i >= 0 && !p.has(i, port) {
		p.sets[i][port/64] |= 1 << (port % 64)
		p.n[i]++
	}
}

// AddRange adds the ports from first to last of a protocol.
func (p *Ports) AddRange(protocol string, first, last uint16) {
	for port := int(first); port <= int(last); port++ {
		p.Add(protocol, uint16(port))
	}
}

// Remove removes a port of a protocol.
func (p *Ports) Remove(protocol string, port uint16) {
	if i := indexOf(protocol); i >= 0 && p.has(i, port) {
		p.sets[i][port/64] &^= 1 << (port % 64)
		p.n[i]--
	}
}

// Has reports whether a port of a protocol is in the set.
func (p *Ports) Has(protocol string, port uint16) bool {
	i := indexOf(protocol)
	return i >= 0 && p.has(i, port)
}

// Empty reports whether the set is empty.
func (p *Ports) Empty() bool { return p.n == [len(kinds)]int{} }

func (p *Ports) has(i int, port uint16) bool { return p.sets[i][port/64]&(1<<(port%64)) != 0 }

// bounds returns the lowest and the highest port for the kind with index i in kinds; ok is false if it has none.
func (p *Ports) bounds(i int) (first, last uint16, ok bool) {
	if p.n[i] == 0 {
		return 0, 0, false
	}
	port := 0
	for !p.has(i, uint16(port)) {
		port++
	}
	first = uint16(port)
	for port = 1<<16 - 1; !p.has(i, uint16(port)); port-- {
	}
	return first, uint16(port), true
}
