package parts

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
)

// fakeSampler has the connections of a connection tracking table.
type fakeSampler struct {
	sync.Mutex
	connections map[uint32]netip.AddrPort
	looks       int
	closed      bool
	err         error
}

func (c *fakeSampler) Scan(_ *conntrack.Asked, each func(conntrack.Tracked)) error {
	c.Lock()
	defer c.Unlock()
	c.looks++
	c.closed = false
	for id, at := range c.connections {
		each(conntrack.Tracked{ID: id, Endpoint: at})
	}
	return c.err
}

func (c *fakeSampler) Close() error {
	c.Lock()
	defer c.Unlock()
	c.closed = true
	return nil
}

func (c *fakeSampler) connect(id uint32, to string) {
	c.Lock()
	defer c.Unlock()
	c.connections[id] = at(to)
}

func (c *fakeSampler) fail(err error) {
	c.Lock()
	defer c.Unlock()
	c.err = err
}

func (c *fakeSampler) state() (looks int, closed bool) {
	c.Lock()
	defer c.Unlock()
	return c.looks, c.closed
}

// tuned is a Balance under a loop that plans one Service again whenever it is asked to.
type tuned struct {
	*Balance
	wakes   wakes
	served  func() map[resolve.Frontend]*nft.ServicePort // before this process
	sampler *fakeSampler
	svc     reconcile.Service
	resolve func() nft.ServicePort
	plans   int
	relay   [nft.NumPools]netip.AddrPort // valid: the port is relayed
}

func newTuned(t *testing.T, over time.Duration, balance nft.Balance, endpoints ...string) *tuned {
	c := &fakeSampler{connections: map[uint32]netip.AddrPort{}}
	u := &tuned{Balance: newBalance(c, slog.New(slog.DiscardHandler)), sampler: c}
	u.set(over, balance, endpoints...)
	ctx, stop := context.WithCancel(t.Context())
	u.Attach(u.wakes.changed)
	go func() { _ = u.Run(ctx) }()
	t.Cleanup(stop)
	return u
}

// set has the Service have other endpoints, as "10.1.0.1=3".
func (u *tuned) set(over time.Duration, balance nft.Balance, endpoints ...string) {
	u.resolve = func() nft.ServicePort {
		p := nft.ServicePort{
			Relay: u.relay,
			ID:    "default/web", Family: nft.IPv4, Protocol: nft.TCP, Balance: balance,
			Frontends: []nft.Frontend{{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}},
		}
		for _, text := range endpoints {
			addr, weight, weighs := strings.Cut(text, "=")
			ap := at(addr + ":80")
			p.Pools[nft.PoolCluster] = append(p.Pools[nft.PoolCluster], ap)
			if !weighs {
				continue
			}
			if p.Weights[nft.PoolCluster] == nil {
				p.Weights[nft.PoolCluster] = map[netip.AddrPort]uint16{}
			}
			n, _ := strconv.ParseUint(weight, 10, 16)
			p.Weights[nft.PoolCluster][ap] = uint16(n)
		}
		u.Tune(&p, over, u.served)
		return p
	}
	u.svc = reconcile.Service{Key: "default/web", Settings: resolve.Settings{SlowStart: over}}
	u.plan()
}

func (u *tuned) plan() {
	u.svc.Ports = []nft.ServicePort{u.resolve()}
	u.Planned(nil, []reconcile.Service{u.svc})
	u.served = nil
	u.plans++
}

// cares reports whether any port is looked after.
func (u *tuned) cares() bool {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return len(u.ports)+len(u.services) > 0
}

// pass lets time pass, second by second, with steps of the loop.
func (u *tuned) pass(d time.Duration) {
	for range int(d / time.Second) {
		time.Sleep(time.Second)
		synctest.Wait()
		if len(u.wakes.take()) > 0 {
			u.plan()
		}
		synctest.Wait()
	}
}

// shares are those of the endpoints, in percent.
func (u *tuned) shares() (list []int) {
	for _, share := range u.svc.Ports[0].Shares(nft.PoolCluster) {
		list = append(list, int(math.Round(100*share)))
	}
	return list
}

