package netlab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Host is a machine of a Lab: a network namespace with a thread that lives in it. What
// fails on it fails the test it belongs to (see For).
type Host struct {
	*machine
	t testing.TB
}

// For is the same Host for a subtest: what fails fails the subtest.
func (h *Host) For(t testing.TB) *Host { return &Host{h.machine, t} }

type machine struct {
	Name string

	ns    int // file descriptor of the namespace
	links *netlink.Handle
	tasks chan func()
	ended chan struct{}
	addrs []addrOfHost
	icmp  [2]icmpLog // by family: IPv4, IPv6

	rawPorts atomic.Uint32 // that rawPort has given

	mu      sync.Mutex
	closers []func()
}

// newHost makes the namespace on a thread of its own, which then does what it is
// given until the Host is closed. The thread ends with the goroutine: it is locked
// and never unlocked, because it can not be given back to the Go runtime.
func newHost(name string) (*Host, error) {
	h := &Host{machine: &machine{Name: name, tasks: make(chan func()), ended: make(chan struct{})}}
	started := make(chan error)
	go func() {
		defer close(h.ended)
		runtime.LockOSThread()
		err := h.enter()
		started <- err
		if err != nil {
			return
		}
		for task := <-h.tasks; task != nil; task = <-h.tasks {
			task()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return h, nil
}

func (h *Host) enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare the network namespace: %w", err)
	}
	ns, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the network namespace: %w", err)
	}
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		_ = unix.Close(ns)
		return fmt.Errorf("open rtnetlink: %w", err)
	}
	h.ns, h.links = ns, links
	return nil
}

// Do runs fn on the Host's thread: sockets it opens and processes it starts are in
// the Host's namespace. fn must be quick, must not start goroutines that need the
// namespace, and must not end the test. After the Host was closed the error is net.ErrClosed.
func (h *Host) Do(fn func() error) error {
	result := make(chan error, 1)
	select {
	case h.tasks <- func() { result <- fn() }:
		return <-result
	case <-h.ended:
		return net.ErrClosed
	}
}

// Namespace is the file descriptor of the namespace. It belongs to the Host.
func (h *Host) Namespace() int { return h.ns }

// String names the Host and, for a debugger with nsenter --net=, its namespace.
func (h *Host) String() string {
	return fmt.Sprintf("%s (/proc/%d/fd/%d)", h.Name, os.Getpid(), h.ns)
}

// onClose has fn called when the lab ends, the last one first.
func (h *Host) onClose(fn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closers = append(h.closers, fn)
}

func (h *Host) close() {
	h.mu.Lock()
	closers := h.closers
	h.closers = nil
	h.mu.Unlock()
	for i := len(closers) - 1; i >= 0; i-- {
		closers[i]()
	}
	h.tasks <- nil
	<-h.ended
	h.links.Close()
	_ = unix.Close(h.ns)
}

// Sysctl sets a kernel setting of the Host, as "net.ipv4.ip_forward".
func (h *Host) Sysctl(key, value string) {
	h.t.Helper()
	h.setSysctls(sysctl{key: key, value: value})
}

// setSysctls sets all of them in one task: changing to the Host's thread costs more than a setting.
func (h *Host) setSysctls(all ...sysctl) {
	h.t.Helper()
	err := h.Do(func() error {
		for _, s := range all {
			// A dot separates, except in an interface's name, where it is written as a slash.
			path := filepath.Join("/proc/sys", strings.NewReplacer(".", "/", "/", ".").Replace(s.key))
			err := os.WriteFile(path, []byte(s.value), 0o644)
			if err != nil && !(s.mayBeAbsent && errors.Is(err, os.ErrNotExist)) {
				return fmt.Errorf("set %s=%s: %w", s.key, s.value, err)
			}
		}
		return nil
	})
	if err != nil {
		h.t.Fatalf("host %s: %v", h.Name, err)
	}
}

