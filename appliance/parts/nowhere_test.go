package parts

import (
	"testing"

	"svcctl.io/svcctl/api/wire"
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
