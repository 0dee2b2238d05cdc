package announcements

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/nft"
)

var (
	pool   = []nft.Range{{First: netip.MustParseAddr("198.51.100.0"), Last: netip.MustParseAddr("198.51.100.15")}, {First: netip.MustParseAddr("2001:db8::"), Last: netip.MustParseAddr("2001:db8::f")}}
	backed = []netip.AddrPort{netip.MustParseAddrPort("10.1.0.1:80")}
)

// port is a port at some addresses, with endpoints anywhere and on this box.
func port(cluster, local []netip.AddrPort, outside nft.Pool, addrs ...string) nft.ServicePort {
	p := nft.ServicePort{Pools: [nft.NumPools][]netip.AddrPort{cluster, local}}
	for _, a := range addrs {
		p.Frontends = append(p.Frontends, nft.Frontend{Addr: netip.MustParseAddr(a), Port: 80, Kind: nft.LoadBalancerIP, External: nft.Route{Pool: outside}})
	}
	return p
}

func TestWanted(t *testing.T) {
	cluster := port(backed, nil, nft.PoolCluster, "198.51.100.4")
	host := port(backed, nil, nft.PoolCluster, "198.51.100.5")
	host.Frontends[0].HostOwned = true
	clusterIP := port(backed, nil, nft.PoolCluster, "198.51.100.6")
	clusterIP.Frontends[0].Kind = nft.ClusterIP
	nodePort := nft.ServicePort{Pools: cluster.Pools, Frontends: []nft.Frontend{{Port: 30080, Kind: nft.NodePort}}}
	for name, test := range map[string]struct {
		ports []nft.ServicePort
		want  string
	}{
		"served":                        {[]nft.ServicePort{cluster}, "198.51.100.4:"},
		"nobody":                        {[]nft.ServicePort{port(nil, nil, nft.PoolCluster, "198.51.100.4")}, "198.51.100.4:" + noEndpoint},
		"nobody here":                   {[]nft.ServicePort{port(backed, nil, nft.PoolLocal, "198.51.100.4")}, "198.51.100.4:" + noLocalEndpoint},
		"somebody here":                 {[]nft.ServicePort{port(backed, backed, nft.PoolLocal, "198.51.100.4")}, "198.51.100.4:"},
		"one port of two":               {[]nft.ServicePort{port(nil, nil, nft.PoolCluster, "198.51.100.4"), cluster}, "198.51.100.4:"},
		"the other port":                {[]nft.ServicePort{cluster, port(nil, nil, nft.PoolCluster, "198.51.100.4")}, "198.51.100.4:"},
		"both families":                 {[]nft.ServicePort{port(backed, nil, nft.PoolCluster, "198.51.100.4", "2001:db8::4")}, "198.51.100.4: 2001:db8::4:"},
		"outside of the pools":          {[]nft.ServicePort{port(backed, nil, nft.PoolCluster, "198.51.100.16", "192.0.2.1")}, ""},
		"an address of the host":        {[]nft.ServicePort{host}, "198.51.100.5:" + hostAddress},
		"cluster IPs and node ports":    {[]nft.ServicePort{clusterIP, nodePort}, ""},
		"the reason that says the most": {[]nft.ServicePort{port(nil, nil, nft.PoolLocal, "198.51.100.4"), port(backed, nil, nft.PoolLocal, "198.51.100.4")}, "198.51.100.4:" + noLocalEndpoint},
	} {
		var got []string
		for a, why := range wantedOf(test.ports, New(pool).inRanges) {
			got = append(got, a.String()+":"+why)
		}
		slices.Sort(got)
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// watch collects the events of a watch, as "+ADDRESS", "-ADDRESS" for gone and "?ADDRESS" for withheld.
type watch struct {
	events chan string
	end    context.CancelFunc
}

func (b *Registry) collect(t *testing.T, announces bool) *watch {
	ctx, cancel := context.WithCancel(t.Context())
	w := &watch{make(chan string), cancel}
	go func() {
		defer close(w.events)
		_ = b.Watch(ctx, announces, func(e wire.AnnouncementsEvent) error {
			text, items := "", e.Set
			if e.All != nil {
				text, items = "all", e.All.Items
			}
			var words []string
			for _, item := range items {
				words = append(words, map[bool]string{true: "+", false: "?"}[item.Withheld == ""]+item.Address)
			}
			for _, a := range e.Gone {
				words = append(words, "-"+a)
			}
			slices.Sort(words)
			select {
			case w.events <- strings.TrimSpace(text + " " + strings.Join(words, " ")):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	return w
}

func (w *watch) hears(t *testing.T, want string) {
	t.Helper()
	if got := <-w.events; got != want {
		t.Fatalf("heard %q, want %q", got, want)
	}
}

func TestOrder(t *testing.T) {
	b := New(pool)
	w := b.collect(t, true)
	b.Plan("default/web", nil, []nft.ServicePort{port(backed, nil, nft.PoolCluster, "198.51.100.4", "2001:db8::4")})
	b.Plan("default/dns", nil, []nft.ServicePort{port(nil, nil, nft.PoolCluster, "198.51.100.5")})
	b.Programmed()
	w.hears(t, "all +198.51.100.4 +2001:db8::4 ?198.51.100.5")

	// An announcement comes with the rules; a withdrawal before.
	b.Plan("default/dns", nil, []nft.ServicePort{port(backed, nil, nft.PoolCluster, "198.51.100.5")})
	b.Plan("default/web", nil, []nft.ServicePort{port(backed, nil, nft.PoolCluster, "198.51.100.4")})
	w.hears(t, "-2001:db8::4")
	b.Programmed()
	w.hears(t, "+198.51.100.5")
	b.Plan("default/web", nil, []nft.ServicePort{port(nil, nil, nft.PoolCluster, "198.51.100.4")})
	w.hears(t, "?198.51.100.4")
	b.Programmed()

	// Two Services share an address: it stays while one of them is served.
	b.Plan("default/other", nil, []nft.ServicePort{port(backed, nil, nft.PoolCluster, "198.51.100.4")})
	b.Programmed()
	w.hears(t, "+198.51.100.4")
	b.Plan("default/web", nil, nil)
	b.Programmed()
	w.hears(t, "+198.51.100.4") // with one Service now
	if all := b.List(); fmt.Sprint(all.Items[0].Services) != "[default/other]" || all.Announcer == nil {
		t.Errorf("%+v", all)
	}
	b.Plan("default/other", nil, nil)
	w.hears(t, "-198.51.100.4")
	// What changes nothing wakes no watcher.
	b.Plan("default/dns", nil, []nft.ServicePort{port(slices.Repeat(backed, 2), nil, nft.PoolCluster, "198.51.100.5")})
	b.Programmed()
	late := b.collect(t, false)
	late.hears(t, "all +198.51.100.5")
	select {
	case extra := <-w.events:
		t.Errorf("heard %q of nothing", extra)
	default:
	}
}

// What a slow watch missed it hears once, as it is.
func TestSlowWatch(t *testing.T) {
	b := New(pool)
	b.Programmed()
	w := b.collect(t, false)
	w.hears(t, "all")
	b.Plan("default/a", nil, []nft.ServicePort{port(backed, nil, nft.PoolCluster, "198.51.100.1")})
	b.Programmed()
	// Its goroutine may hold that by now; what follows is joined.
	for range 100 {
		b.Plan("default/b", nil, []nft.ServicePort{port(backed, nil, nft.PoolCluster, "198.51.100.2")})
		b.Programmed()
		b.Plan("default/b", nil, nil)
		b.Programmed()
	}
	b.Plan("default/c", nil, []nft.ServicePort{port(backed, nil, nft.PoolCluster, "198.51.100.3")})
	b.Programmed()
	var heard []string
	for !strings.Contains(strings.Join(heard, " "), "+198.51.100.3") {
		heard = append(heard, <-w.events)
	}
	if len(heard) > 10 {
		t.Errorf("a slow watch heard %d times: %q", len(heard), heard)
	}
}

// What objects say is told as it was when it was told, whatever comes after.
func TestConfigIsACopy(t *testing.T) {
	b := New(pool)
	b.Programmed()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []*wire.AnnounceConfig
	_ = b.Follow(ctx, func(e wire.AnnouncementsEvent) error {
		if got = append(got, e.Config); len(got) == 2 {
			return context.Canceled
		}
		b.SetPlan(pool, nil, wire.AnnounceConfig{Interfaces: []string{"eth0"}})
		return nil
	})
	if len(got[0].Interfaces) != 0 || !slices.Equal(got[1].Interfaces, []string{"eth0"}) {
		t.Errorf("told are %+v and then %+v", got[0], got[1])
	}
}

// signaled takes a signal of changed problems, if there is one.
func signaled(b *Registry) bool {
	select {
	case <-b.Changed():
		return true
	default:
		return false
	}
}

func TestReports(t *testing.T) {
	b := New(pool)
	b.Plan("default/web", nil, []nft.ServicePort{port(backed, nil, nft.PoolCluster, "198.51.100.4")})
	b.Programmed()
	if _, missing := b.Missing(); missing {
		t.Error("an announcer that never was is missing")
	}
	w := b.collect(t, true)
	w.hears(t, "all +198.51.100.4")
	report := func(address, state string) (changed bool) {
		b.Report(wire.AnnouncerReport{Items: []wire.AnnouncedAddress{{Address: address, Places: []wire.Place{{By: "l2 eth0", State: state, With: "02:00:00:00:00:01"}}}}})
		return signaled(b)
	}
	signaled(b) // the announcer came
	if report("198.51.100.4", "announced") || len(b.Conflicts()) != 0 {
		t.Error("announced is a conflict")
	}
	if got := b.List().Items[0].Places; len(got) != 1 || got[0].By != "l2 eth0" {
		t.Errorf("places are %+v", got)
	}
	if !report("198.51.100.4", "conflict") || len(b.Conflicts()) != 1 || b.Conflicts()[0].Services[0] != "default/web" {
		t.Errorf("conflicts are %+v", b.Conflicts())
	}
	if report("192.0.2.1", "conflict"); len(b.Conflicts()) != 1 {
		t.Error("a report about an address outside of the pools is taken")
	}
	b.Report(wire.AnnouncerReport{All: true})
	if !signaled(b) || len(b.Conflicts()) != 0 {
		t.Error("a conflict outlives the report of all")
	}
	at := netip.MustParseAddr("198.51.100.4")
	for _, state := range []string{"announced", "standby", "conflict", "announced"} {
		if report("198.51.100.4", state); !b.HasAnnouncer(at, "eth0") || b.HasAnnouncer(at, "eth1") {
			t.Errorf("an address that is %s on eth0 alone is not seen to, or on eth1", state)
		}
	}
	b.SetDrained(true)
	if !b.HasAnnouncer(at, "eth1") {
		t.Error("neighbors of a drained box get no answer, and nobody says why")
	}
	b.SetDrained(false)
	w.end()
	for range w.events {
	}
	for {
		if _, missing := b.Missing(); missing {
			break
		}
	}
	if item := b.List().Items[0]; b.HasAnnouncer(at, "eth0") || len(item.Places) > 0 || item.Nowhere != "no announcer is connected" {
		t.Errorf("with the announcer gone %+v is told, on eth0: %t", item, b.HasAnnouncer(at, "eth0"))
	}
}
