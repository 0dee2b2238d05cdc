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
// waits until nobody listens to that any more.
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
	list, err := Listening()
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
	everybody, err := listening()
	if err != nil || !has(everybody) {
		t.Fatalf("%s is not in %v: %v", l.Addr(), everybody, err)
	}
	if slices.ContainsFunc(everybody, func(s Socket) bool { return s.Local.String() == connected.LocalAddr().String() }) {
		t.Errorf("%s is connected and listed", connected.LocalAddr())
	}
	if others, err := Listening(); err != nil || has(others) {
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
	for b.Loop() {
		if _, err := Listening(); err != nil {
			b.Fatal(err)
		}
	}
}
