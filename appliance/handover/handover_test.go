package handover

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// helperVar has this test program hand a pipe and its state over to itself, or say what it got.
const helperVar = "SVCCTL_HANDOVER_HELPER"

func TestMain(m *testing.M) {
	switch {
	case Answer(os.Stdout):
		return
	case os.Getenv(helperVar) != "":
		if err := help(); err != nil {
			_, _ = io.WriteString(os.Stdout, err.Error())
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// help hands a pipe over, or takes it.
func help() error {
	state, err := State()
	if err != nil {
		return err
	}
	if again, err := State(); again != nil || err != nil {
		return errors.New("the state is there twice")
	}
	if state == nil {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		if _, err := unix.Write(fds[1], []byte("from the program before")); err != nil {
			return err
		}
		program, err := Program()
		if err != nil {
			return err
		}
		return Exec(program, os.Args, []byte{byte(fds[0]), byte(fds[1])}, fds[:1])
	}
	b := make([]byte, 100)
	n, err := unix.Read(int(state[0]), b)
	if err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(state[1]), unix.F_GETFD, 0); err != unix.EBADF {
		return errors.New("a descriptor that is not handed over is open")
	}
	_, err = os.Stdout.Write(b[:n])
	return err
}

func TestExec(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperVar+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "from the program before" {
		t.Errorf("the program that took over says %q, %v", out, err)
	}
	if err := Exec("/nonexistent", nil, nil, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
	if err := Exec(os.Args[0], nil, nil, []int{1 << 20}); !errors.Is(err, unix.EBADF) {
		t.Errorf("a descriptor that is not open: %v", err)
	}
}

func TestCheck(t *testing.T) {
	if err := Check(t.Context(), os.Args[0]); err != nil {
		t.Errorf("this program: %v", err)
	}
	for program, want := range map[string]string{"/bin/echo": "does not support the hand-over", "/bin/false": "exit status", "/nonexistent": "no such file"} {
		if err := Check(t.Context(), program); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), program) {
			t.Errorf("%s: %v, want %q", program, err, want)
		}
	}
}

func TestStateOfNonsense(t *testing.T) {
	for _, text := range []string{"x", "-1", "1000000"} {
		t.Setenv(variable, text)
		if state, err := State(); err == nil {
			t.Errorf("%q: %q", text, state)
		}
	}
}

func TestRequested(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	inner, stop := context.WithCancel(ctx)
	defer stop()
	cancel(ErrRequested)
	<-inner.Done()
	if !IsRequested(inner) {
		t.Error("the cause is lost")
	}
	other, stop := context.WithCancel(t.Context())
	if stop(); IsRequested(other) {
		t.Error("every end is one")
	}
}

// TestKeep: systemd gets the descriptor and its name.
func TestKeep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := NewStore()
	if err := errors.Join(s.Keep("web", l.(*net.TCPListener)), s.Drop("web")); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"FDSTORE=1\nFDNAME=web", "FDSTOREREMOVE=1\nFDNAME=web"} {
		message, rights := make([]byte, 100), make([]byte, 100)
		n, m, _, _, err := manager.ReadMsgUnix(message, rights)
		if err != nil || !bytes.Equal(message[:n], []byte(want)) || m > 0 != (i == 0) {
			t.Errorf("%q with %d bytes of descriptors, %v; want %q", message[:n], m, err, want)
		}
		if m > 0 {
			messages, _ := unix.ParseSocketControlMessage(rights[:m])
			fds, err := unix.ParseUnixRights(&messages[0])
			if err != nil {
				t.Fatal(err)
			}
			kept, err := net.FileListener(os.NewFile(uintptr(fds[0]), ""))
			if err != nil || kept.Addr().String() != l.Addr().String() {
				t.Errorf("%v was kept, %v; want %v", kept, err, l.Addr())
			}
			_ = kept.Close()
		}
	}
	t.Setenv("NOTIFY_SOCKET", "")
	if err := NewStore().Keep("web", l.(*net.TCPListener)); err != nil {
		t.Errorf("without systemd: %v", err)
	}
	if kept := Kept(); len(kept) != 0 {
		t.Errorf("%v is kept", kept)
	}
}

// A socket that nobody reads, as of a systemd that hangs, takes some messages and no more.
func TestSystemdReadsNothing(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = systemd.Close() }()
	t.Setenv("NOTIFY_SOCKET", name)
	kept, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		s, err := NewStore(), error(nil)
		for range 100_000 {
			if err = s.Keep("a", kept.(*net.TCPListener)); err != nil {
				break
			}
		}
		_ = kept.Close()
		if err := s.Drop("gone"); err != nil {
			t.Errorf("a descriptor to be closed: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := Notify(ctx, "READY=1"); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("a state: %v", err)
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, unix.EAGAIN) {
			t.Errorf("a descriptor: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for a reader")
	}
	// The state, and what is not to be kept, come when there is room again.
	notified := make(chan error, 1)
	go func() { notified <- Notify(t.Context(), "READY=1") }()
	ready, dropped := false, false
	for b := make([]byte, 100); !ready || !dropped; {
		n, err := systemd.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		switch string(b[:n]) {
		case "READY=1":
			ready = true
		case "FDSTOREREMOVE=1\nFDNAME=gone":
			dropped = true
		}
	}
	if err := <-notified; err != nil {
		t.Error(err)
	}
}