func (u *tuned) wantShares(t *testing.T, what string, want ...int) {
	t.Helper()
	if got := u.shares(); !slices.Equal(got, want) {
		t.Errorf("%s: shares of %v %%, want %v", what, got, want)
	}
}

// A new endpoint begins with a tenth of its weight, which grows with the time; so does one that comes back.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newTuned(t, 20*time.Second, nft.Random, "10.1.0.1", "10.1.0.2")
		u.wantShares(t, "all are new", 50, 50)
		u.set(20*time.Second, nft.Random, "10.1.0.1", "10.1.0.2", "10.1.0.3")
		u.wantShares(t, "one is new", 48, 48, 5)
		u.pass(11 * time.Second)
		u.wantShares(t, "after more than a half", 39, 39, 22)
		u.pass(12 * time.Second)
		u.wantShares(t, "after all of it", 33, 33, 33)
		if u.svc.Ports[0].Weights[nft.PoolCluster] != nil || len(u.svc.Ports[0].Starting) > 0 {
			t.Errorf("weights %v are left, and %v start", u.svc.Ports[0].Weights, u.svc.Ports[0].Starting)
		}
		plans := u.plans
		u.pass(time.Minute)
		if u.plans != plans {
			t.Errorf("%d plans more while nothing happens", u.plans-plans)
		}
		u.set(20*time.Second, nft.Random, "10.1.0.1", "10.1.0.3")
		u.set(20*time.Second, nft.Random, "10.1.0.1", "10.1.0.2", "10.1.0.3")
		u.wantShares(t, "one is back", 48, 5, 48)
		u.set(0, nft.Random, "10.1.0.1", "10.1.0.2", "10.1.0.3")
		u.wantShares(t, "without the annotation", 33, 33, 33)
		if u.cares() || !u.due().IsZero() {
			t.Errorf("a Service is looked after that asks for nothing, next at %s", u.due())
		}
		if looks, _ := u.sampler.state(); looks > 0 {
			t.Errorf("%d looks at connections", looks)
		}
	})
}

// A new endpoint of a relayed port gets its weight step by step too; connections are counted by the relay.
func TestSlowStartOfRelayedPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newTuned(t, 20*time.Second, nft.LeastConnection, "10.1.0.1", "10.1.0.2")
		u.relay = [nft.NumPools]netip.AddrPort{at("192.0.2.1:10270"), at("192.0.2.1:10271")}
		u.set(20*time.Second, nft.LeastConnection, "10.1.0.1", "10.1.0.2", "10.1.0.3")
		looks, _ := u.sampler.state()
		p := &u.svc.Ports[0]
		if got := weightsOf(p, nft.PoolCluster); !slices.Equal(got, []uint16{1000, 1000, 100}) {
			t.Errorf("weights %v, want that the third one has a tenth", got)
		}
		if p.Tables[nft.PoolCluster] != nil {
			t.Error("the kernel is to have a table of a relayed port")
		}
		u.pass(21 * time.Second)
		p = &u.svc.Ports[0]
		if got := weightsOf(p, nft.PoolCluster); got != nil || len(p.Starting) > 0 {
			t.Errorf("after the time: weights %v, want none", got)
		}
		if now, closed := u.sampler.state(); now != looks || !closed {
			t.Errorf("%d looks at connections for a relayed port, closed: %t", now-looks, closed)
		}
		u.set(0, nft.LeastConnection, "10.1.0.1")
		if u.cares() {
			t.Error("a relayed Service is looked after that asks for nothing")
		}
	})
}

// The largest weights have room too, and a weight of 1 beside them keeps a share.
func TestSlowStartOfLargeWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newTuned(t, 20*time.Second, nft.Random, "10.1.0.1=65535", "10.1.0.2=1")
		u.set(20*time.Second, nft.Random, "10.1.0.1=65535", "10.1.0.2=1", "10.1.0.3=65535", "10.1.0.4=1")
		if w := u.svc.Ports[0].Weights[nft.PoolCluster]; w[at("10.1.0.3:80")] != 6553 || w[at("10.1.0.4:80")] != 1 || w[at("10.1.0.1:80")] != 65535 {
			t.Errorf("weights %v", w)
		}
	})
}

