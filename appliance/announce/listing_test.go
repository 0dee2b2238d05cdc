package announce

import (
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/bgp"
	"svcctl.io/svcctl/appliance/announce/vrrp"
)

// However a set came about, adverts list its lowest addresses, and its digest.
func TestListing(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var l listing
	set := map[netip.Addr]bool{}
	digests := map[uint64]int{}
	for range 5000 {
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(60))})
		if random.IntN(2) == 0 {
			addr = netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 15: byte(random.IntN(60))})
		}
		if set[addr] {
			delete(set, addr)
			l.remove(addr)
		} else {
			set[addr] = true
			l.add(addr)
		}
		if random.IntN(3) == 0 {
			continue // several changes at once
		}
		l.complete(maps.Keys(set))
		var anew listing
		for addr := range set {
			anew.add(addr)
		}
		for f := range l.low {
			want := slices.SortedFunc(maps.Keys(set), netip.Addr.Compare)
			want = slices.DeleteFunc(want, func(a netip.Addr) bool { return familyOf(a) != f })
			want = want[:min(len(want), mostListed)]
			if !slices.Equal(l.low[f], want) {
				t.Fatalf("of %d addresses %v are listed, want %v", len(set), l.low[f], want)
			}
		}
		for f, got := range l.listed() {
			if want := anew.listed()[f]; !slices.Equal(got, want) {
				t.Fatalf("listed are %v, and of the same set made anew %v", got, want)
			}
		}
		digests[l.digest]++
	}
	if len(digests) < 3000 {
		t.Errorf("there are %d digests of some 3,300 sets", len(digests))
	}
}

// testAnnouncer is an announcer without links, for 192.0.2.50 to 192.0.2.59.
func testAnnouncer(t *testing.T) *announcer {
	a := &announcer{
		log: slog.New(slog.DiscardHandler), wanted: map[netip.Addr]ad{}, file: newStateWriter(t.TempDir()),
		reports: newReports(nil, nil, nil), peers: &peers{table: newTable()},
	}
	a.segments = newSegments(a.log, nil, a.mark)
	a.setRanges([]string{"192.0.2.50-192.0.2.59"})
	return a
}

// A box that hears that it is drained tells routers of no address that it hears of with that.
func TestDrainedFromTheFirstMessage(t *testing.T) {
	a := testAnnouncer(t)
	tor := Peer{Name: "tor-1", Peer: bgp.Peer{Addr: netip.MustParseAddrPort("192.0.2.1:179"), LocalAS: 64512, RemoteAS: 64513, IPv4: true}}
	var err error
	if a.peers, err = newPeers(&BGP{Peers: []Peer{tor}}, nil, a.wanted, false, a.log); err != nil {
		t.Fatal(err)
	}
	all := wire.Announcements{Drained: true, Ranges: []string{"192.0.2.50-192.0.2.59"}, Items: []wire.Announcement{{Address: "192.0.2.50", Flags: true}}}
	if err := a.follow(t.Context(), &wire.AnnouncementsEvent{All: &all, Config: &wire.AnnounceConfig{}}); err != nil {
		t.Fatal(err)
	}
	if routes := a.peers.table.toPeer("tor-1"); !a.drained || !a.isWanted(netip.MustParseAddr("192.0.2.50")) || len(routes) != 0 {
		t.Errorf("drained is %t, and a router is told of %v", a.drained, routes)
	}
}

