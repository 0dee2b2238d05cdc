package relay

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// helperVar makes this test program a relay to the endpoint it names. It is run so in
// the namespace of a lab's host: all threads of a relay's process must be there.
const helperVar = "SVCCTL_RELAY_HELPER"

var helperAt = netip.MustParseAddrPort("127.0.0.1:30080")

func TestMain(m *testing.M) {
	if endpoint := os.Getenv(helperVar); endpoint != "" {
		if err := help(netip.MustParseAddrPort(endpoint)); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// help relays for some minutes; a lab ends it earlier.
func help(endpoint netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r := newRelay(slog.New(slog.DiscardHandler), nil, quick())
	r.Set([]Port{
		{ID: "default/web/tcp", Listen: helperAt, Protocol: TCP, Endpoints: []netip.AddrPort{endpoint}},
		{ID: "default/web/udp", Listen: helperAt, Protocol: UDP, Endpoints: []netip.AddrPort{endpoint}},
	})
	return r.Run(ctx)
}

// The box itself is served on its loopback address, from an address of its own. A
// neighbor that sends packets for 127.0.0.1 to the box gets nothing, as long as
// route_localnet is 0; it would otherwise (CVE-2020-8558), which shows that the packets
// do arrive.
func TestOnlyForTheBox(t *testing.T) {
	lab := netlab.New(t)
	box, neighbor, server := lab.Host("box"), lab.Host("neighbor"), lab.Host("server")
	lab.Segment("lan").
		Attach(box, "lan0", "10.9.0.1/24").
		Attach(neighbor, "eth0", "10.9.0.2/24").
		Attach(server, "eth0", "10.9.0.3/24")
	server.Serve("tcp", 80)
	server.Serve("udp", 80)
	helper, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	go func() { // until the lab ends; what goes wrong in it shows in the answers
		_, _, _ = box.Run("env", helperVar+"=10.9.0.3:80", helper)
	}()

	for _, network := range []string{TCP, UDP} {
		var reply netlab.Reply
		eventually(t, network+": the box is served", func() bool {
			var err error
			reply, err = box.Ask(network, helperAt)
			return err == nil
		})
		if reply.Server != "server" || reply.Client.Addr() != box.Addr4() {
			t.Errorf("%s: the box is served by %s, which sees it as %s", network, reply.Server, reply.Client)
		}
	}

	// The neighbor gives up its own 127.0.0.1, to reach the box's.
	neighbor.Sysctl("net.ipv4.conf.all.route_localnet", "1")
	neighbor.RemoveAddr("lo", "127.0.0.1/8")
	neighbor.Route("127.0.0.1/32", "10.9.0.1")
	for _, network := range []string{TCP, UDP} {
		reply, err := neighbor.Ask(network, helperAt, netlab.Within(500*time.Millisecond)) // real time: nobody answers
		if netlab.RefusalOf(err) != netlab.Timeout {
			t.Errorf("%s: the neighbor gets %v, %v; want silence", network, reply, err)
		}
	}
	box.Sysctl("net.ipv4.conf.all.route_localnet", "1")
	if _, err := neighbor.Ask(TCP, helperAt); err != nil {
		t.Errorf("the neighbor's packets do not even arrive: %v", err)
	}
}

// Test879_an_interface_takes_no_answers: a pause ends the answers that wait for room in the queue of an interface.
func Test879_an_interface_takes_no_answers(t *testing.T) {
	lab := netlab.New(t)
	box := lab.Host("box")
	lab.Segment("lan").Attach(box, "eth0", "10.9.0.1/24").Attach(lab.Host("client"), "eth0", "10.9.0.2/24")
	for _, line := range [][]string{
		{"ip", "neigh", "add", "10.9.0.2", "lladdr", "02:00:00:00:00:09", "dev", "eth0", "nud", "permanent"},
		{"tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "8bit", "burst", "200", "limit", "1000000"},
	} {
		if _, text, err := box.Run(line[0], line[1:]...); err != nil {
			t.Fatalf("%v: %v: %s", line, err, text)
		}
	}
	at, client := netip.MustParseAddrPort("10.9.0.1:5300"), netip.MustParseAddrPort("10.9.0.2:4000")
	r := newRelay(slog.New(slog.DiscardHandler), nil, quick())
	p := Port{ID: "x", Listen: at, Protocol: UDP, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.9.0.1:5301")}}
	var port *udpPort
	var l *udpListener
	if err := box.Do(func() (err error) {
		endpoint, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(p.Endpoints[0]))
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = endpoint.Close() })
		if l, err = r.listenUDP(at, nil, r.log, func(netip.AddrPort) (*udpPort, netip.AddrPort, error) { return port, at, nil }); err != nil {
			return err
		}
		port = l.newPort(p)
		if err := l.socket.SetWriteBuffer(1); err != nil {
			return err
		}
		return l.forward([]byte("x"), client, 0)
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.close(); r.tasks.Wait() })
	l.mu.Lock()
	f := l.flows[client]
	l.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		for range 20 { // the least buffer has room for fewer
			l.answer(f, []byte("y"))
		}
		done <- nil
	}()
	l.pause()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("answers still wait")
	}
}
