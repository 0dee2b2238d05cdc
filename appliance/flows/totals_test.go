package flows

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/nft"
)

var (
	vip = netip.MustParseAddrPort("10.96.0.10:80")
	one = netip.MustParseAddrPort("10.1.2.11:8080")
	two = netip.MustParseAddrPort("10.1.2.12:8080")
)

// web is the only port of default/web.
func web(endpoints ...netip.AddrPort) []nft.ServicePort {
	p := nft.ServicePort{ID: "default/web", Family: nft.IPv4, Protocol: nft.TCP, Frontends: []nft.Frontend{{Addr: vip.Addr(), Port: vip.Port()}, {Port: 30080}}}
	p.Pools[nft.PoolCluster] = endpoints
	return []nft.ServicePort{p}
}

func connection(id uint32, to, endpoint netip.AddrPort, bytes uint64) *conntrack.Connection {
	client := netip.AddrPortFrom(netip.MustParseAddr("203.0.113.2"), uint16(10000+id))
	return &conntrack.Connection{ID: id, Family: nft.IPv4, Protocol: nft.TCP, Client: client, To: to, Endpoint: endpoint, As: client, In: bytes, Out: 2 * bytes, Counted: true}
}

// kernel is a connection tracking table, and the messages that are not heard yet.
type kernel struct {
	t      *testing.T
	book   *Totals
	now    time.Time
	table  map[uint32]*conntrack.Connection
	queue  []conntrack.Event
	lose   bool
	next   uint32
	logged []string
}

func newKernel(t *testing.T) *kernel {
	k := &kernel{t: t, now: time.Unix(1_800_000_000, 0), table: map[uint32]*conntrack.Connection{}}
	k.book = NewTotals(func(e *Ended) {
		began := "?"
		if !e.Began.IsZero() {
			began = fmt.Sprint(e.Began.Sub(time.Unix(1_800_000_000, 0)))
		}
		k.logged = append(k.logged, fmt.Sprintf("%s %q %s began %s ended %s in %d", e.Service, e.Port, e.Endpoint, began, e.Ended.Sub(time.Unix(1_800_000_000, 0)), e.In))
	})
	k.book.Plan("default/web", web(one, two), false, k.now)
	k.book.Listening()
	return k
}

// A look may come before it is known which connections were there: it counts none of them, then or later.
func TestLookBeforeListening(t *testing.T) {
	k := newKernel(t)
	k.book = NewTotals(nil)
	k.book.Plan("default/web", web(one, two), false, k.now)
	there := k.begin(vip, one, 10)
	k.queue = nil
	k.want("a look before", Record{}, Record{}, Record{})
	k.book.Before(k.table[there])
	k.book.Listening()
	k.want("a look after", Record{}, Record{}, Record{})
	k.begin(vip, two, 7)
	k.end(there)
	k.want("one began, the old one ended", Record{}, Record{1, 7, 14}, Record{1, 7, 14})
}

func (k *kernel) begin(to, endpoint netip.AddrPort, bytes uint64) uint32 {
	k.next++
	c := connection(k.next, to, endpoint, bytes)
	k.table[c.ID] = c
	k.queue = append(k.queue, conntrack.Event{Connection: c})
	return c.ID
}

func (k *kernel) end(id uint32) {
	if !k.lose {
		k.queue = append(k.queue, conntrack.Event{Connection: k.table[id], Over: true, Ended: k.now})
	}
	delete(k.table, id)
}

// hear passes the queued messages to the book.
func (k *kernel) hear() {
	for i := range k.queue {
		k.book.RecordEnd(&k.queue[i], k.now)
	}
	k.queue = nil
}

// look has during called halfway through the table.
func (k *kernel) look(during func()) (endpoints map[netip.AddrPort]Record, all Record) {
	k.hear()
	l := k.book.Snapshot(k.now)
	open := map[netip.AddrPort]Record{}
	ids := []uint32{}
	for i, id := range slices.Sorted(func(yield func(uint32) bool) {
		for id := range k.table {
			if !yield(id) {
				return
			}
		}
	}) {
		if during != nil && i == len(k.table)/2 {
			during()
			during = nil
		}
		c := k.table[id]
		if c == nil {
			continue
		}
		ids = append(ids, id)
		if l.Counts(c) {
			r := open[c.Endpoint]
			r.Add(RecordOf(c))
			open[c.Endpoint] = r
		}
	}
	endpoints, all = l.Total("default/web", nft.IPv4, nft.TCP, open)
	l.End(ids)
	return endpoints, all
}

