package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// keeping is a pair of boxes that are the router of two servers, with two Services: "kept" asks that its connections
// outlive a box, and "random" does not.
type keeping struct {
	*pair
	servers []*netlab.Host
	push    chan struct{} // closed: servers speak first

	mu    sync.Mutex
	peers map[string]*peer // by the client's address and port
}

// peer is the server's end of a stream.
type peer struct{ wrote, read atomic.Int64 }

const streamPort = 7000

func (f family) keptVIP() netip.AddrPort {
	return f.at(f.pick("192.0.2.51", "2001:db8::51"), streamPort)
}
func (f family) randomVIP() netip.AddrPort {
	return f.at(f.pick("192.0.2.52", "2001:db8::52"), streamPort)
}

func newKeeping(t *testing.T) *keeping {
	t.Helper()
	t.Parallel()
	l := netlab.New(t)
	k := &keeping{pair: &pair{t: t, client: l.Host("client")}, push: make(chan struct{}), peers: map[string]*peer{}}
	lan := l.Segment("lan").Attach(k.client, "eth0", "192.0.2.9/24", "2001:db8::9/64")
	inside := l.Segment("inside")
	for n := range 2 {
		server := l.Host(fmt.Sprintf("server%d", n+1))
		inside.Attach(server, "eth0", fmt.Sprintf("10.1.0.1%d/24", n+1), fmt.Sprintf("fd00:10:1::1%d/64", n+1))
		server.Route("default", "10.1.0.254")
		server.Route("default", "fd00:10:1::fe")
		k.servers = append(k.servers, server)
		k.serve(t, server)
	}
	for n := range k.hosts {
		box := k.attach(n, l, lan, inside)
		box.Manifests.Write("web.yaml", both(func(f family) []string {
			spec := func(vip netip.AddrPort) []string {
				return []string{"type: LoadBalancer", "loadBalancerIP: " + vip.Addr().String(), "externalTrafficPolicy: Local", "ports: [{name: t, port: 7000}]"}
			}
			kept := strings.Replace(f.service("kept", spec(f.keptVIP())...), "\nspec:", "\n  annotations: {svcctl.io/balance: maglev, svcctl.io/adopt-connections: \"true\"}\nspec:", 1)
			var endpoints []string
			for _, s := range k.servers {
				endpoints = append(endpoints, f.nodeless(s))
			}
			return []string{
				kept, f.rawSlice("kept", "kept", "t: 7000", endpoints...),
				f.service("random", spec(f.randomVIP())...), f.rawSlice("random", "random", "t: 7000", endpoints...),
			}
		}))
		box.Start()
		k.announcers[n] = box.Announcer("--l2", "lan0", "--l2", "int0", "--vrid", "51", "--priority", fmt.Sprint(200-n),
			"--gateway", "10.1.0.254", "--gateway", "fd00:10:1::fe")
	}
	return k
}

// serve has a server do what the first line of a client asks for. It tells its name first.
func (k *keeping) serve(t *testing.T, h *netlab.Host) {
	t.Helper()
	for _, f := range families {
		var l net.Listener
		if err := h.Do(func() (err error) {
			l, err = net.Listen("tcp", netip.AddrPortFrom(f.of(h), streamPort).String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { _ = c.Close() })
				go k.answer(h.Name, c)
			}
		}()
	}
}

func (k *keeping) answer(name string, c net.Conn) {
	p := &peer{}
	k.mu.Lock()
	k.peers[c.RemoteAddr().String()] = p
	k.mu.Unlock()
	lines := bufio.NewScanner(c)
	fmt.Fprintln(c, name)
	if !lines.Scan() {
		return
	}
	switch lines.Text() {
	case "download":
		for {
			if _, err := fmt.Fprintln(c, p.wrote.Load()+1); err != nil {
				return
			}
			p.wrote.Add(1)
			time.Sleep(10 * time.Millisecond)
		}
	case "push":
		<-k.push
		fmt.Fprintln(c, "pushed")
	}
	for lines.Scan() {
		p.read.Add(1)
		if text := lines.Text(); strings.HasPrefix(text, "echo ") {
			fmt.Fprintln(c, name, text)
		}
	}
}

// stream is the client's end.
type stream struct {
	kind, server string
	conn         net.Conn
	lines        *bufio.Reader
	peer         *peer
	wrote, read  atomic.Int64
}

// open begins a stream.
func (k *keeping) open(t *testing.T, kind string, to netip.AddrPort) *stream {
	t.Helper()
	return k.openFrom(t, k.client, netip.Addr{}, kind, to)
}

