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
	socketDirMode = 0o750
	socketMode    = 0o660
	// probeTimeout is how long another server may take to accept a connection.
	probeTimeout = 2 * time.Second
)

// ErrInUse is wrapped by the error of Listen when another server answers on the socket.
var ErrInUse = errors.New("another svcctl serves")

// listenUnix makes the socket at path, and its directory when that is missing. A
// socket that is left over is replaced; one that somebody answers on is not.
func listenUnix(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, socketDirMode); err != nil {
		return nil, fmt.Errorf("make the directory of the API socket: %w: run as root, or give another --socket", err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("lock %s for the API socket: %w", dir, err)
	}
	defer unlock()
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// The mode that a unix socket's descriptor has when it is bound is the mode of
	// the file, less the umask: so nobody gets in before the Chmod.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), socketMode) }); e != nil {
			return e
		}
		return err
	}}
	ln, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("open the API socket: %w: give another --socket", err)
	}
	if err := os.Chmod(path, socketMode); err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("open the API socket: %w", err)
	}
	return ln, nil
}

// lockDir keeps two that start at the same moment from removing each other's socket.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// removeStale removes the socket at path unless somebody answers on it.
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
		return fmt.Errorf("cannot tell whether another svcctl serves on %s: %w: stop it, or give another --socket", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the API socket that is left over: %w", err)
	}
	return nil
}

// Peer is who is at the other end of a unix socket, as the kernel tells
// (SO_PEERCRED): as of when it connected.
type Peer struct {
	PID      int32
	UID, GID uint32
}

type peerKey struct{}

// PeerFrom is the Peer of a request's context; false when it did not come by a
// unix socket.
func PeerFrom(ctx context.Context) (Peer, bool) {
	p, ok := ctx.Value(peerKey{}).(Peer)
	return p, ok
}

// withPeer is the http.Server's ConnContext hook.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, Peer{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid})
}