func (k *kernel) want(when string, wantOne, wantTwo, wantAll Record) {
	k.t.Helper()
	endpoints, all := k.look(nil)
	if endpoints[one] != wantOne || endpoints[two] != wantTwo || all != wantAll {
		k.t.Errorf("%s: %+v, all %+v; want %+v, %+v, %+v", when, endpoints, all, wantOne, wantTwo, wantAll)
	}
}

func TestTotals(t *testing.T) {
	k := newKernel(t)
	a, b := k.begin(vip, one, 100), k.begin(vip, two, 10)
	k.want("open", Record{1, 100, 200}, Record{1, 10, 20}, Record{2, 110, 220})
	k.table[a].In = 150
	k.want("more was sent", Record{1, 150, 200}, Record{1, 10, 20}, Record{2, 160, 220})
	k.end(a)
	k.want("one ended", Record{1, 150, 200}, Record{1, 10, 20}, Record{2, 160, 220})
	k.begin(vip, one, 1)
	k.end(b)
	k.want("one began, one ended", Record{2, 151, 202}, Record{1, 10, 20}, Record{3, 161, 222})

	k.book.Plan("default/web", web(one), false, k.now)
	c := k.begin(vip, two, 5) // picked before the change
	k.end(c)
	k.want("an endpoint left", Record{2, 151, 202}, Record{2, 15, 30}, Record{4, 166, 232})
	k.book.Plan("default/web", nil, false, k.now)
	k.book.Plan("default/web", web(one), false, k.now)
	k.want("the Service is another one", Record{1, 1, 2}, Record{}, Record{1, 1, 2})
}

func TestNodePortsAndStrangers(t *testing.T) {
	k := newKernel(t)
	node := netip.MustParseAddr("192.0.2.1")
	k.book.Host([]netip.Addr{node})
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(node, 30080), netip.MustParseAddrPort("192.0.2.7:30080"), netip.MustParseAddrPort("10.96.0.10:81")} {
		k.end(k.begin(to, one, 1))
	}
	k.want("a node port", Record{1, 1, 2}, Record{}, Record{1, 1, 2})
}

// What was there before the kernel was listened to is in no total, whether its end is told or not.
func TestConnectionsOfBefore(t *testing.T) {
	k := newKernel(t)
	a, b := k.begin(vip, one, 100), k.begin(vip, one, 100)
	k.queue = nil
	for _, c := range k.table {
		k.book.Before(c)
	}
	k.want("before", Record{}, Record{}, Record{})
	k.end(a)
	delete(k.table, b) // without a message
	k.want("ended", Record{}, Record{}, Record{})
	if len(k.book.old) > 0 {
		t.Errorf("%d connections are remembered that are over", len(k.book.old))
	}
}

// Totals go on in another process, and never go back: with what is open, and without what did not count before. As many
// as ended meanwhile are missed of those that began.
func TestTotalsGoOn(t *testing.T) {
	k := newKernel(t)
	old := k.begin(vip, one, 100)
	k.queue = nil
	k.book.Before(k.table[old])
	k.end(k.begin(vip, one, 10))
	stays, ends := k.begin(vip, one, 20), k.begin(vip, two, 30)
	k.want("before", Record{2, 30, 60}, Record{1, 30, 60}, Record{3, 60, 120})

	text, err := json.Marshal(k.book.Save())
	if err != nil {
		t.Fatal(err)
	}
	var saved Saved
	if err := json.Unmarshal(text, &saved); err != nil {
		t.Fatal(err)
	}
	delete(k.table, ends)
	k.begin(vip, two, 7)
	k.book = NewTotals(nil)
	k.book.Restore(&saved)
	k.book.Plan("default/web", web(one, two), false, k.now)
	if !k.book.Resumed() || k.book.Resumed() {
		t.Error("it resumes once")
	}
	k.book.Lose(0) // as it is not known what ended meanwhile
	k.want("after", Record{2, 30, 60}, Record{1, 30, 60}, Record{3, 60, 120})
	k.table[stays].In = 25
	k.end(stays)
	k.end(old)
	k.want("ended after", Record{2, 35, 60}, Record{1, 30, 60}, Record{3, 65, 120})
}

