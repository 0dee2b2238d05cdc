package api_test

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/api"
)

func listen(path string) (net.Listener, error) {
	return api.New(api.Config{Socket: api.Socket{Path: path}}, newBackend(), slog.New(slog.DiscardHandler)).Listen()
}

func TestSocketModes(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077)) // narrower than what is wanted
	path := filepath.Join(t.TempDir(), "run", "svcctl.sock")
	ln, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o660 {
		t.Errorf("the socket has mode %o, want 660", got)
	}
	if info, err = os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm()&^0o750 != 0 {
		t.Errorf("its directory has mode %o (%v), want at most 750", info.Mode().Perm(), err)
	}
}

func TestSocketInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "svcctl.sock")
	ln, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, err = listen(path)
	if !errors.Is(err, api.ErrInUse) || !strings.Contains(err.Error(), path+": stop it first, or give another --socket") {
		t.Errorf("a second server: %v", err)
	}
	if conn, err := net.Dial("unix", path); err != nil {
		t.Errorf("the first one cannot be reached any more: %v", err)
	} else {
		_ = conn.Close()
	}
}

func TestSocketLeftOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "svcctl.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false) // as after kill -9
	_ = ln.Close()
	again, err := listen(path)
	if err != nil {
		t.Fatalf("a socket that is left over: %v", err)
	}
	_ = again.Close()
}

func TestSocketIsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "svcctl.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := listen(path)
	if err == nil || !strings.Contains(err.Error(), "is no socket: remove it, or give another --socket") {
		t.Errorf("a file in the way: %v", err)
	}
	if data, _ := os.ReadFile(path); string(data) != "precious" {
		t.Error("the file was touched")
	}
}

// TestSocketRace starts many at once: one of them must serve, and none may take
// the socket away from it.
func TestSocketRace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "svcctl.sock")
	var mu sync.Mutex
	var won []net.Listener
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			ln, err := listen(path)
			if err != nil {
				if !errors.Is(err, api.ErrInUse) {
					t.Errorf("lost with %v", err)
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			won = append(won, ln)
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d of 20 have the socket", len(won))
	}
	defer won[0].Close()
	if _, err := net.Dial("unix", path); err != nil {
		t.Errorf("the winner cannot be reached: %v", err)
	}
}

// TestSocketLock: a lock that anybody may have on the directory keeps no server from starting, and one of another server
// that hangs is an error that names it.
func TestSocketLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "svcctl.sock")
	hold := func(name string, flags int) *os.File {
		t.Helper()
		f, err := os.OpenFile(name, flags, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil {
			t.Fatal(err)
		}
		return f
	}
	hold(dir, os.O_RDONLY)
	got := make(chan error, 1)
	go func() {
		ln, err := listen(path)
		if err == nil {
			_ = ln.Close()
		}
		got <- err
	}()
	select {
	case err := <-got:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for the lock of the directory")
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
		t.Errorf("left over are %v, %v", names, err)
	}
	lock := hold(path+".lock", os.O_RDWR|os.O_CREATE)
	if _, err := listen(path); err == nil || !strings.Contains(err.Error(), path+".lock locked") || !strings.Contains(err.Error(), "--socket") {
		t.Errorf("with the lock held: %v", err)
	}
	_ = lock.Close()
	ln, err := listen(path) // a file that a killed process left is no obstacle
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
}
