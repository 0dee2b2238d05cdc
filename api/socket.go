package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	socketDirMode   = 0o750
	socketMode      = 0o660
	openDirMode     = 0o755
	openSocketMode  = 0o666 // to connect is to write
	closedUntilMode = 0o600 // of a socket that gets another group
	// probeTimeout bounds the wait for another server to accept a connection.
	probeTimeout = 2 * time.Second
	// lockPatience bounds the wait for another that starts, which holds the lock for probeTimeout at most.
	lockPatience, lockRetry = 5 * time.Second, 20 * time.Millisecond
)

// ErrInUse is wrapped by the error of Listen when another server answers on the socket.
var ErrInUse = errors.New("another svcctl serves")

// socketAccess has the group and users that may open the socket, in addition to those that
// the appliance runs as. Package auth decides about their requests.
type socketAccess struct {
	group   int // its members, in place of those of the appliance's own group
	grouped bool
	readers bool // all users
}

func (a socketAccess) mode() fs.FileMode {
	if a.readers {
		return openSocketMode
	}
	return socketMode
}

// grant gives the permitted users access to a file or directory of ours with a mode.
func (a socketAccess) grant(path string, mode fs.FileMode) error {
	if info, err := os.Stat(path); err != nil {
		return err
	} else if status, ok := info.Sys().(*syscall.Stat_t); a.grouped && (!ok || int(status.Gid) != a.group) {
		if err := os.Chown(path, -1, a.group); err != nil {
			return fmt.Errorf("%w: the appliance must be root, or a member of the group", err)
		}
	}
	return os.Chmod(path, mode)
}

// barred names the permitted users that cannot open the socket, because its directory is closed to
// them; "" when there are none. The mode of an existing directory is not changed.
func (a socketAccess) barred(path string) string {
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	if err != nil {
		return ""
	}
	status, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode().Perm(); {
	case !ok || mode&0o001 != 0:
		return ""
	case a.readers:
		return fmt.Sprintf("others may not enter %s (mode %04o): run `chmod o+x %s`", dir, mode, dir)
	case a.grouped && (int(status.Gid) != a.group || mode&0o010 == 0):
		return fmt.Sprintf("the group may not enter %s: run `chgrp %d %s && chmod g+x %s`", dir, a.group, dir, dir)
	}
	return ""
}

// makeDir makes the directory of the socket, unless it is there.
func (a socketAccess) makeDir(dir string) error {
	var made []string
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Lstat(d); !errors.Is(err, fs.ErrNotExist) || d == filepath.Dir(d) {
			break
		}
		made = append(made, d)
	}
	if err := os.MkdirAll(dir, socketDirMode); err != nil {
		return err
	}
	if !a.grouped && !a.readers {
		return nil
	}
	mode := fs.FileMode(socketDirMode)
	if a.readers {
		mode = openDirMode
	}
	for _, d := range made {
		if err := a.grant(d, mode); err != nil {
			return err
		}
	}
	return nil
}

// listenUnix makes the socket at path, and its directory when that is missing. A stale socket is
// replaced; one with a listening process is not.
func listenUnix(path string, access socketAccess) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := access.makeDir(dir); err != nil {
		return nil, fmt.Errorf("make the directory of the API socket: %w: run as root, or give another --socket", err)
	}
	unlock, err := lockSocket(path, lockPatience)
	if err != nil {
		return nil, fmt.Errorf("open the API socket: %w", err)
	}
	defer unlock()
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// The mode that a unix socket's descriptor has when it is bound is the mode of the file, less
	// the umask: so no client gets in before the Chmod.
	first := uint32(socketMode)
	if access.grouped {
		first = closedUntilMode
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), first) }); e != nil {
			return e
		}
		return err
	}}
	ln, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("open the API socket: %w: give another --socket", err)
	}
	if err := access.grant(path, access.mode()); err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("open the API socket: %w", err)
	}
	return ln, nil
}

// lockSocket keeps two that start at the same moment from removing each other's socket. The lock is on a file that only
// its owner can open: any user that may read the directory could hold one on that. The file is gone when it is unlocked.
func lockSocket(path string, atMost time.Duration) (unlock func(), err error) {
	name := path + ".lock"
	for end := time.Now().Add(atMost); ; time.Sleep(lockRetry) {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && isAt(f, name) {
			return func() { _ = os.Remove(name); _ = f.Close() }, nil
		}
		_ = f.Close()
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("another process has kept %s locked for %v: end it (`fuser -v %s` names it), or give another --socket", name, atMost, name)
		}
	}
}

// isAt reports whether a file is still the one with the name: the process that had locked it before has removed it.
func isAt(f *os.File, name string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(name)
	return err == nil && os.SameFile(mine, there)
}

// removeStale removes the socket at path unless a process listens on it.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at the API socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is there and is no socket: remove it, or give another --socket", path)
	}
	conn, err := net.DialTimeout("unix", path, probeTimeout)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("%w on %s: stop it first, or give another --socket", ErrInUse, path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		// EAGAIN, for one, is a server whose queue is full.
		return fmt.Errorf("cannot find out whether another svcctl serves on %s: %w: stop it, or give another --socket", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the API socket that is left over: %w", err)
	}
	return nil
}