// openFrom begins a stream of a host, which servers see as another address, if that is valid, with the same port.
func (k *keeping) openFrom(t *testing.T, from *netlab.Host, as netip.Addr, kind string, to netip.AddrPort) *stream {
	t.Helper()
	s := &stream{kind: kind}
	eventually(t, time.Minute, func() error {
		return from.Do(func() (err error) {
			d := net.Dialer{Timeout: 5 * time.Second}
			s.conn, err = d.Dial("tcp", to.String())
			return err
		})
	})
	t.Cleanup(func() { _ = s.conn.Close() })
	s.lines = bufio.NewReader(s.conn)
	s.server = s.line(t)
	fmt.Fprintln(s.conn, kind)
	k.mu.Lock()
	seen := s.conn.LocalAddr().(*net.TCPAddr).AddrPort()
	if as.IsValid() {
		seen = netip.AddrPortFrom(as, seen.Port())
	}
	s.peer = k.peers[seen.String()]
	k.mu.Unlock()
	if s.peer == nil {
		t.Fatalf("no server has a client %s", seen)
	}
	switch kind {
	case "talk":
		if err := s.echo("before"); err != nil {
			t.Fatal(err)
		}
	case "download":
		go func() {
			for {
				if _, err := s.lines.ReadString('\n'); err != nil {
					return
				}
				s.read.Add(1)
			}
		}()
	case "upload":
		go func() {
			for {
				if _, err := fmt.Fprintln(s.conn, "data"); err != nil {
					return
				}
				s.wrote.Add(1)
				time.Sleep(10 * time.Millisecond)
			}
		}()
	}
	return s
}

func (s *stream) line(t *testing.T) string {
	t.Helper()
	_ = s.conn.SetReadDeadline(time.Now().Add(time.Minute))
	text, err := s.lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_ = s.conn.SetReadDeadline(time.Time{})
	return strings.TrimSpace(text)
}

// echo sends a line, which the server has to answer that the stream began at.
func (s *stream) echo(text string) error {
	if _, err := fmt.Fprintln(s.conn, "echo "+text); err != nil {
		return err
	}
	return s.hears(s.server + " echo " + text)
}

func (s *stream) hears(want string) error {
	_ = s.conn.SetReadDeadline(time.Now().Add(time.Minute))
	got, err := s.lines.ReadString('\n')
	if err == nil && strings.TrimSpace(got) != want {
		err = fmt.Errorf("it says %q, want %q", got, want)
	}
	return err
}

