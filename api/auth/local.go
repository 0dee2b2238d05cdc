package auth

import (
	"fmt"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer identifies the process at the other end of a unix socket, as of when it connected
// (SO_PEERCRED).
type Peer struct {
	PID      int32
	UID, GID uint32
	Groups   []uint32 // supplementary ones (SO_PEERGROUPS, Linux 4.13)
}

// PeerOf asks the kernel for the peer; false if the connection is no unix socket.
func PeerOf(conn net.Conn) (Peer, bool) {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return Peer{}, false
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return Peer{}, false
	}
	var cred *unix.Ucred
	var groups []uint32
	var credErr error
	err = raw.Control(func(fd uintptr) {
		if cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); credErr == nil {
			groups = peerGroups(int(fd))
		}
	})
	if err != nil || credErr != nil {
		return Peer{}, false
	}
	return Peer{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid, Groups: groups}, true
}

// maxGroups is the largest number of supplementary groups of a process (NGROUPS_MAX).
const maxGroups = 65536

// peerGroups returns the supplementary groups of the peer of a unix socket; none if the
// kernel does not support SO_PEERGROUPS. /proc would give those of any process that has
// the process ID by now.
func peerGroups(fd int) []uint32 {
	for n := 64; n <= maxGroups; {
		groups := make([]uint32, n)
		size := uint32(n) * uint32(unsafe.Sizeof(groups[0]))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		have := int(size / uint32(unsafe.Sizeof(groups[0])))
		switch {
		case errno == 0 && have <= n:
			return groups[:have]
		case errno == syscall.ERANGE && have > n: // it returns the size that it needs
			n = have
		default:
			return nil
		}
	}
	return nil
}

// discoverUser is the user of svcctl-discover.service.
const discoverUser = "svcctl-discover"

// Local authorizes local users on the unix socket. Root and the appliance's own user are
// admins, the user svcctl-discover has the role endpoints, and any other user that the mode of the
// socket lets in is a reader. The zero Local has no admin group.
type Local struct {
	group   uint32
	grouped bool
}

// LocalGroup returns a Local with a group whose members are admins.
func LocalGroup(gid uint32) Local { return Local{group: gid, grouped: true} }

// LookupGroup returns the ID of a group of this host, given by name or ID.
func LookupGroup(name string) (uint32, error) {
	text := name
	if g, err := user.LookupGroup(name); err == nil {
		text = g.Gid
	}
	gid, err := strconv.ParseUint(text, 10, 32)
	if err != nil || gid == noGroup {
		return 0, fmt.Errorf("there is no group %q on this box: make it with `groupadd --system %s`, or name another one", name, name)
	}
	return uint32(gid), nil
}

// noGroup is chown(2)'s value for "leave unchanged".
const noGroup = 1<<32 - 1

// User returns the user and role of the peer of a socket.
func (l Local) User(p Peer) User {
	name := "uid:" + strconv.FormatUint(uint64(p.UID), 10)
	if p.UID == 0 {
		name = "root"
	}
	if p.UID == 0 || int(p.UID) == os.Geteuid() || l.grouped && (p.GID == l.group || slices.Contains(p.Groups, l.group)) {
		return newUser(name, Admin)
	}
	if u, err := user.LookupId(strconv.FormatUint(uint64(p.UID), 10)); err == nil && u.Username == discoverUser {
		return newUser(discoverUser, Endpoints)
	}
	return newUser(name, Reader)
}
