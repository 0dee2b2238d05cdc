package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// Store is systemd's store of descriptors for the next process of the unit, at most
// FileDescriptorStoreMax of them. Without systemd nothing is kept.
type Store struct {
	socket string

	mu    sync.Mutex      // held over sends, which do not wait
	drops map[string]bool // names of Drop that systemd did not read yet
}

// NewStore returns the store of the unit of this process.
func NewStore() *Store { return &Store{socket: os.Getenv("NOTIFY_SOCKET")} }

// Keep has a descriptor kept under a name, which has letters, digits, dots and dashes. It never waits: when systemd
// reads nothing, which fails with EAGAIN, the descriptor is not kept.
func (s *Store) Keep(name string, conn syscall.Conn) error {
	s.mu.Lock()
	delete(s.drops, name) // it would take the new one away
	s.mu.Unlock()
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) {
		err = s.send("FDSTORE=1\nFDNAME="+name, unix.UnixRights(int(fd)))
	})
	if err == nil {
		err = failed
	}
	return err
}

// Drop has systemd close what it keeps under a name. It never waits either: while systemd reads nothing, it is tried
// again in the background.
func (s *Store) Drop(name string) error {
	if err := s.send("FDSTOREREMOVE=1\nFDNAME="+name, nil); !errors.Is(err, unix.EAGAIN) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drops == nil {
		s.drops = map[string]bool{}
	}
	if s.drops[name] = true; len(s.drops) == 1 {
		time.AfterFunc(notifyAgain, s.dropAgain)
	}
	return nil
}

// dropAgain sends what Drop could not, and comes back while something is left.
func (s *Store) dropAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.drops {
		if errors.Is(s.send("FDSTOREREMOVE=1\nFDNAME="+name, nil), unix.EAGAIN) { // it does not wait
			break
		}
		delete(s.drops, name)
	}
	if len(s.drops) > 0 {
		time.AfterFunc(notifyAgain, s.dropAgain)
	}
}

// notifyAgain is the interval at which Notify and Drop try a socket that takes nothing.
const notifyAgain = 20 * time.Millisecond

// Notify sends a state of the process (sd_notify(3)) to systemd. While systemd reads nothing, it tries again until ctx is
// done.
func Notify(ctx context.Context, state string) error {
	for {
		err := NewStore().send(state, nil)
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(notifyAgain):
		}
	}
}

func (s *Store) send(message string, rights []byte) error {
	if s.socket == "" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	defer unix.Close(fd)
	// The name of a socket that is no file begins with @, for package unix too.
	if err := unix.Sendmsg(fd, []byte(message), rights, &unix.SockaddrUnix{Name: s.socket}, unix.MSG_DONTWAIT); err != nil {
		return fmt.Errorf("notify systemd: send to %s: %w", s.socket, err)
	}
	return nil
}

// Kept returns the descriptors that systemd kept for this process, by name. A second call returns none.
func Kept() map[string]*os.File {
	kept := map[string]*os.File{}
	for _, f := range activation.Files(true) {
		if before := kept[f.Name()]; before != nil {
			_ = before.Close() // it was kept twice
		}
		kept[f.Name()] = f
	}
	return kept
}
