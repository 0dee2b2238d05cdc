package gateway

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"svcctl.io/svcctl/api/conformance/served"
)

const (
	// dnsVariable makes this program a DNS server, which stands for CoreDNS, holdVariable a process that holds a namespace.
	dnsVariable  = "SVCCTL_CONFORMANCE_DNS"
	holdVariable = "SVCCTL_CONFORMANCE_HOLD"
	// client is the suite's address on the network between it and the box.
	client, clientBox = "203.0.113.2/24", "203.0.113.1"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(dnsVariable) != "":
		serveDNS()
	case os.Getenv(holdVariable) != "":
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test ends
		os.Exit(0)
	}
	served.Main(m)
}

// box is the network namespace of svcctl: a network with the suite, and one with all servers.
type box struct {
	holder *exec.Cmd

	mu   sync.Mutex
	next netip.Addr
}

// newBox makes the namespaces; this process is in the suite's.
func newBox(t *testing.T) *box {
	t.Helper()
	b := &box{next: netip.MustParseAddr("10.1.1.1")}
	b.holder = b.process(os.Args[0], holdVariable+"=1")
	in, err := b.holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = b.holder.Wait() })
	pid := b.holder.Process.Pid
	for _, command := range []string{
		"ip link add tobox type veth peer name toclient netns " + strconv.Itoa(pid),
		"ip address add " + client + " dev tobox", "ip link set tobox up",
		"ip route add 198.51.100.0/24 via " + clientBox,
		"box ip link set lo up", "box ip address add " + clientBox + "/24 dev toclient", "box ip link set toclient up",
		"box ip link add servers type bridge", "box ip address add 10.1.0.1/16 dev servers", "box ip link set servers up",
		"box sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
	} {
		if err := b.run(pid, strings.Fields(command)...); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// process is a program in a network namespace of its own, which ends with this process.
func (b *box) process(program string, env ...string) *exec.Cmd {
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run runs a command here, or with "box" before it in the namespace of a process.
func (b *box) run(pid int, args ...string) error {
	if args[0] == "box" {
		args = append([]string{"nsenter", "-t", strconv.Itoa(pid), "-n"}, args[1:]...)
	}
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// attach gives a process with a namespace of its own an address in the network of servers.
func (b *box) attach(pid int) (netip.Addr, error) {
	b.mu.Lock()
	addr := b.next
	b.next = b.next.Next()
	b.mu.Unlock()
	name := fmt.Sprintf("s%d", pid)
	for _, step := range []struct {
		pid  int
		text string
	}{
		{b.holder.Process.Pid, fmt.Sprintf("box ip link add %s type veth peer name eth0 netns /proc/%d/ns/net", name, pid)},
		{b.holder.Process.Pid, "box ip link set " + name + " master servers up"},
		{pid, "box ip link set lo up"}, {pid, "box ip address add " + addr.String() + "/16 dev eth0"},
		{pid, "box ip link set eth0 up"}, {pid, "box ip route add default via 10.1.0.1"},
	} {
		if err := b.run(step.pid, strings.Fields(step.text)...); err != nil {
			return netip.Addr{}, err
		}
	}
	return addr, nil
}

// svcctl starts the appliance in the box.
func (b *box) svcctl(t *testing.T, flags ...string) *served.Appliance {
	t.Helper()
	a := served.New(t, flags...)
	script := filepath.Join(t.TempDir(), "svcctl")
	text := fmt.Sprintf("#!/bin/sh\nexec nsenter -t %d -n %s \"$@\"\n", b.holder.Process.Pid, a.Program)
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	a.Program = script
	a.Start()
	return a
}

// serveDNS answers each query with the same question, and that there is no such name: the suite asks for an answer.
func serveDNS() {
	conn, err := net.ListenPacket("udp", ":53")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for query := make([]byte, 1<<16); ; {
		n, from, err := conn.ReadFrom(query)
		if err == nil && n >= 12 {
			query[2], query[3] = query[2]|0x80, query[3]&0xf0|3 // QR, NXDOMAIN
			_, _ = conn.WriteTo(query[:n], from)
		}
	}
}
