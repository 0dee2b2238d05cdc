package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// drainTime is how long connections are drained here.
const drainTime = 45 * time.Second // what is done meanwhile takes a busy machine seconds

// annotations of a Service that ask for drainTime, in both forms.
const (
	ourDrain = "{svcctl.io/drain-timeout: 45s}"
	elbDrain = "{service.beta.kubernetes.io/aws-load-balancer-connection-draining-enabled: 'true', " +
		"service.beta.kubernetes.io/aws-load-balancer-connection-draining-timeout: '45'}"
)

// drainable is a Service of the tests of draining. Its endpoints echo on port 80, answer
// datagrams on port 53, and on L1 the test itself is the server of port 9000.
type drainable struct {
	name        string
	n           int // of its cluster IP; makes its node port too
	annotations string
}

func (d drainable) documents(f family, endpoints ...string) []string {
	return []string{
		"apiVersion: v1\nkind: Service\nmetadata:\n  name: " + f.name(d.name) + "\n  annotations: " + d.annotations + "\nspec:\n" + indent([]string{
			"ipFamilies: [" + f.String() + "]", "type: NodePort", "clusterIP: " + f.vip(d.n), "ports:",
			fmt.Sprintf("- {name: echo, port: 80, nodePort: %d}", d.nodePort(f)),
			"- {name: mute, port: 9000}", "- {name: udp, port: 53, protocol: UDP}",
		}),
		f.rawSlice(d.name, d.name, "echo: 80, mute: 9000, udp: 53/UDP", endpoints...),
	}
}

func (d drainable) nodePort(f family) uint16                { return f.number(uint16(30000 + 2*d.n)) }
func (d drainable) at(f family, port uint16) netip.AddrPort { return f.at(f.vip(d.n), port) }

// ends are connections as their server has them, in the order in which they were made.
type ends chan net.Conn

// mute has the test be the server of port 9000 of L1, in both families: it says who it is,
// and then nothing.
func (b *box) mute(t *testing.T) ends {
	t.Helper()
	made := make(ends, 16)
	for _, f := range families {
		var listener *net.TCPListener
		at := f.on(9000, b.L1)[0]
		err := b.L1.Do(func() (err error) {
			listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { _ = c.Close() })
				fmt.Fprintf(c, "%s %s %s\n", b.L1.Name, at, c.RemoteAddr())
				made <- c
			}
		}()
	}
	return made
}

// talk has a server say a line and gives what it hears then.
func talk(server net.Conn, line string) (heard string, err error) {
	if _, err := fmt.Fprintln(server, line); err != nil {
		return "", err
	}
	if err := server.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return "", err
	}
	buf := make([]byte, 64)
	n, err := server.Read(buf)
	return string(buf[:n]), err
}

// open is an open connection of a client.
func open(t *testing.T, from *netlab.Host, to netip.AddrPort) *netlab.Conn {
	t.Helper()
	c, err := from.Dial(to, patiently)
	if err != nil {
		t.Fatalf("%s to %s: %v", from.Name, to, err)
	}
	t.Cleanup(c.Close)
	return c
}

// drainedConns are the connections to L1 through Services that drain.
type drainedConns struct {
	clients []*netlab.Conn // of the echo servers
	mute    []*netlab.Conn
	servers []net.Conn // the other ends of mute
}

// live asserts that all of them are as they were.
func (d *drainedConns) live(t *testing.T, when string) {
	t.Helper()
	for _, c := range d.clients {
		if err := c.Echo(when, patiently); err != nil {
			t.Errorf("%s, client %s: %v", when, c.Local, err)
		}
	}
	for i, c := range d.mute { // both ends say the same, and each takes the other's for the echo
		said := make(chan error, 1)
		go func() {
			heard, err := talk(d.servers[i], when)
			if err == nil && heard != when+"\n" {
				err = fmt.Errorf("heard %q, want %q", heard, when)
			}
			said <- err
		}()
		if err := errors.Join(c.Echo(when, patiently), <-said); err != nil {
			t.Errorf("%s, client %s and its server: %v", when, c.Local, err)
		}
	}
}

// over asserts that the next packet of each end is answered by a reset.
func (d *drainedConns) over(t *testing.T) {
	t.Helper()
	for _, c := range d.servers {
		if _, err := talk(c, "are you there?"); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("server of %s: %v, want a reset", c.RemoteAddr(), err)
		}
	}
	for _, c := range append(d.clients, d.mute...) {
		if err := c.Echo("are you there?", patiently); netlab.RefusalOf(err) != netlab.Reset {
			t.Errorf("client %s: %v, want a reset", c.Local, err)
		}
	}
}

// is waits until a number has a value.
func (b *box) is(t *testing.T, name string, want int) {
	t.Helper()
	eventually(t, drainTime+syncTimeout, func() error {
		if n := b.metric(t, name); n != want {
			return fmt.Errorf("%s is %d, want %d", name, n, want)
		}
		return nil
	})
}