// A connection that ends while the table is read is counted once, whatever the reader saw of it.
func TestEndsDuringALook(t *testing.T) {
	for _, victim := range []int{0, 7} {
		k := newKernel(t)
		var ids []uint32
		for range 8 {
			ids = append(ids, k.begin(vip, one, 1))
		}
		k.look(func() {
			k.end(ids[victim])
			k.hear()
		})
		k.want(fmt.Sprintf("connection %d ended meanwhile", victim), Record{8, 8, 16}, Record{}, Record{8, 8, 16})
	}
}

func TestLostMessages(t *testing.T) {
	k := newKernel(t)
	k.book.Plan("default/web", web(one, two), true, k.now)
	var ids []uint32
	for range 10 {
		ids = append(ids, k.begin(vip, one, 1))
	}
	k.want("open", Record{10, 10, 20}, Record{}, Record{10, 10, 20})
	k.lose = true
	for _, id := range ids[:9] {
		k.end(id)
	}
	k.lose = false
	k.book.Lose(9)
	k.now = k.now.Add(time.Second)
	k.want("nine ends were lost", Record{10, 10, 20}, Record{}, Record{10, 10, 20})
	k.begin(vip, one, 1)
	k.want("and another one began", Record{11, 11, 22}, Record{}, Record{11, 11, 22})
	if k.book.Lost() != 9 || len(k.book.begun) != 2 {
		t.Errorf("%d lost, %d begun; want 9, 2", k.book.Lost(), len(k.book.begun))
	}
}

// Totals never go back, and are exact whenever all was heard.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		k := newKernel(t)
		made := map[netip.AddrPort]uint64{}
		before, allBefore := map[netip.AddrPort]Record{}, Record{}
		for range 60 {
			switch r.IntN(5) {
			case 0, 1:
				at := []netip.AddrPort{one, two}[r.IntN(2)]
				made[at]++
				k.begin(vip, at, 1)
			case 2, 3:
				for id := range k.table {
					k.end(id)
					break
				}
			case 4:
				endpoints := [][]netip.AddrPort{{one}, {two}, {one, two}, {}}[r.IntN(4)]
				k.book.Plan("default/web", web(endpoints...), false, k.now)
			}
			if r.IntN(3) > 0 {
				continue
			}
			k.now = k.now.Add(time.Second)
			endpoints, all := k.look(func() {
				for id := range k.table {
					k.end(id)
					break
				}
				k.hear()
			})
			for at, was := range before {
				if endpoints[at].Connections < was.Connections {
					t.Fatalf("seed %d: %s went back from %d to %d", seed, at, was.Connections, endpoints[at].Connections)
				}
			}
			if all.Connections < allBefore.Connections {
				t.Fatalf("seed %d: all went back from %d to %d", seed, allBefore.Connections, all.Connections)
			}
			before, allBefore = endpoints, all
		}
		endpoints, all := k.look(nil)
		if endpoints[one].Connections != made[one] || endpoints[two].Connections != made[two] || all.Connections != made[one]+made[two] {
			t.Fatalf("seed %d: %v, all %v; want %v", seed, endpoints, all, made)
		}
	}
}

// Endpoints that come and go take no memory for ever, and their connections stay in the sum.
func TestManyEndpoints(t *testing.T) {
	k := newKernel(t)
	const n = 10 * maxLeft
	for i := range n {
		k.now = k.now.Add(time.Second)
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), 80)
		k.book.Plan("default/web", web(at), false, k.now)
		k.end(k.begin(vip, at, 1))
		k.hear()
	}
	endpoints, all := k.look(nil)
	if len(endpoints) > maxLeft+1 || all != (Record{n, n, 2 * n}) {
		t.Errorf("%d endpoints, %+v; want %d at most, %d", len(endpoints), all, maxLeft+1, n)
	}
}

