package parts

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/flows"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/nft"
)

// That the kernel cannot be listened to is told once, however often it is tried.
func TestFlowsFailOnce(t *testing.T) {
	f := NewFlows("", nil, slog.New(slog.DiscardHandler))
	for i, c := range []struct {
		err  error
		news bool
	}{{errors.New("no events"), true}, {errors.New("no events"), false}, {errors.New("no rights"), true}, {nil, true}, {nil, false}} {
		if news := f.fail(c.err); news != c.news {
			t.Errorf("the %dth time it is news: %t, want %t", i+1, news, c.news)
		}
	}
}

// Connections that end while nobody listens stay in the totals, and those that come after them are added.
func TestFlowsAfterAFailure(t *testing.T) {
	f := NewFlows("", nil, slog.New(slog.DiscardHandler))
	vip, endpoint := netip.MustParseAddrPort("10.96.0.10:80"), netip.MustParseAddrPort("10.1.2.11:8080")
	f.Planned(nil, []reconcile.Service{{Key: "default/web", Ports: []nft.ServicePort{{
		ID: "default/web", Family: nft.IPv4, Protocol: nft.TCP, Frontends: []nft.Frontend{{Addr: vip.Addr(), Port: vip.Port()}},
		Pools: [nft.NumPools][]netip.AddrPort{nft.PoolCluster: {endpoint}},
	}}}})
	total := func(open uint64) uint64 {
		l := f.book.Snapshot(time.Now())
		defer l.End([]uint32{})
		_, all := l.Total("default/web", nft.IPv4, nft.TCP, map[netip.AddrPort]flows.Record{endpoint: {Connections: open}})
		return all.Connections
	}
	f.events = &conntrack.Events{}
	if n := total(5); n != 5 {
		t.Fatalf("%d connections, want 5", n)
	}
	f.fail(errors.New("no memory"))
	if n := total(0); n != 5 {
		t.Errorf("%d connections when all have ended, want 5", n)
	}
	if n := total(2); n != 7 {
		t.Errorf("%d connections with two more, want 7", n)
	}
}
