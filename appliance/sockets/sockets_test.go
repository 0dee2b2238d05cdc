package sockets

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain makes the test program one that listens, when it is asked to be.
func TestMain(m *testing.M) {
	if list := os.Getenv("SOCKETS_TEST_LISTEN"); list != "" {
		listen(strings.Fields(list))
		return
	}
	os.Exit(m.Run())
}

// listen opens sockets ("tcp4 127.0.0.1:0" as "tcp4/127.0.0.1:0"), says where they are and
// waits until no program listens to that any more.
func listen(list []string) {
	for _, each := range list {
		network, addr, _ := strings.Cut(each, "/")
		var local net.Addr
		if strings.HasPrefix(network, "tcp") {
			l, err := net.Listen(network, addr)
			if err != nil {
				panic(err)
			}
			defer l.Close()
			local = l.Addr()
		} else {
			c, err := net.ListenPacket(network, addr)
			if err != nil {
				panic(err)
			}
			defer c.Close()
			local = c.LocalAddr()
		}
		fmt.Println(network, local)
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

// program has another process listen and tells where.
func program(t *testing.T, list ...string) (places []netip.AddrPort, pid int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "SOCKETS_TEST_LISTEN="+strings.Join(list, " "))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(stdout)
	for range list {
		if !lines.Scan() {
			t.Fatal("the program ended before it listened")
		}
		_, where, _ := strings.Cut(lines.Text(), " ")
		places = append(places, netip.MustParseAddrPort(where))
	}
	return places, cmd.Process.Pid
}

func TestListening(t *testing.T) {
	places, pid := program(t, "tcp4/127.0.0.1:0", "udp4/127.0.0.1:0", "tcp4/0.0.0.0:0", "tcp/[::]:0", "tcp6/[::]:0", "udp6/[::1]:0")
	list, err := NewView().Listening(everyPort())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []Socket{
		{Protocol: "tcp"}, {Protocol: "udp"}, {Protocol: "tcp"},
		{Protocol: "tcp", BothFamilies: true}, {Protocol: "tcp"}, {Protocol: "udp"},
	} {
		want.Local = places[i]
		at := slices.IndexFunc(list, func(s Socket) bool {
			return s.Protocol == want.Protocol && s.Local == want.Local && s.BothFamilies == want.BothFamilies
		})
		if at < 0 {
			t.Errorf("no %+v in %v", want, list)
			continue
		}
		if owner := Owner(list[at]); !strings.HasSuffix(owner, fmt.Sprintf(" (pid %d)", pid)) {
			t.Errorf("%s belongs to %q, want pid %d", want, owner, pid)
		}
	}
}

// everyPort are all ports of both protocols.
func everyPort() *Ports {
	var p Ports
	p.AddRange("tcp", 1, 65535)
	p.AddRange("udp", 1, 65535)
	return &p
}

func TestPorts(t *testing.T) {
	var p Ports
	if !p.Empty() {
		t.Error("the zero value is not empty")
	}
	p.AddRange("tcp", 30000, 30002)
	p.Add("tcp", 30001)
	p.Add("udp", 65535)
	p.Add("udp", 0)
	p.Add("sctp", 80)
	p.Remove("tcp", 30000)
	p.Remove("tcp", 30000)
	for _, test := range []struct {
		protocol string
		port     uint16
		want     bool
	}{
		{"tcp", 30000, false}, {"tcp", 30001, true}, {"tcp", 30002, true}, {"tcp", 30003, false},
		{"udp", 30001, false}, {"udp", 65535, true}, {"udp", 0, true}, {"sctp", 80, false},
	} {
		if got := p.Has(test.protocol, test.port); got != test.want {
			t.Errorf("%s %d: %t", test.protocol, test.port, got)
		}
	}
	if first, last, ok := p.bounds(0); !ok || first != 30001 || last != 30002 {
		t.Errorf("tcp is from %d to %d: %t", first, last, ok)
	}
	if first, last, ok := p.bounds(1); !ok || first != 0 || last != 65535 {
		t.Errorf("udp is from %d to %d: %t", first, last, ok)
	}
	p.AddRange("tcp", 65530, 65535)
	p = Ports{}
	if _, _, ok := p.bounds(0); ok || !p.Empty() {
		t.Error("there are ports where there are none")
	}
}

// The kernel filters, and what it sends beside the wanted ports is left out.
func TestListeningOnSomePorts(t *testing.T) {
	places, _ := program(t, "tcp4/127.0.0.1:0", "tcp4/127.0.0.1:0", "udp4/127.0.0.1:0", "tcp6/[::1]:0")
	for i, place := range places {
		protocol := []string{"tcp", "tcp", "udp", "tcp"}[i]
		var ports Ports
		ports.Add(protocol, place.Port())
		list, err := NewView().Listening(&ports)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) != 1 || list[0].Local != place || list[0].Protocol != protocol {
			t.Errorf("%s %s: %v", protocol, place, list)
		}
		family := uint8(unix.AF_INET)
		if place.Addr().Is6() {
			family = unix.AF_INET6
		}
		sent, err := request(kinds[indexOf(protocol)], family, place.Port(), place.Port())
		if err != nil || len(sent) != 1 {
			t.Errorf("the kernel sends %d sockets for %s %s: %v", len(sent), protocol, place, err)
		}
	}
	if list, err := NewView().Listening(&Ports{}); err != nil || len(list) != 0 {
		t.Errorf("no ports: %v, %v", list, err)
	}
}

