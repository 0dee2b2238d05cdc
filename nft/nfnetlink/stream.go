package nfnetlink

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// streamBuffer holds the longest datagram of a multicast group, in bytes: one message.
const streamBuffer = 1 << 14

// Stream receives messages of multicast groups, a datagram at a time.
type Stream struct {
	file     *os.File
	raw      syscall.RawConn
	datagram []byte
	closed   atomic.Bool
}

// OpenStream joins groups in the network namespace of Options. buffer is as in Listen; the kernel leaves
// out the messages that filter (nil: none) drops.
func OpenStream(o Options, filter []bpf.RawInstruction, buffer int, groups ...uint32) (*Stream, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: o.NetNS})
	if err != nil {
		return nil, err
	}
	if filter != nil {
		err = conn.SetBPF(filter)
	}
	err = errors.Join(err, conn.SetReadBuffer(buffer))
	for _, group := range groups {
		err = errors.Join(err, conn.JoinGroup(group))
	}
	var fd int
	if err == nil {
		fd, err = dupBlocking(conn)
	}
	if err = errors.Join(err, conn.Close()); err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	s := &Stream{file: os.NewFile(uintptr(fd), "netlink"), datagram: make([]byte, streamBuffer)}
	if s.raw, err = s.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	return s, nil
}

// Join joins another group.
func (s *Stream) Join(group uint32) error { return s.member(unix.NETLINK_ADD_MEMBERSHIP, group) }

// Leave leaves a group.
func (s *Stream) Leave(group uint32) error { return s.member(unix.NETLINK_DROP_MEMBERSHIP, group) }

func (s *Stream) member(option int, group uint32) (err error) {
	outer := s.raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, option, int(group))
	})
	return errors.Join(outer, err)
}

// Wait returns when Receive has something to say, and os.ErrClosed when the Stream is closed.
func (s *Stream) Wait() error {
	err := s.raw.Read(func(fd uintptr) bool {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return ready > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
	if err != nil && s.closed.Load() {
		return os.ErrClosed // the poller has an error of its own for it
	}
	return err
}

// Receive returns the next datagram, valid until the next call: ErrNoMessage when there is none, ENOBUFS
// once when some were lost.
func (s *Stream) Receive() (datagram []byte, err error) {
	var n int
	if outer := s.raw.Control(func(fd uintptr) {
		for {
			if n, err = unix.Read(int(fd), s.datagram); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}); outer != nil {
		return nil, outer
	}
	if errors.Is(err, unix.EAGAIN) {
		return nil, ErrNoMessage
	}
	if err != nil {
		return nil, err
	}
	return s.datagram[:n], nil
}

// meminfoDrops is the index of sk_drops in the answer of SO_MEMINFO (linux/sock_diag.h SK_MEMINFO_DROPS), which has
// so many numbers (SK_MEMINFO_VARS).
const (
	meminfoDrops = 8
	meminfoVars  = 9
)

// Drops counts the messages that found no room since the Stream was opened (SO_MEMINFO, kernel 4.12).
func (s *Stream) Drops() (drops uint32, err error) {
	var info [meminfoVars]uint32
	size := uint32(unsafe.Sizeof(info))
	outer := s.raw.Control(func(fd uintptr) {
		if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&size)), 0); errno != 0 {
			err = errno
		}
	})
	return info[meminfoDrops], errors.Join(outer, err)
}

// Close ends a Wait.
func (s *Stream) Close() error {
	s.closed.Store(true)
	return s.file.Close()
}