func Test069_drain(t *testing.T) {
	b := newBox(t, metered)
	b.R1.Serve("tcp", 9000)
	ours, elb := drainable{"ours", 41, ourDrain}, drainable{"elb", 42, elbDrain}
	deleted, lasting := drainable{"deleted", 43, ourDrain}, drainable{"lasting", 44, "{}"}
	documents := func(h *netlab.Host, services ...drainable) func(f family) (docs []string) {
		return func(f family) (docs []string) {
			for _, d := range services {
				docs = append(docs, d.documents(f, f.endpoint(h))...)
			}
			return docs
		}
	}
	b.write("drain.yaml", documents(b.L1, ours, elb, deleted, lasting))
	b.svcctl.Start()

	servers := b.mute(t)
	var drain drainedConns
	var alone, before, during []*netlab.Conn // which must stay
	var datagrams []flow
	for i, f := range families {
		for _, d := range []drainable{ours, elb, deleted} {
			// Through the node port the endpoint sees the box and not the client.
			drain.clients = append(drain.clients, open(t, b.IN, d.at(f, 80)), open(t, b.EXT, f.at(f.boxAddr(), d.nodePort(f))))
			drain.mute = append(drain.mute, open(t, b.IN, d.at(f, 9000)))
			drain.servers = append(drain.servers, <-servers)
		}
		alone = append(alone, open(t, b.IN, lasting.at(f, 80)))
		before = append(before, open(t, b.IN, ours.at(f, 80)))
		during = append(during, open(t, b.IN, elb.at(f, 80)))
		datagrams = append(datagrams, flow{f, "udp", b.EXT, ours.at(f, 53), uint16(11000 + i)})
	}
	lead(t, datagrams, b.L1, 53)
	finish := func(conns []*netlab.Conn) {
		for _, c := range conns {
			c.Close()
		}
	}
	finish(before)

	arrived := b.IN.Capture("eth0")
	start := time.Now()
	b.rewrite("drain.yaml", documents(b.R1, ours, elb, lasting))
	drain.live(t, "drained")
	for _, f := range families {
		alone = append(alone, open(t, b.IN, ours.at(f, 80))) // of R1
	}
	lead(t, datagrams, b.L1, 53)
	finish(during)
	finished := map[entry]string{}
	for e, id := range b.entries(t) {
		for _, c := range append(before, during...) {
			if e.from == c.Local {
				finished[e] = id
			}
		}
	}
	if want := len(before) + len(during); len(finished) != want {
		t.Errorf("%d connections that were finished have entries, want %d", len(finished), want)
	}
	eventually(t, syncTimeout, func() error {
		if b.metric(t, drained) == 0 {
			return fmt.Errorf("%s is 0 while connections are drained", drained)
		}
		return nil
	})
	if n := b.metric(t, resets); n != 0 && time.Since(start) < drainTime {
		t.Errorf("%d connections were reset %s after their endpoint went, want %s", n, time.Since(start), drainTime)
	}

	b.is(t, resets, len(drain.clients)+len(drain.mute))
	if after := time.Since(start); after < drainTime {
		t.Errorf("connections were reset %s after their endpoint went, want %s", after, drainTime)
	}
	b.is(t, drained, 0)
	drain.over(t)
	strange := arrived.Packets(func(p netlab.Packet) bool {
		return p.Protocol == unix.IPPROTO_TCP && !p.Outgoing && (p.From.Addr() == b.L1.Addr4() || p.From.Addr() == b.L1.Addr6())
	})
	if len(strange) > 0 {
		t.Errorf("the client got packets that were not translated: %v", strange)
	}
	lead(t, datagrams, b.R1, 53)
	b.untouched(t, finished)
	for e := range b.entries(t) {
		for _, c := range append(drain.clients, drain.mute...) {
			if e.from == c.Local && e.network == "tcp" {
				t.Errorf("a connection that was reset has an entry: %s", e)
			}
		}
	}
	for _, c := range alone {
		if err := c.Echo("still there", patiently); err != nil {
			t.Errorf("client %s, which is not drained: %v", c.Local, err)
		}
	}
}

// What does not serve any more is drained, and not what only terminates.
func Test068_069_endpoint_terminates(t *testing.T) {
	b := newBox(t, metered)
	d := drainable{"web", 41, "{svcctl.io/drain-timeout: 1s}"}
	// On another box: this box would send new connections with policy Local to one of its own.
	become := func(conditions string) func(f family) []string {
		return func(f family) []string {
			return d.documents(f, f.having(b.R1, conditions), f.having(b.R2, isReady))
		}
	}
	b.write("drain.yaml", func(f family) []string { return d.documents(f, f.having(b.R1, isReady)) })
	b.svcctl.Start()
	var drain drainedConns
	for _, f := range families {
		drain.clients = append(drain.clients, open(t, b.IN, d.at(f, 80)))
	}
	b.rewrite("drain.yaml", become(draining))
	time.Sleep(2 * time.Second) // real time: no reset comes meanwhile
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", d.at(f, 80), plain, f.on(80, b.R2)...)
	}
	drain.live(t, "while the endpoint terminates")
	if n := b.metric(t, resets); n != 0 {
		t.Errorf("%d connections to an endpoint that terminates and serves were reset", n)
	}
	b.rewrite("drain.yaml", become(terminating))
	b.is(t, resets, len(drain.clients))
	drain.over(t)
}

func Test069_annotation_that_makes_no_sense(t *testing.T) {
	b := newBox(t, nil)
	d := drainable{"web", 41, "{svcctl.io/drain-timeout: soon}"}
	b.write("drain.yaml", func(f family) []string { return d.documents(f, f.endpoint(b.L1)) })
	b.svcctl.Start()
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "web"), "error", "svcctl.io/drain-timeout", `"soon"`, `"60s"`)
	}
}
