package routes

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/netlab"
)

// all returns an event with the announced addresses: by flags, and by an advertisement of aggregates.
func all(items ...wire.Announcement) wire.AnnouncementsEvent {
	return wire.AnnouncementsEvent{All: &wire.Announcements{Items: items}}
}

func byFlags(addr string) wire.Announcement { return wire.Announcement{Address: addr, Flags: true} }
func via(addr string, names ...string) wire.Announcement {
	return wire.Announcement{Address: addr, Via: names}
}

var aggregates = &wire.AnnounceConfig{Advertisements: []wire.Advertisement{
	{Name: "lb/one", Length4: 32, Length6: 128}, {Name: "lb/all", Length4: 30, Length6: 126},
}}

// An aggregate is there while an address in it is, and what is withheld or only answered on segments has no route.
func TestSetCountsAddresses(t *testing.T) {
	e := &exporter{lengths: map[string][2]int{"lb/one": {32, 128}, "lb/all": {30, 126}}, of: map[netip.Addr][]netip.Prefix{}, behind: map[netip.Prefix]int{}}
	for _, step := range []struct {
		item wire.Announcement
		want string // changes: +PREFIX comes, -PREFIX goes
	}{
		{via("198.51.100.1", "lb/all"), "+198.51.100.0/30"},
		{via("198.51.100.2", "lb/all", "lb/one"), "+198.51.100.0/30 +198.51.100.2/32"},
		{wire.Announcement{Address: "198.51.100.1", Withheld: "no ready endpoint", Via: []string{"lb/all"}}, "+198.51.100.0/30"},
		{wire.Announcement{Address: "198.51.100.2", Withheld: "gone"}, "-198.51.100.0/30 -198.51.100.2/32"},
		{wire.Announcement{Address: "198.51.100.3", L2: []string{"*"}}, ""},
		{via("198.51.100.3", "lb/unknown"), ""},
		{byFlags("2001:db8::1"), "+2001:db8::1/128"},
		{via("2001:db8::1", "lb/all"), "+2001:db8::/126 -2001:db8::1/128"},
		{byFlags("no address"), ""},
	} {
		changes := map[netip.Prefix]bool{}
		e.set(&step.item, changes)
		var got []string
		for _, p := range slices.SortedFunc(maps.Keys(changes), netip.Prefix.Compare) {
			got = append(got, map[bool]string{true: "+", false: "-"}[changes[p]]+p.String())
		}
		slices.Sort(got)
		if want := strings.Fields(step.want); !slices.Equal(got, want) {
			t.Errorf("%+v changes %q, want %q", step.item, got, want)
		}
	}
}

// The table has what is announced, and nothing else is touched: over changes, a drain, a restart and the end.
func TestTableFollowsAnnouncements(t *testing.T) {
	const number = 118
	h := netlab.New(t).Host("box")
	if _, _, err := h.Run("sh", "-c", "ip route add unreachable 203.0.113.0/24 table 118; ip route add unreachable 203.0.113.1 table 119 proto 118"); err != nil {
		t.Fatal(err)
	}
	ours := func(table string) (routes []string) {
		t.Helper()
		for _, family := range []string{"-4", "-6"} {
			out, _, _ := h.Run("ip", family, "route", "show", "table", table, "proto", "118") // fails while there is no such table
			for line := range strings.Lines(out) {
				routes = append(routes, strings.Join(strings.Fields(line)[:2], " "))
			}
		}
		slices.Sort(routes)
		return routes
	}
	has := func(when string, want ...string) {
		t.Helper()
		if got := ours(fmt.Sprint(number)); !slices.Equal(got, want) {
			t.Errorf("%s the table has %q, want %q", when, got, want)
		}
		if out, _, err := h.Run("ip", "route", "show", "table", "118", "proto", "boot"); err != nil || !strings.Contains(out, "203.0.113.0/24") {
			t.Errorf("%s the route of somebody else is gone: %q %v", when, out, err)
		}
	}
	e := &exporter{ctx: t.Context()}
	open := func() {
		t.Helper()
		if err := h.Do(func() (err error) { e.table, err = Open(number); return err }); err != nil {
			t.Fatal(err)
		}
	}
	take := func(event wire.AnnouncementsEvent) {
		t.Helper()
		if err := h.Do(func() error { return e.follow(event) }); err != nil {
			t.Fatal(err)
		}
	}
	open()
	first := all(byFlags("198.51.100.4"), via("2001:db8::5", "lb/all"), wire.Announcement{Address: "198.51.100.9", Withheld: "no ready endpoint"})
	first.Config = aggregates
	take(first)
	has("at first", "unreachable 198.51.100.4", "unreachable 2001:db8::4/126")
	take(wire.AnnouncementsEvent{Set: []wire.Announcement{byFlags("198.51.100.9")}, Gone: []string{"2001:db8::5"}})
	has("after a change", "unreachable 198.51.100.4", "unreachable 198.51.100.9")
	drained, back := true, false
	take(wire.AnnouncementsEvent{Drained: &drained})
	has("drained")
	take(wire.AnnouncementsEvent{Drained: &back})
	has("after the drain", "unreachable 198.51.100.4", "unreachable 198.51.100.9")

	// A restart finds what the one before left, and takes away what is announced no more.
	e = &exporter{ctx: t.Context()}
	open()
	if len(e.table.have) != 2 {
		t.Errorf("a restart finds %v", e.table.have)
	}
	take(all(byFlags("198.51.100.9")))
	has("after a restart", "unreachable 198.51.100.9")

	// Somebody else took a route away: that is no error, and it comes with the next change.
	if _, _, err := h.Run("ip", "route", "del", "unreachable", "198.51.100.9", "table", "118"); err != nil {
		t.Fatal(err)
	}
	take(wire.AnnouncementsEvent{Gone: []string{"198.51.100.9"}})
	has("after it was gone already")
	take(all(byFlags("198.51.100.9")))
	if err := h.Do(Clear); err != nil {
		t.Fatal(err)
	}
	has("cleared")
	if got := ours("119"); len(got) != 0 {
		t.Errorf("another table still has %q of ours", got)
	}
}

// Many routes are all there, made in bursts.
func TestManyRoutes(t *testing.T) {
	h := netlab.New(t).Host("box")
	e := &exporter{ctx: t.Context()}
	var items []wire.Announcement
	for n := range 3*burst + 1 {
		items = append(items, byFlags(fmt.Sprintf("198.51.%d.%d", 100+n/256, n%256)))
	}
	if err := h.Do(func() (err error) {
		if e.table, err = Open(118); err != nil {
			return err
		}
		return e.follow(all(items...))
	}); err != nil {
		t.Fatal(err)
	}
	out, _, err := h.Run("ip", "route", "show", "table", "118")
	if n := strings.Count(out, "unreachable"); err != nil || n != len(items) {
		t.Errorf("%d routes of %d are there: %v", n, len(items), err)
	}
}
