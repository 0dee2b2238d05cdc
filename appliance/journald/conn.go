package journald

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is the journal's socket for entries.
const Socket = "/run/systemd/journal/socket"

// IsStderr reports whether stderr is a stream of the journal, which takes more than lines (JOURNAL_STREAM,
// systemd.exec(5)).
func IsStderr() bool {
	var stat unix.Stat_t
	if err := unix.Fstat(2, &stat); err != nil {
		return false
	}
	return os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}

// Append adds a field to an entry. Names are of capitals, digits and underscores.
func Append(entry []byte, name, value string) []byte {
	entry = append(entry, name...)
	if !strings.Contains(value, "\n") {
		entry = append(entry, '=')
		entry = append(entry, value...)
	} else {
		entry = append(entry, '\n')
		entry = binary.LittleEndian.AppendUint64(entry, uint64(len(value)))
		entry = append(entry, value...)
	}
	return append(entry, '\n')
}

// patience bounds the wait for a journal that reads nothing, as while it restarts. The entry is lost after that.
const patience = 10 * time.Second

// Conn sends entries. Its methods may be called concurrently.
type Conn struct {
	path string
	mu   sync.Mutex
	conn *net.UnixConn // nil: not connected
}

// NewConn sends to a socket, which it connects to when there is something to send.
func NewConn(path string) *Conn { return &Conn{path: path} }

// Write sends one entry.
func (c *Conn) Write(entry []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		if c.conn, err = net.DialUnix("unixgram", nil, &net.UnixAddr{Name: c.path, Net: "unixgram"}); err != nil {
			return 0, fmt.Errorf("connect to the journal: %w", err)
		}
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(patience))
	_, err = c.conn.Write(entry)
	if errors.Is(err, syscall.EMSGSIZE) || errors.Is(err, syscall.ENOBUFS) {
		err = c.sendFile(entry)
	}
	if err != nil {
		_ = c.conn.Close() // the journal may have been restarted
		c.conn = nil
		return 0, fmt.Errorf("write to the journal: %w", err)
	}
	return len(entry), nil
}

// sendFile sends an entry that is too long for a datagram as a sealed file.
func (c *Conn) sendFile(entry []byte) error {
	fd, err := unix.MemfdCreate("journal-entry", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "journal-entry")
	defer f.Close()
	if _, err := f.Write(entry); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE); err != nil {
		return err
	}
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return err
	}
	rights := unix.UnixRights(int(f.Fd()))
	outer := raw.Write(func(fd uintptr) bool {
		err = unix.Sendmsg(int(fd), nil, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		return !errors.Is(err, unix.EAGAIN)
	})
	return errors.Join(outer, err)
}