// An interface that cannot be taken is tried again without telling of all addresses each time, and is a problem that is
// told once. Rights that are missing do not come.
func TestRetryTellsNothingNew(t *testing.T) {
	a := testAnnouncer(t)
	addr := netip.MustParseAddr("192.0.2.50")
	a.wanted[addr] = ad{Flags: true}
	if err := a.syncSegments(t.Context()); err != nil || len(a.reports.dirty) != 0 || len(a.file.dirty) != 0 {
		t.Errorf("placing again what did not change, %d addresses are to be told of, and %d kept: %v", len(a.reports.dirty), len(a.file.dirty), err)
	}
	eth0, eth1 := link(1, "eth0"), link(2, "eth1")
	if s := a.segments; !s.failed(&eth0, fs.ErrPermission) || s.failed(&eth0, fs.ErrPermission) || s.retry != nil {
		t.Error("missing rights are told twice, or tried again")
	}
	if s := a.segments; !s.failed(&eth1, fs.ErrNotExist) || s.failed(&eth1, fs.ErrNotExist) || s.retry == nil {
		t.Error("an interface that was not there is told twice, or not tried again")
	}
	if got := a.segments.problems(); len(got) != 2 || !strings.Contains(got[0], "on eth0") || !strings.Contains(got[0], "CAP_NET_RAW") || !strings.Contains(got[1], "on eth1") {
		t.Errorf("problems are %q", got)
	}
	if err := a.syncSegments(t.Context()); err != nil || len(a.segments.problems()) != 0 {
		t.Errorf("of links that are gone is told %q: %v", a.segments.problems(), err)
	}
}

// Changes of single addresses reach the adverts, not only whole messages.
func TestAdvertsFollowChanges(t *testing.T) {
	a := testAnnouncer(t)
	a.election = newElection(vrrp.Config{VRID: 51, Priority: 100, Interval: time.Second}, nil)
	listed := func() []netip.Addr { return slices.DeleteFunc(slices.Clone(a.election.addrs[0]), isDigest) }
	one, two := netip.MustParseAddr("192.0.2.50"), netip.MustParseAddr("192.0.2.51")
	for _, test := range []struct {
		event wire.AnnouncementsEvent
		want  []netip.Addr
	}{
		{wire.AnnouncementsEvent{Set: []wire.Announcement{{Address: "192.0.2.51"}}}, []netip.Addr{two}},
		{wire.AnnouncementsEvent{Set: []wire.Announcement{{Address: "192.0.2.50"}}}, []netip.Addr{one, two}},
		{wire.AnnouncementsEvent{Set: []wire.Announcement{{Address: "192.0.2.51", Withheld: "no ready endpoint"}}}, []netip.Addr{one}},
		{wire.AnnouncementsEvent{Gone: []string{"192.0.2.50"}}, nil},
	} {
		if err := a.follow(t.Context(), &test.event); err != nil {
			t.Fatal(err)
		}
		if got := listed(); !slices.Equal(got, test.want) {
			t.Errorf("after %+v adverts list %v, want %v", test.event, got, test.want)
		}
	}
}

// A standby box notices that the box that answers lists other addresses, and that it does no more.
func TestGroupDiffers(t *testing.T) {
	e := newElection(vrrp.Config{VRID: 51, Priority: 100, Interval: time.Second}, nil)
	master := netip.MustParseAddr("192.0.2.1")
	lists := func(texts ...string) (addrs [2][]netip.Addr) {
		var l listing
		for _, text := range texts {
			l.add(netip.MustParseAddr(text))
		}
		return l.listed()
	}
	hear := func(vrid, priority uint8, addrs [2][]netip.Addr) {
		e.compare(time.Now(), &vrrp.Advert{VRID: vrid, Priority: priority, Source: master, Addresses: addrs[0]})
	}
	many := make([]string, 0, 30)
	for n := range 30 {
		many = append(many, netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + n)}).String())
	}
	for name, test := range map[string]struct {
		ours, theirs   [2][]netip.Addr
		differs        bool
		alone, foreign int
	}{
		"equal":                      {lists("192.0.2.50"), lists("192.0.2.50"), false, 0, 0},
		"none":                       {lists(), lists(), false, 0, 0},
		"more here":                  {lists("192.0.2.50", "192.0.2.51"), lists("192.0.2.50"), true, 1, 0},
		"others":                     {lists("192.0.2.50"), lists("192.0.2.51"), true, 1, 1},
		"of the other family":        {lists("192.0.2.50", "2001:db8::50"), lists("192.0.2.50"), true, 0, 0},
		"after those that listed":    {lists(many...), lists(many[:29]...), true, 0, 0},
		"an advert of somebody else": {lists("192.0.2.50"), [2][]netip.Addr{{netip.MustParseAddr("192.0.2.50")}}, true, 0, 0},
	} {
		e.foreign = foreign{}
		e.set(false, test.ours)
		if e.group().Differs != nil {
			t.Errorf("%s: it differs from nobody", name)
		}
		hear(52, 100, lists("192.0.2.99"))
		hear(51, 0, lists("192.0.2.99"))
		hear(51, 200, test.theirs)
		d := e.group().Differs
		if (d != nil) != test.differs || d != nil && (len(d.Ours) != test.alone || len(d.Theirs) != test.foreign || d.With != "192.0.2.1") {
			t.Errorf("%s: it differs by %+v", name, d)
		}
		if e.set(false, test.theirs); e.group().Differs != nil {
			t.Errorf("%s: it still differs", name)
		}
	}
}

