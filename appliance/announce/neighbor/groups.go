package neighbor

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// groupsOfSocket bounds the memberships of one socket: the kernel charges them to its option memory
// (net.core.optmem_max, 128 KiB, room for 2,340; 20 KiB before Linux 6.7).
const groupsOfSocket = 2000

// groups counts the uses of joined multicast groups of an interface: addresses share a group when
// their last 24 bits are equal. The kernel reports memberships to switches (MLD).
type groups struct {
	index   int // of the interface
	uses    map[netip.Addr]int
	member  map[netip.Addr]*groupSocket
	sockets []*groupSocket
}

type groupSocket struct {
	fd, groups int
	full       bool
}

func newGroups(index int) *groups {
	return &groups{index: index, uses: map[netip.Addr]int{}, member: map[netip.Addr]*groupSocket{}}
}

// join counts one more use of a group.
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

// socket returns a socket with room for a membership.
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

// leave ends one use of a group.
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
