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

// Peer is who is at the other end of a unix socket, as the kernel tells: as of when it
// connected, whatever became of the process since.
type Peer struct {
	PID      int32
	UID, GID uint32
	Groups   []uint32 // supplementary ones (SO_PEERGROUPS, Linux 4.13)
}

// PeerOf asks the kernel; false when the connection is no unix socket.
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

// maxGroups is how many supplementary groups a process can have (NGROUPS_MAX).
const maxGroups = 65536

// peerGroups are the supplementary groups of the peer of a unix socket; none when the kernel
// does not tell. /proc would tell those of whoever has the process id by now.
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
		case errno == syscall.ERANGE && have > n: // it says how much room it needs
			n = have
		default:
			return nil
		}
	}
	return nil
}

// Local tells what the users of this box may do over the unix socket. The zero Local
// knows no group: root and the user that the appliance runs as may do everything, and whom
// the mode of the socket lets in besides may read.
type Local struct {
	group   uint32
	grouped bool
}

// LocalGroup is a Local with a group whose members may do everything.
func LocalGroup(gid uint32) Local { return Local{group: gid, grouped: true} }

// LookupGroup is the number of a group of this box, given by its name or its number.
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

// noGroup is what chown(2) takes for "leave it".
const noGroup = 1<<32 - 1

// User is who is at the other end of a socket, and what they may do.
func (l Local) User(p Peer) User {
	name := "uid:" + strconv.FormatUint(uint64(p.UID), 10)
	if p.UID == 0 {
		name = "root"
	}
	if p.UID == 0 || int(p.UID) == os.Geteuid() || l.grouped && (p.GID == l.group || slices.Contains(p.Groups, l.group)) {
		return newUser(name, Admin)
	}
	return newUser(name, Reader)
}
