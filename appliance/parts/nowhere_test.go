package parts

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announcements"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
)

// An address that has to be announced and is announced nowhere is a problem of its Service, with the cause.
func TestNowhere(t *testing.T) {
	here := &wire.Announcer{}
	on := wire.Unanswered{Address: "192.0.2.117", Interface: "eth0", Network: "192.0.2.0/24", Services: []string{"shop/web"}}
	item := func(change func(*wire.Announcement)) wire.Announcement {
		a := wire.Announcement{Address: "192.0.2.117", Services: []string{"shop/web"}}
		change(&a)
		return a
	}
	advertised := func(a *wire.Announcement) { a.L2 = []string{"*"} }
	for _, c := range []struct {
		name       string
		all        wire.Announcements
		unanswered []wire.Unanswered
		want       string // the reason; "": no problem
	}{
		{"a pool by flags that routes lead to", wire.Announcements{Items: []wire.Announcement{item(func(a *wire.Announcement) { a.Flags = true })}}, nil, ""},
		{"in a network of the box, no announcer", wire.Announcements{Items: []wire.Announcement{item(func(a *wire.Announcement) { a.Flags = true })}}, []wire.Unanswered{on}, "NotAdvertised"},
		{"in a network of the box, outside of all pools", wire.Announcements{}, []wire.Unanswered{on}, "NotAdvertised"},
		{"covered by no advertisement", wire.Announcements{Announcer: here, Items: []wire.Announcement{item(func(a *wire.Announcement) { a.Withheld, a.Uncovered = "x", true })}}, []wire.Unanswered{on}, "NotAdvertised"},
		{"without an endpoint", wire.Announcements{Items: []wire.Announcement{item(func(a *wire.Announcement) { advertised(a); a.Withheld = "no ready endpoint" })}}, []wire.Unanswered{on}, ""},
		{"advertised, and the announcer is gone", wire.Announcements{Items: []wire.Announcement{item(advertised)}}, nil, "AnnouncerMissing"},
		{"advertised in no network of the announcer", wire.Announcements{Announcer: here, Items: []wire.Announcement{item(func(a *wire.Announcement) { advertised(a); a.Nowhere = "no interface" })}}, nil, "NotAnnounced"},
		{"every router is down", wire.Announcements{Announcer: here, Items: []wire.Announcement{item(func(a *wire.Announcement) {
			a.Via, a.Places = []string{"bgp"}, []wire.Place{{By: "bgp tor", State: "down"}}
		})}}, nil, "NotAnnounced"},
		{"announced", wire.Announcements{Announcer: here, Items: []wire.Announcement{item(func(a *wire.Announcement) {
			advertised(a)
			a.Places = []wire.Place{{By: "l2 eth0", State: "announced"}}
		})}}, nil, ""},
		{"another box answers", wire.Announcements{Announcer: here, Items: []wire.Announcement{item(func(a *wire.Announcement) {
			advertised(a)
			a.Places = []wire.Place{{By: "l2 eth0", State: "standby"}}
		})}}, nil, ""},
		{"drained, alone", wire.Announcements{Announcer: here, Drained: true, Items: []wire.Announcement{item(advertised)}}, nil, "Drained"},
		{"drained, and another box answers", wire.Announcements{Announcer: here, Drained: true, Group: &wire.Group{Master: "192.0.2.2"}, Items: []wire.Announcement{item(advertised)}}, nil, ""},
	} {
		problems := nowhere(&c.all, c.unanswered)
		got := ""
		for _, p := range problems {
			got += p.Reason
			if p.Object.Key() != "shop/web" || p.Warning || p.Cause == "" {
				t.Errorf("%s: %+v", c.name, p)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if c.all.Drained {
			if p := drainedProblem(&c.all, len(problems)); p.Warning != (c.want == "") || p.Reason != "Drained" {
				t.Errorf("%s: %+v", c.name, p)
			}
		}
	}
}

// A change of endpoints alone has nothing looked for among the announcements, and the loop is woken when the problems differ.
func Test1150_changes_of_endpoints_do_not_concern_the_announcements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects, err := store.Open(engine.NewMemory(), store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}})
		if err != nil {
			t.Fatal(err)
		}
		pool := netip.MustParseAddr("192.0.2.10")
		var unanswered []wire.Unanswered
		looks, changes, woken := 0, uint64(0), wakes{}
		a := NewAnnouncements(announcements.New([]nft.Range{{First: pool, Last: pool}}), objects, "gw", nil, nil, nil,
			func(int) ([]wire.Unanswered, int) { looks++; return unanswered, 0 }, func() uint64 { return changes })
		a.Attach(woken.changed)
		go a.Run(t.Context())
		step := func(what string, looked bool, times int, host *reconcile.Host, frontend netip.Addr, endpoints ...string) {
			t.Helper()
			before, wasWoken := looks, woken.times
			port := nft.ServicePort{ID: "default/web", Frontends: []nft.Frontend{{Addr: frontend, Port: 80, Kind: nft.LoadBalancerIP}}}
			for _, e := range endpoints {
				port.Pools[nft.PoolCluster] = append(port.Pools[nft.PoolCluster], netip.MustParseAddrPort(e))
			}
			a.Planned(host, []reconcile.Service{{Key: "default/web", Ports: []nft.ServicePort{port}}})
			a.Stepped(reconcile.Step{Applied: true})
			time.Sleep(4 * time.Second) // less than nowherePatience
			synctest.Wait()
			if (looks > before) != looked || woken.times-wasWoken != times {
				t.Errorf("%s: %d looks, the loop is woken %d times", what, looks-before, woken.times-wasWoken)
			}
		}
		near := netip.MustParseAddr("198.51.100.7")
		step("the host", true, 0, &reconcile.Host{}, near, "10.1.2.11:80")
		step("another endpoint", false, 0, nil, near, "10.1.2.12:80")
		changes++
		unanswered = []wire.Unanswered{{Address: near.String(), Interface: "eth0", Network: "198.51.100.0/24", Services: []string{"default/web"}}}
		step("another frontend", true, 0, nil, near, "10.1.2.12:80")
		time.Sleep(nowherePatience)
		synctest.Wait()
		if woken.times != 1 || len(a.found()) != 1 {
			t.Errorf("the loop is woken %d times for %+v", woken.times, a.found())
		}
		step("an address of a pool", true, 0, nil, pool, "10.1.2.12:80")
	})
}
