package relay

import (
	"context"
	"log/slog"
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