// Once a socket is known, the descriptors of the process are not read again for it.
func TestOwnSocketsAreRemembered(t *testing.T) {
	places, _ := program(t, "tcp4/127.0.0.1:0")
	var ports Ports
	ports.Add("tcp", places[0].Port())
	view := NewView()
	if list, err := view.Listening(&ports); err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	for cookie := range view.judged { // what is remembered is believed
		view.judged[cookie] = true
	}
	if list, err := view.Listening(&ports); err != nil || len(list) != 0 {
		t.Errorf("looked for again: %v, %v", list, err)
	}
}

func TestClosed(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	for _, network := range []string{"tcp4", "tcp6", "udp4", "udp6"} {
		protocol, host := network[:3], "127.0.0.1"
		if network[3] == '6' {
			host = "[::1]"
		}
		open := func() (close func() error, port uint16) {
			if protocol == "tcp" {
				l, err := net.Listen(network, host+":0")
				if err != nil {
					t.Fatal(err)
				}
				return l.Close, netip.MustParseAddrPort(l.Addr().String()).Port()
			}
			c, err := net.ListenPacket(network, host+":0")
			if err != nil {
				t.Fatal(err)
			}
			return c.Close, netip.MustParseAddrPort(c.LocalAddr().String()).Port()
		}
		wanted, port := open()
		other, _ := open()
		var ports Ports
		ports.Add(protocol, port)
		closed, err := WatchClosed(&ports)
		if err != nil {
			t.Fatal(err)
		}
		_ = other()
		_ = wanted()
		<-closed.C // the deadline is the test's
		if err := closed.Close(); err != nil {
			t.Error(err)
		}
	}
	// Others than the wanted ones are not reported.
	var ports Ports
	ports.Add("tcp", 1)
	message := make([]byte, 100)
	message[21] = 1
	if !concerns(message, &ports) {
		t.Error("port 1 is wanted")
	}
	message[21] = 2
	if concerns(message, &ports) || concerns(message[:21], &ports) {
		t.Error("port 2 is not wanted")
	}
}

func TestOwnSocketsAreNotListed(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	connected, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer connected.Close()
	has := func(list []Socket) bool {
		return slices.ContainsFunc(list, func(s Socket) bool { return s.Local.String() == l.Addr().String() })
	}
	everybody, err := listening(everyPort())
	if err != nil || !has(everybody) {
		t.Fatalf("%s is not in %v: %v", l.Addr(), everybody, err)
	}
	if slices.ContainsFunc(everybody, func(s Socket) bool { return s.Local.String() == connected.LocalAddr().String() }) {
		t.Errorf("%s is connected and listed", connected.LocalAddr())
	}
	if others, err := NewView().Listening(everyPort()); err != nil || has(others) {
		t.Errorf("%s is this process's own and listed: %v", l.Addr(), err)
	}
}

func TestCovers(t *testing.T) {
	for _, test := range []struct {
		local, at string
		both      bool
		want      bool
	}{
		{"192.0.2.1:80", "192.0.2.1:80", false, true},
		{"192.0.2.1:80", "192.0.2.2:80", false, false},
		{"192.0.2.1:80", "192.0.2.1:81", false, false},
		{"0.0.0.0:80", "192.0.2.1:80", false, true},
		{"0.0.0.0:80", "[2001:db8::1]:80", false, false},
		{"[::]:80", "[2001:db8::1]:80", false, true},
		{"[::]:80", "192.0.2.1:80", false, false},
		{"[::]:80", "192.0.2.1:80", true, true},
		{"127.0.0.1:80", "192.0.2.1:80", false, false},
	} {
		s := Socket{Protocol: "tcp", Local: netip.MustParseAddrPort(test.local), BothFamilies: test.both}
		if got := s.Covers(netip.MustParseAddrPort(test.at)); got != test.want {
			t.Errorf("%s (both families: %t) covers %s: %t", s, test.both, test.at, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	message := make([]byte, diagMessageSize, diagMessageSize+8)
	message[0], message[5] = 10, 80
	f.Add(message)
	f.Add(append(message, 5, 0, attrSKV6Only, 0, 1, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, ok := parse(b); ok && (!s.Local.IsValid() || s.Local.Port() == 0) {
			t.Errorf("%x is %v", b, s)
		}
	})
}

func BenchmarkListening(b *testing.B) {
	view, ports := NewView(), &Ports{}
	ports.AddRange("tcp", 30000, 32767)
	ports.AddRange("udp", 30000, 32767)
	for b.Loop() {
		if _, err := view.Listening(ports); err != nil {
			b.Fatal(err)
		}
	}
}
