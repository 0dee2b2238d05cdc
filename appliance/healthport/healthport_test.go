package healthport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestAnswer(t *testing.T) {
	s, _ := start(t)
	port := freePort(t)
	s.SetAddresses([]netip.Addr{local})
	s.Set([]Service{{Namespace: "default", Name: "web", Port: port}})
	eventually(t, "the port answers", func() bool { return answers(local, port) })
	for _, test := range []struct {
		name         string
		method, path string
		endpoints    int
		synced       bool
		status       int
		body         string
		weight       string
	}{
		{
			"endpoints", "GET", "/", 2, true, 200,
			`{"service":{"namespace":"default","name":"web"},"localEndpoints":2,"serviceProxyHealthy":true}`, "2",
		},
		{
			"any path", "GET", "/healthz/x?y=z", 1, true, 200,
			`{"service":{"namespace":"default","name":"web"},"localEndpoints":1,"serviceProxyHealthy":true}`, "1",
		},
		{
			"no endpoint", "GET", "/", 0, true, 503,
			`{"service":{"namespace":"default","name":"web"},"localEndpoints":0,"serviceProxyHealthy":true}`, "0",
		},
		{
			"not synced", "GET", "/", 2, false, 503,
			`{"service":{"namespace":"default","name":"web"},"localEndpoints":2,"serviceProxyHealthy":false}`, "2",
		},
		{
			"neither", "GET", "/", 0, false, 503,
			`{"service":{"namespace":"default","name":"web"},"localEndpoints":0,"serviceProxyHealthy":false}`, "0",
		},
		{"head", "HEAD", "/", 3, true, 200, "", "3"},
		{"post", "POST", "/", 3, true, 405, "health-check node ports answer GET\n", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			// What is set holds for the very next request.
			s.Set([]Service{{Namespace: "default", Name: "web", Port: port, LocalEndpoints: test.endpoints}})
			s.SetSynced(test.synced)
			got, err := ask(test.method, local, port, test.path)
			if err != nil {
				t.Fatal(err)
			}
			if got.status != test.status || got.body != test.body {
				t.Errorf("answer is %d %s\nwant      %d %s", got.status, got.body, test.status, test.body)
			}
			if weight := got.header.Get("X-Load-Balancing-Endpoint-Weight"); weight != test.weight {
				t.Errorf("weight is %q, want %q", weight, test.weight)
			}
			if got.status == 405 {
				if allow := got.header.Get("Allow"); allow != "GET, HEAD" {
					t.Errorf("Allow is %q", allow)
				}
				return
			}
			if kind := got.header.Get("Content-Type"); kind != "application/json" {
				t.Errorf("Content-Type is %q", kind)
			}
			if sniff := got.header.Get("X-Content-Type-Options"); sniff != "nosniff" {
				t.Errorf("X-Content-Type-Options is %q", sniff)
			}
		})
	}
}

