package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The multicast groups of NETLINK_SOCK_DIAG for sockets that were destroyed (enum
// sknetlink_groups, linux/sock_diag.h; kernel 4.4), by the index in kinds: of IPv4 and IPv6.
var closedGroups = [len(kinds)][2]int{{1, 3}, {2, 4}}

// Closed notifies of closed sockets. Keep one only while it is needed: the kernel then makes a
// message of every TCP or UDP connection of the host that ends.
type Closed struct {
	// C has a value when a socket with one of the ports was closed since one was taken from it.
	C    chan struct{}
	file *os.File
}

// WatchClosed watches sockets with one of these local ports, until Close. It takes CAP_NET_ADMIN.
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

// portFilter keeps messages about ports that are surely not wanted out of the queue of the
// socket: those below the lowest and above the highest.
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

// read reads messages until the socket is closed.
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
		select {
		case c.C <- struct{}{}:
		default:
		}
	}
}

// concerns reports whether a message, of struct nlmsghdr and struct inet_diag_msg, is about one of
// the ports. It does not say of which protocol.
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

// Owner is the program that a socket belongs to, "nginx (pid 812)", or "" when it cannot
// be seen: that takes the right to look into other users' processes (CAP_SYS_PTRACE), and
// the same PID namespace. It goes through all processes, so it is for few sockets.
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

// Ports are ports of TCP and UDP. The zero value has none. It is a value of 16 KiB: copies are
// independent.
type Ports struct {
	sets [len(kinds)][1 << 16 / 64]uint64 // a bit for each port
	n    [len(kinds)]int
}

// indexOf gives the index of a protocol ("tcp", "udp") in kinds; -1: it is none of them.
func indexOf(protocol string) int {
	return slices.IndexFunc(kinds[:], func(k kind) bool { return k.name == protocol })
}

// Add adds a port of a protocol, "tcp" or "udp". Any other protocol has no ports here.
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

// Has reports whether a port of a protocol is among them.
func (p *Ports) Has(protocol string, port uint16) bool {
	i := indexOf(protocol)
	return i >= 0 && p.has(i, port)
}

// Empty reports whether there are none.
func (p *Ports) Empty() bool { return p.n == [len(kinds)]int{} }

func (p *Ports) has(i int, port uint16) bool { return p.sets[i][port/64]&(1<<(port%64)) != 0 }

// bounds are the lowest and the highest port of a kind; without any, ok is false.
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