// Run runs a program on the Host and gives its output and error output. The error
// is about a program that did not run or did not exit with 0.
func (h *Host) Run(program string, args ...string) (stdout, stderr string, err error) {
	return h.RunInput("", program, args...)
}

// Background starts a program and does not wait for it. stop ends it by SIGTERM and gives what it wrote.
func (h *Host) Background(program string, args ...string) (stop func() string) {
	h.t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := h.start(cmd); err != nil {
		h.t.Fatalf("host %s: start %v: %v", h.Name, cmd.Args, err)
	}
	ended := sync.OnceValue(func() string {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // of the signal
		return out.String()
	})
	h.onClose(func() { ended() })
	return ended
}

// RunInput is Run with a text on the program's standard input.
func (h *Host) RunInput(input, program string, args ...string) (stdout, stderr string, err error) {
	var out, errOut bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errOut
	if err = h.start(cmd); err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("host %s: %s: %w: %s", h.Name, strings.Join(cmd.Args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), errOut.String(), err
}

// start starts a program that the kernel kills when the Host's thread ends, also
// when this process is killed.
func (h *Host) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return h.Do(cmd.Start)
}

// Nft runs nft on the Host and gives its output; the test fails when nft does.
func (h *Host) Nft(args ...string) string {
	h.t.Helper()
	out, _, err := h.Run("nft", args...)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

// LoadNft loads a ruleset given as text.
func (h *Host) LoadNft(ruleset string) {
	h.t.Helper()
	if _, _, err := h.RunInput(ruleset, "nft", "-f", "-"); err != nil {
		h.t.Fatal(err)
	}
}

// HoldNft has an nft process load a ruleset and live on, as the owner of tables that are
// to have one, until release is called.
func (h *Host) HoldNft(ruleset string) (release func()) {
	h.t.Helper()
	cmd := exec.Command("nft", "-i")
	input, err := cmd.StdinPipe()
	if err == nil {
		err = h.start(cmd)
	}
	if err == nil {
		_, err = io.WriteString(input, ruleset+"\n")
	}
	if err != nil {
		h.t.Fatalf("host %s: nft -i: %v", h.Name, err)
	}
	release = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	h.onClose(release)
	return release
}

// Entries returns the entries of the connection table for TCP or UDP requests from an address to an address and port. Tests ask for
// these hundreds of times, and each start of conntrack costs.
func (h *Host) Entries(protocol uint8, from netip.Addr, to netip.AddrPort) (entries []string) {
	h.t.Helper()
	var table *netlink.Handle
	err := h.Do(func() (err error) {
		table, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		h.t.Fatalf("host %s: open the connection table: %v", h.Name, err)
	}
	defer table.Close()
	flows, err := table.ConntrackTableList(netlink.ConntrackTable, netlink.InetFamily(domainOf(from)))
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		flows, err = table.ConntrackTableList(netlink.ConntrackTable, netlink.InetFamily(domainOf(from)))
	}
	if err != nil {
		h.t.Fatalf("host %s: list the connection table: %v", h.Name, err)
	}
	for _, f := range flows {
		if o := f.Forward; o.Protocol == protocol && o.SrcIP.Equal(from.AsSlice()) && o.DstIP.Equal(to.Addr().AsSlice()) && o.DstPort == to.Port() {
			entries = append(entries, f.String())
		}
	}
	return entries
}

// Conntrack runs conntrack on the Host and gives its output; the test fails when
// conntrack does. Its answer to a delete that found nothing is exit code 1, which
// is no failure here.
func (h *Host) Conntrack(args ...string) string {
	h.t.Helper()
	out, stderr, err := h.Run("conntrack", args...)
	for err != nil && strings.Contains(stderr, "such conntrack doesn't exist") { // one ended between the listing and its deletion
		out, stderr, err = h.Run("conntrack", args...)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && strings.Contains(stderr, "0 flow entries") {
		return out
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}