// A connection that is kept sees the new numbers, and is closed with its port.
func TestChangesWithoutReopening(t *testing.T) {
	s, _ := start(t)
	port := freePort(t)
	s.SetAddresses([]netip.Addr{local})
	s.SetSynced(true)
	s.Set([]Service{{"default", "web", port, 1}})
	eventually(t, "the port answers", func() bool { return answers(local, port) })
	conn, err := net.Dial("tcp", netip.AddrPortFrom(local, port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	read := bufio.NewReader(conn)
	askAgain := func() string {
		t.Helper()
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(read, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(resp.StatusCode, " ", string(body))
	}
	if got := askAgain(); !strings.Contains(got, `"localEndpoints":1`) {
		t.Error(got)
	}
	s.Set([]Service{{"default", "web", port, 0}})
	if got := askAgain(); !strings.HasPrefix(got, "503") || !strings.Contains(got, `"localEndpoints":0`) {
		t.Error(got)
	}
	s.Set([]Service{{"prod", "api", port, 7}}) // the port has another owner now
	if got := askAgain(); !strings.HasPrefix(got, `200 {"service":{"namespace":"prod","name":"api"},"localEndpoints":7`) {
		t.Error(got)
	}
	s.Set(nil)
	eventually(t, "the port is closed", func() bool { return refuses(local, port) })
	if _, err := read.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection to the closed port ends with %v, want EOF", err)
	}
}

func TestPortsComeAndGo(t *testing.T) {
	s, stop := start(t)
	a, b := freePort(t), freePort(t)
	s.SetAddresses([]netip.Addr{local})
	s.Set([]Service{{"default", "a", a, 1}, {"default", "b", b, 1}})
	eventually(t, "both answer", func() bool { return answers(local, a) && answers(local, b) })
	s.Set([]Service{{"default", "b", b, 1}})
	eventually(t, "the one that is not needed is closed", func() bool { return refuses(local, a) })
	if !answers(local, b) {
		t.Error("the other one does not answer any more")
	}
	s.Set([]Service{{"default", "a", a, 1}, {"default", "b", b, 1}, {"default", "none", 0, 1}, {"default", "neither", 0, 1}})
	eventually(t, "it is open again", func() bool { return answers(local, a) })
	if got := s.Problems(); len(got) != 0 {
		t.Errorf("problems: %v", got)
	}
	stop()
	if !refuses(local, a) || !refuses(local, b) {
		t.Error("a port is open after the end")
	}
}

func TestAddresses(t *testing.T) {
	s, _ := start(t)
	port := freePort(t)
	loopback6 := netip.IPv6Loopback()
	probe, err := net.Listen("tcp", "[::1]:0")
	if err == nil {
		_ = probe.Close()
	}
	hasIPv6 := err == nil
	s.Set([]Service{{"default", "web", port, 1}})
	for _, step := range []struct {
		name      string
		addresses []netip.Addr
		yes, no   []netip.Addr
	}{
		{"all", nil, []netip.Addr{local, other, loopback6}, nil},
		{"one", []netip.Addr{local}, []netip.Addr{local}, []netip.Addr{other, loopback6}},
		{"another one", []netip.Addr{other}, []netip.Addr{other}, []netip.Addr{local, loopback6}},
		{"two", []netip.Addr{other, local}, []netip.Addr{local, other}, []netip.Addr{loopback6}},
		{"IPv6", []netip.Addr{loopback6}, []netip.Addr{loopback6}, []netip.Addr{local, other}},
		{"all again", []netip.Addr{}, []netip.Addr{local, other, loopback6}, nil},
	} {
		t.Run(step.name, func(t *testing.T) {
			if !hasIPv6 && step.name == "IPv6" {
				t.Skip("SKIPPED: this host has no ::1")
			}
			s.SetAddresses(step.addresses)
			for _, addr := range step.yes {
				if addr.Is4() || hasIPv6 {
					eventually(t, addr.String()+" answers", func() bool { return answers(addr, port) })
				}
			}
			for _, addr := range step.no {
				if addr.Is4() || hasIPv6 {
					eventually(t, addr.String()+" refuses", func() bool { return refuses(addr, port) })
				}
			}
		})
	}
	select {
	case <-s.Changed(): // one listener did not wait for another to be closed
		t.Errorf("there are or were problems: %v", s.Problems())
	default:
	}
}

func TestProblems(t *testing.T) {
	s, _ := start(t)
	taken, err := net.Listen("tcp", local.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port, free := uint16(taken.Addr().(*net.TCPAddr).Port), freePort(t)
	s.SetAddresses([]netip.Addr{local, other})
	s.Set([]Service{{"default", "web", port, 1}, {"default", "fine", free, 1}, {"prod", "late", free, 1}})
	select {
	case <-s.Changed():
	case <-time.After(patience):
		t.Fatal("nobody is told of the problems")
	}
	got := s.Problems()
	if len(got) != 2 {
		t.Fatalf("problems: %+v", got)
	}
	if p := got[0]; p.Namespace != "default" || p.Name != "web" || p.Reason != ReasonListen ||
		!strings.Contains(p.Message, fmt.Sprintf("port %d", port)) || !strings.Contains(p.Message, "address already in use: stop the program") {
		t.Errorf("problem is %+v", p)
	}
	if p := got[1]; p.Namespace != "prod" || p.Name != "late" || p.Reason != ReasonConflict || !strings.Contains(p.Message, "default/fine") {
		t.Errorf("problem is %+v", p)
	}
	// The port answers on its other address, and the other port on both.
	for _, at := range []struct {
		addr netip.Addr
		port uint16
	}{{other, port}, {local, free}, {other, free}} {
		if !answers(at.addr, at.port) {
			t.Errorf("%v does not answer", at)
		}
	}
	// It is tried again without another Set.
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the port answers once it is free", func() bool { return answers(local, port) })
	eventually(t, "its problem is over", func() bool { return len(s.Problems()) == 1 })
	select {
	case <-s.Changed():
	case <-time.After(patience):
		t.Error("nobody is told that the problem is over")
	}
}

// Clients that only hold connections shut no other out.
func TestIdleClientsShutNobodyOut(t *testing.T) {
	s, _ := start(t)
	port := freePort(t)
	s.SetAddresses([]netip.Addr{local})
	s.Set([]Service{{"default", "web", port, 1}})
	s.SetSynced(true)
	eventually(t, "the port answers", func() bool { return answers(local, port) })
	for range 300 { // more than a listener takes
		conn, err := net.Dial("tcp", netip.AddrPortFrom(local, port).String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if got, err := ask("GET", local, port, "/"); err != nil || got.status != 200 {
		t.Errorf("answer is %v %v", got, err)
	}
}

// A listener that fails by itself is opened again.
func TestFailedListenerIsOpenedAgain(t *testing.T) {
	s, stop := start(t)
	stop()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	port := freePort(t)
	s.addresses = []netip.Addr{local} // Set would leave a Trigger pending
	s.services = map[uint16]Service{port: {"default", "web", port, 1}}
	open := map[listenAddr]*server{}
	s.reconcile(ctx, open)
	srv := open[listenAddr{local, port}]
	if srv == nil || !answers(local, port) {
		t.Fatal("the port is not open")
	}
	if err := srv.listener.Listener.Close(); err != nil { // as Accept sees a fault
		t.Fatal(err)
	}
	<-srv.done
	eventually(t, "Run is triggered", s.listeners.Pending)
	s.reconcile(ctx, open)
	if open[listenAddr{local, port}] == srv || !answers(local, port) {
		t.Error("the port is not open again")
	}
	cancel()
	s.tasks.Wait()
}

func TestNothingIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	s, stop := start(t)
	port := freePort(t)
	s.Set([]Service{{"default", "web", port, 1}})
	eventually(t, "the port answers", func() bool { return answers(local, port) })
	for range 50 {
		conn, err := net.Dial("tcp", netip.AddrPortFrom(local, port).String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	stop()
	eventually(t, "all goroutines are gone", func() bool { return runtime.NumGoroutine() <= before })
}

// TestConcurrentUse is for the race detector.
func TestConcurrentUse(t *testing.T) {
	s, stop := start(t)
	ports := []uint16{freePort(t), freePort(t), freePort(t)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 200 {
			_, _ = ask("GET", local, ports[i%3], "/") // may come at a bad moment
			s.Problems()
		}
	}()
	for i := range 100 {
		var services []Service
		for j, port := range ports {
			if (i>>j)&1 == 0 {
				services = append(services, Service{"default", fmt.Sprint("s", j), port, i})
			}
		}
		s.Set(services)
		s.SetSynced(i%2 == 0)
		s.SetAddresses([][]netip.Addr{nil, {local}, {local, other}}[i%3])
		time.Sleep(time.Millisecond)
	}
	<-done
	stop()
}