func TestLog(t *testing.T) {
	k := newKernel(t)
	if k.book.Logs() {
		t.Error("nobody asked for a log")
	}
	k.book.Plan("default/web", web(one), true, k.now)
	if !k.book.Logs() {
		t.Error("a Service asked for a log")
	}
	a := k.begin(vip, one, 7)
	k.hear()
	k.now = k.now.Add(3 * time.Second)
	k.book.Plan("default/web", nil, false, k.now) // the connection outlives its Service
	k.end(a)
	k.hear()
	k.book.Plan("default/web", web(one), true, k.now)
	b := k.begin(vip, one, 8)
	k.queue = nil // when it began was not heard
	k.end(b)
	k.hear()
	k.book.Plan("default/web", web(one), false, k.now)
	k.end(k.begin(vip, one, 9))
	k.hear()
	want := []string{
		`default/web "" 10.1.2.11:8080 began 0s ended 3s in 7`,
		`default/web "" 10.1.2.11:8080 began ? ended 3s in 8`,
	}
	if !slices.Equal(k.logged, want) {
		t.Errorf("got %q, want %q", k.logged, want)
	}
	if k.book.Logs() || len(k.book.begun) > 0 {
		t.Error("something is left")
	}
}

// Whose connection ended at the relay is said, also when its Service is served by the kernel by then.
func TestLogOfARelayedPort(t *testing.T) {
	listener := netip.MustParseAddrPort("192.0.2.1:10270")
	got := map[string]bool{}
	book := NewTotals(func(e *Ended) { got[fmt.Sprint(e.ID, " ", e.Endpoint)] = e.Relayed })
	now := time.Unix(1_800_000_000, 0)
	relayed := web(one)
	relayed[0].Relay[nft.PoolCluster] = listener
	book.Plan("default/web", relayed, true, now)
	conns := []*conntrack.Connection{connection(1, vip, listener, 7), connection(2, vip, listener, 7)}
	for _, c := range conns {
		book.RecordEnd(&conntrack.Event{Connection: c}, now)
	}
	book.RecordEnd(&conntrack.Event{Connection: conns[0], Over: true, Ended: now}, now)
	book.Plan("default/web", web(one), true, now)
	book.RecordEnd(&conntrack.Event{Connection: conns[1], Over: true, Ended: now}, now)
	c := connection(3, vip, one, 7)
	book.RecordEnd(&conntrack.Event{Connection: c}, now)
	book.RecordEnd(&conntrack.Event{Connection: c, Over: true, Ended: now}, now)
	if want := map[string]bool{"1 192.0.2.1:10270": true, "2 192.0.2.1:10270": true, "3 10.1.2.11:8080": false}; !maps.Equal(got, want) {
		t.Errorf("relayed: %v, want %v", got, want)
	}
}

// A connection to a range of ports counts for the address of its endpoint, one to an exact port in it
// for that port's.
func TestRanges(t *testing.T) {
	k := newKernel(t)
	media := nft.ServicePort{ID: "default/media", Family: nft.IPv4, Protocol: nft.TCP, Frontends: []nft.Frontend{{Addr: vip.Addr(), Port: 1, Last: 20000}}}
	media.Pools[nft.PoolCluster] = []netip.AddrPort{netip.AddrPortFrom(one.Addr(), 0)}
	k.book.Plan("default/media", []nft.ServicePort{media}, false, k.now)
	for _, to := range []netip.AddrPort{vip, netip.AddrPortFrom(vip.Addr(), 10000), netip.AddrPortFrom(vip.Addr(), 10001)} {
		c := connection(uint32(to.Port()), to, netip.AddrPortFrom(one.Addr(), to.Port()), 100)
		k.book.RecordEnd(&conntrack.Event{Connection: c, Over: true}, k.now)
	}
	for id, want := range map[string]uint64{"default/media": 2, "default/web": 1} {
		var got uint64
		for _, r := range k.book.services[id][0].endpoints {
			got += r.Ended.Connections
		}
		if got != want {
			t.Errorf("%s has %d connections, want %d", id, got, want)
		}
	}
	if at := k.book.services["default/media"][0].endpoints; len(at) != 1 {
		t.Errorf("the range has %d endpoints, want the address alone", len(at))
	}
	k.book.Plan("default/media", nil, false, k.now)
	if len(k.book.frontends.Ranges) > 0 {
		t.Error("a range is left of a Service that is gone")
	}
}
