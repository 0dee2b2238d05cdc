package kernel

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace of its own, which ends with the test.
type namespace struct {
	testing.TB
	file *os.File
}

// newNamespace skips a test that is not run as root, loudly, or fails it where
// privileged tests are required.
func newNamespace(t testing.TB) *namespace {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: tests with -short make no networks")
	}
	if os.Geteuid() != 0 {
		if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
			t.Fatal("PRIVILEGED TEST cannot run: it must be root to make network namespaces")
		}
		t.Skip("PRIVILEGED TEST SKIPPED: it must be root to make network namespaces")
	}
	n := &namespace{TB: t}
	n.inThread(func() {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("make a network namespace: %v", err)
			return
		}
		file, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			t.Errorf("open the network namespace: %v", err)
		}
		n.file = file
	})
	if n.file == nil {
		t.FailNow()
	}
	t.Cleanup(func() { n.file.Close() })
	return n
}

// inThread runs f in a thread that ends with it, whatever namespace f leaves it in.
func (n *namespace) inThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread is not used again
		f()
	}()
	<-done
}

// inside runs f in a thread that is in the namespace.
func (n *namespace) inside(f func()) {
	n.Helper()
	n.inThread(func() {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			n.Errorf("enter the network namespace: %v", err)
			return
		}
		f()
	})
}

func (n *namespace) open() *Conn {
	n.Helper()
	c, err := Open(Options{NetNS: int(n.file.Fd())})
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { c.Close() })
	return c
}

// nft runs the nft program with a script, or with arguments, and gives what it prints.
func (n *namespace) nft(arguments ...string) string {
	n.Helper()
	return n.nftScript("", arguments...)
}

func (n *namespace) nftScript(script string, arguments ...string) (out string) {
	n.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		n.Fatal("PRIVILEGED TEST needs the nft program (package nftables)")
	}
	if script != "" {
		arguments = append(arguments, "-f", "-")
	}
	n.inside(func() {
		command := exec.Command("nft", arguments...)
		command.Stdin = strings.NewReader(script)
		var complaints strings.Builder // with -j also warnings
		command.Stderr = &complaints
		b, err := command.Output()
		if err != nil {
			n.Errorf("nft %s: %v\n%.2000s\n%.2000s", strings.Join(arguments, " "), err, complaints.String(), script)
		}
		out = string(b)
	})
	return out
}