// Routes that flap stay away for longer and longer.
func TestDamper(t *testing.T) {
	d := newDamper()
	a, now := netip.MustParsePrefix("192.0.2.50/32"), time.Unix(1000, 0)
	if now.Before(d.notBefore(a)) {
		t.Error("a route that was never withdrawn waits")
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		d.withdrawn(a, now)
		if got := d.notBefore(a).Sub(now); got != want*time.Second {
			t.Errorf("it stays away for %s, want %d s", got, want)
		}
		now = d.notBefore(a).Add(time.Second)
	}
	now = now.Add(time.Minute)
	if d.withdrawn(a, now); d.notBefore(a).Sub(now) != time.Second {
		t.Errorf("after a minute of calm it stays away for %s", d.notBefore(a).Sub(now))
	}
	for n := range 1000 {
		now = now.Add(time.Minute)
		d.withdrawn(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 32), now)
	}
	if len(d.flaps) > 200 {
		t.Errorf("%d flaps are remembered, most of them long over", len(d.flaps))
	}
}

// Of many changes each is kept, and the file is written anew only now and then.
func TestKeeper(t *testing.T) {
	dir := t.TempDir()
	k := newStateWriter(dir)
	fates := map[netip.Addr]lastStatus{}
	whole := 0
	all := func() (s state) {
		whole++
		for addr, f := range fates {
			if f.Wanted {
				s.Wanted = append(s.Wanted, addr.String())
			}
			if f.Announced {
				s.Announced = append(s.Announced, addr.String())
			}
		}
		return s
	}
	change := func(n, f int) {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})
		fates[addr] = lastStatus{Wanted: f > 0, Announced: f > 1}
		k.dirty[addr] = struct{}{}
	}
	for n := range 5000 {
		change(n, 1+n%2)
	}
	check := func() {
		t.Helper()
		if err := k.save(len(fates), all, func(a netip.Addr) lastStatus { return fates[a] }); err != nil {
			t.Fatal(err)
		}
		got, err := loadState(dir)
		want := all()
		whole--
		for _, list := range [][]string{got.Wanted, got.Announced, want.Wanted, want.Announced} {
			slices.Sort(list)
		}
		if err != nil || !slices.Equal(got.Wanted, want.Wanted) || !slices.Equal(got.Announced, want.Announced) {
			t.Fatalf("%d and %d addresses are kept, want %d and %d: %v", len(got.Wanted), len(got.Announced), len(want.Wanted), len(want.Announced), err)
		}
	}
	check()
	for n := range 60 {
		for i := range 100 {
			change(100*n%5000+i, (n+i)%3)
		}
		check()
	}
	if whole != 2 {
		t.Errorf("it was written anew %d times for 6,000 changes of 5,000 addresses, want 2", whole)
	}
	f, err := os.OpenFile(filepath.Join(dir, stateName), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.WriteString(`{"address":"10.0.0.1","wan`)
	_ = f.Close()
	if got, err := loadState(dir); err != nil || len(got.Wanted) == 0 {
		t.Errorf("of a file whose last line is not whole %d addresses are known: %v", len(got.Wanted), err)
	}
	k.whole = true
	check()
}