// goesOn reports what becomes of a stream: bytes that are sent from now on have to arrive.
func (s *stream) goesOn(text string) error {
	var at, arrived *atomic.Int64
	switch s.kind {
	case "download":
		at, arrived = &s.peer.wrote, &s.read
	case "upload":
		at, arrived = &s.wrote, &s.peer.read
	case "push":
		if err := s.hears("pushed"); err != nil {
			return err
		}
		fallthrough
	default:
		return s.echo(text)
	}
	from, end := at.Load(), time.Now().Add(time.Minute)
	for arrived.Load() <= from {
		if time.Now().After(end) {
			return fmt.Errorf("%d lines of %d arrived", arrived.Load(), at.Load())
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// all reports which of many streams do not go on.
func all(streams []*stream, text string) (ended []error) {
	errs := make([]error, len(streams))
	var tasks sync.WaitGroup
	for i, s := range streams {
		tasks.Go(func() {
			if err := s.goesOn(text); err != nil {
				errs[i] = fmt.Errorf("%s with %s: %w", s.kind, s.server, err)
			}
		})
	}
	tasks.Wait()
	for _, err := range errs {
		if err != nil {
			ended = append(ended, err)
		}
	}
	return ended
}

// A box dies, and the connections of a Service that asks for it go on by the other one, with the same endpoints, and
// back. A Service beside it that is picked from at random loses some.
func Test490_connections_outlive_a_box(t *testing.T) {
	k := newKeeping(t)
	k.begin(t)

	var kept, random []*stream
	servers := map[string]bool{}
	for _, f := range families {
		for _, kind := range []string{"talk", "download", "upload", "push"} {
			for range 4 {
				s := k.open(t, kind, f.keptVIP())
				kept, servers[s.server] = append(kept, s), true
			}
		}
		for range 12 {
			random = append(random, k.open(t, "talk", f.randomVIP()))
		}
	}
	if len(servers) != 2 {
		t.Fatalf("all clients got one server: %v", servers)
	}
	if out, errOut, code := k.boxes[0].Svcctl("explain", ipv4.keptVIP().String()); code != 0 || !strings.Contains(out, "go on when another box") {
		t.Errorf("explain: exit code %d: %s%s", code, out, errOut)
	}

	if out, _, _ := k.boxes[0].Svcctl("doctor"); !strings.Contains(out, "nf_conntrack_tcp_be_liberal is 0") || !strings.Contains(out, "4 of 4 addresses are announced") {
		t.Errorf("doctor says:\n%s", out)
	}

	k.dies(t)
	if ended := all(kept, "after"); len(ended) > 0 {
		t.Fatalf("of %d connections %d ended: %v", len(kept), len(ended), errors.Join(ended...))
	}
	ids := k.lists(t, 1, len(kept)/len(families))
	i := slices.IndexFunc(kept, func(s *stream) bool { return s.kind == "push" }) // its server spoke first
	k.kills(t, 1, ids, kept[i])
	kept = slices.Delete(kept, i, i+1)
	ended := all(random, "after")
	if t.Logf("%d of %d connections that were picked at random ended", len(ended), len(random)); len(ended) == 0 {
		t.Error("connections of Services that are picked from at random live on, too: the test shows nothing")
	}

	// It comes back with old entries, stands by, and takes over in good order.
	k.hosts[0].Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "1")
	k.revive()
	eventually(t, time.Minute, func() error { return k.stands(0) })
	k.announcers[1].Stop()
	eventually(t, time.Minute, func() error { return k.isActive(0) })
	for _, s := range kept {
		if s.kind == "push" {
			s.kind = "talk"
		}
	}
	if ended := all(kept, "back"); len(ended) > 0 {
		t.Errorf("on the way back %d of %d ended: %v", len(ended), len(kept), errors.Join(ended...))
	}
}

// begin has the first box answer, and the second one stand by.
func (k *keeping) begin(t *testing.T) {
	t.Helper()
	k.announcers[0].Launch()
	eventually(t, time.Minute, func() error { return k.isActive(0) })
	k.announcers[1].Launch()
	eventually(t, time.Minute, func() error { return k.stands(1) })
}

// dies is fail, and servers speak.
func (k *keeping) dies(t *testing.T) {
	t.Helper()
	k.fail(t)
	close(k.push)
}

// revive has the first box come back, with the entries that it had.
func (k *keeping) revive() {
	for _, ifname := range []string{"lan0", "int0"} {
		k.hosts[0].SetUp(ifname)
	}
	k.hosts[0].AddAddr("lan0", "2001:db8::1/64") // goes with the link
	k.hosts[0].AddAddr("int0", "fd00:10:1::1/64")
	k.boxes[0].Start()
	k.announcers[0].Launch()
}

// fail has the first box die: no host gets a packet from it any more. The second one answers.
func (k *keeping) fail(t *testing.T) {
	t.Helper()
	for _, ifname := range []string{"lan0", "int0"} {
		k.hosts[0].SetDown(ifname)
	}
	k.announcers[0].Kill()
	k.boxes[0].Kill()
	eventually(t, time.Minute, func() error { return k.isActive(1) })
}

// isActive compares who answers for the Service and is the router of the servers.
func (k *keeping) isActive(n int) error {
	for _, f := range families {
		want := macInside(k.t, k.hosts[n], "lan0")
		if mac := macOf(k.t, k.client, "eth0", f, f.keptVIP().Addr().String()); mac != want {
			return fmt.Errorf("%q answers for %s, want %s", mac, f.keptVIP().Addr(), want)
		}
		gateway := f.pick("10.1.0.254", "fd00:10:1::fe")
		want = macInside(k.t, k.hosts[n], "int0")
		if mac := macOf(k.t, k.servers[0], "eth0", f, gateway); mac != want {
			return fmt.Errorf("%q answers for %s, want %s", mac, gateway, want)
		}
	}
	return nil
}

// stands waits for a box that stands by.
func (k *keeping) stands(n int) error {
	b := &box{svcctl: k.boxes[n], t: k.t}
	for _, f := range families {
		if got, want := b.announcement(f.keptVIP().Addr().String()), "l2 lan0 standby "; !strings.HasPrefix(got, want) {
			return fmt.Errorf("box %d says %q, want %q", n+1, got, want)
		}
	}
	return nil
}

// With conntrackd beside the boxes, as the example configures it, connections of Services that are picked from at
// random outlive a box as well.
func Test492_conntrackd_keeps_what_is_picked_at_random(t *testing.T) {
	k := newKeeping(t)
	text, err := os.ReadFile("../../examples/pair/conntrackd.conf")
	if err != nil {
		t.Fatal(err)
	}
	for n, h := range k.hosts {
		dir := t.TempDir()
		path := filepath.Join(dir, "conntrackd.conf")
		config := strings.NewReplacer("10.1.2.1", fmt.Sprintf("10.1.0.%d", n+1), "10.1.2.2", fmt.Sprintf("10.1.0.%d", 2-n), "eth1", "int0",
			"/run/", dir+"/").Replace(string(text))
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		h.Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "1")
		h.Background("conntrackd", "-C", path)
	}
	k.begin(t)
	var random []*stream
	for _, f := range families {
		for _, kind := range []string{"talk", "download", "upload", "push"} {
			for range 3 {
				random = append(random, k.open(t, kind, f.randomVIP()))
			}
		}
	}
	for _, s := range random { // the other box has them all
		port := s.conn.LocalAddr().(*net.TCPAddr).Port
		eventually(t, time.Minute, func() error {
			for _, family := range []string{"ipv4", "ipv6"} {
				if strings.Contains(k.hosts[1].Conntrack("-L", "-f", family, "-p", "tcp"), fmt.Sprintf("sport=%d ", port)) {
					return nil
				}
			}
			return fmt.Errorf("the other box does not know the connection from port %d", port)
		})
	}
	k.dies(t)
	if ended := all(random, "after"); len(ended) > 0 {
		t.Errorf("of %d connections %d ended: %v", len(random), len(ended), errors.Join(ended...))
	}
}
