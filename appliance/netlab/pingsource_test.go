package netlab

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// The masquerade of a router gives pings of both families the address that conntrack prints.
func TestPingSource(t *testing.T) {
	t.Parallel()
	l := New(t)
	client, router, server := l.Host("client"), l.Router("router"), l.Host("server")
	l.Segment("in").Attach(client, "eth0", "10.1.0.1/24", "fd00:1::1/64").Attach(router, "in0", "10.1.0.2/24", "fd00:1::2/64")
	l.Segment("out").Attach(router, "out0", "10.2.0.2/24", "fd00:2::2/64").Attach(server, "eth0", "10.2.0.1/24", "fd00:2::1/64")
	client.Route("10.2.0.0/24", "10.1.0.2")
	client.Route("fd00:2::/64", "fd00:1::2")
	router.LoadNft("table inet nat { chain postrouting { type nat hook postrouting priority 100; oifname out0 masquerade; }; }")
	for i, to := range []netip.Addr{server.Addr4(), server.Addr6()} {
		from := []netip.Addr{client.Addr4(), client.Addr6()}[i]
		if err := client.Ping(to, From(from), FromPort(77)); err != nil {
			t.Fatal(err)
		}
		want := []string{"10.2.0.2", "fd00:2::2"}[i]
		if at := router.PingSource(from, to, 77); at.String() != want {
			t.Errorf("a ping to %s left with %s, want %s", to, at, want)
		}
		if listed := router.Conntrack("-L", "-f", []string{"ipv4", "ipv6"}[i]); !strings.Contains(listed, fmt.Sprintf("src=%s dst=%s", to, want)) {
			t.Errorf("conntrack lists no answer to %s:\n%s", want, listed)
		}
		if at := router.PingSource(from, to, 78); at.IsValid() {
			t.Errorf("a ping that was not sent left with %s", at)
		}
	}
}