func at(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// What the kernel serves at a start is not new, and stays in its slots: nothing is committed.
func TestBalanceAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := newTuned(t, 20*time.Second, nft.LeastConnection, "10.1.0.1", "10.1.0.2", "10.1.0.3")
		for id := range uint32(30) {
			first.sampler.connect(id, "10.1.0.1:80")
			first.pass(time.Second)
		}
		moved := first.svc.Ports[0]
		if got := first.shares(); got[0] > 10 {
			t.Fatalf("shares of %v %% while all connections are at the first endpoint", got)
		}
		// A range that begins with the same port has endpoints of its own.
		others := nft.ServicePort{
			ID: "default/web/tcp-80-90", Family: nft.IPv4, Protocol: nft.TCP,
			Frontends: []nft.Frontend{{Addr: moved.Frontends[0].Addr, Port: 80, Last: 90}},
		}
		others.Pools[nft.PoolCluster] = []netip.AddrPort{at("10.1.0.9:0")}
		for _, endpoints := range [][]string{{"10.1.0.1", "10.1.0.2", "10.1.0.3"}, {"10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"}} {
			u := &tuned{Balance: newBalance(&fakeSampler{}, slog.New(slog.DiscardHandler))}
			u.served = func() map[resolve.Frontend]*nft.ServicePort {
				return reconcile.ServedBefore(nft.Compile(nft.State{Services: map[string][]nft.ServicePort{"default/web": {moved, others}}}))
			}
			u.set(20*time.Second, nft.LeastConnection, endpoints...)
			same := 0
			for i, ap := range u.svc.Ports[0].Tables[nft.PoolCluster] {
				if ap == moved.Tables[nft.PoolCluster][i] {
					same++
				}
			}
			if want := map[int]int{3: 64, 4: 62}[len(endpoints)]; same != want || len(u.svc.Ports[0].Starting) != len(endpoints)-3 {
				t.Errorf("%d endpoints: %d of 64 slots are as before, want %d; %v start; shares of %v %%, before %v", len(endpoints), same, want, u.svc.Ports[0].Starting, u.shares(), first.shares())
			}
		}
	})
}

// The endpoint with fewer open connections gets more of the next ones. What the endpoints are, and their
// weights, may change meanwhile.
func TestLeastConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newTuned(t, 0, nft.LeastConnection, "10.1.0.1", "10.1.0.2")
		u.wantShares(t, "at first", 50, 50)
		id := uint32(0)
		come := func(n int, to string) {
			for range n {
				id++
				u.sampler.connect(id, to)
			}
		}
		for range 10 {
			come(2, "10.1.0.1:80")
			come(1, "10.1.0.2:80")
			u.pass(time.Second)
		}
		u.wantShares(t, "the second has less", 13, 88)
		u.set(0, nft.LeastConnection, "10.1.0.1", "10.1.0.2", "10.1.0.3")
		if got := u.shares(); got[2] != 33 || got[0] >= got[1] {
			t.Errorf("shares of %v %% when a third one comes, want its weight's", got)
		}
		come(3, "10.1.0.2:80")
		u.pass(time.Second)
		if got := u.shares(); got[2] != 88 {
			t.Errorf("shares of %v %%, want all but an eighth for the one without connections", got)
		}
		plans, moved := u.plans, u.svc.Ports[0].Tables
		u.pass(10 * time.Second)
		if u.plans != plans {
			t.Errorf("%d plans while no connection comes or goes", u.plans-plans)
		}
		u.sampler.fail(errors.New("no room"))
		u.pass(10 * time.Second)
		if list := u.Problems(); len(list) != 1 || list[0].Reason != "NoFeedback" || !slices.Equal(moved[0], u.svc.Ports[0].Tables[0]) {
			t.Errorf("problems %v when a look fails", list)
		}
		u.sampler.fail(nil)
		u.pass(10 * time.Second)
		if list := u.Problems(); len(list) > 0 {
			t.Errorf("problems %v after it", list)
		}
		u.set(0, nft.Random, "10.1.0.1", "10.1.0.2", "10.1.0.3")
		looks, _ := u.sampler.state()
		u.pass(time.Minute)
		if more, closed := u.sampler.state(); more != looks || !closed || u.cares() {
			t.Errorf("%d looks while no Service asks for it; closed: %t", more-looks, closed)
		}
	})
}
