package fleet_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store/fleet"
)

// A leaf goes back to the core box that it prefers once that answers again, and has each commit meanwhile, in order and once.
func Test625_a_leaf_goes_back_to_its_core_box(t *testing.T) {
	c, a, b := twoBoxes(t, "web")
	of := map[string]*box{}
	servers := map[string]*httptest.Server{}
	for _, x := range []*box{a, b} {
		s := x.serve(t)
		of[s.URL], servers[s.URL] = x, s
	}
	var urls []string
	for url := range servers {
		urls = append(urls, url)
	}
	cfg := c.leafConfig("leaf", urls...)
	cfg.HurryBack(600)
	reloads := countReloads(&cfg)
	l := c.open(cfg, storeConfig)
	same(t, a, l)
	from, first := l.Revision(), l.engine.Core()
	other := urls[0]
	if other == first {
		other = urls[1]
	}
	stop := b.createOn(t)
	goesOn := func(what string) {
		t.Helper()
		at := l.Revision()
		eventually(t, "the leaf goes on "+what, func() bool { return l.Revision() > at+20 })
	}
	goesOn("at first")
	for range 3 {
		cutOff(servers[first])
		eventually(t, "it follows the other one", func() bool { return l.engine.Core() == other })
		goesOn("there")
		servers[first] = of[first].serveAt(t, first)
		eventually(t, "it is back", func() bool { return l.engine.Core() == first })
		goesOn("where it was")
		eventually(t, "the other one serves it no more", func() bool { _, n := of[other].engine.Kept(); return n == 0 })
	}
	names := stop()
	same(t, b, l)
	l.hasEach(t, names, from)
	if n := reloads.Load(); n > 0 {
		t.Errorf("the leaf has read all objects %d times", n)
	}
}

// serveAt is serve at the URL of a server that was cut off.
func (b *box) serveAt(t testing.TB, url string) *httptest.Server {
	t.Helper()
	var listener net.Listener
	eventually(t, "its port is free again", func() bool { // a connection of another program may have it
		var err error
		listener, err = net.Listen("tcp", strings.TrimPrefix(url, "http://"))
		return err == nil
	})
	s := httptest.NewUnstartedServer(b.engine.Commits(func(*http.Request) string { return "" }))
	s.Listener.Close()
	s.Listener = listener
	s.Start()
	t.Cleanup(func() { cutOff(s) })
	return s
}

// A core box has to answer for a while before a leaf goes back to it, for longer if it fails soon afterwards; leaves do not come
// together.
func TestPreference(t *testing.T) {
	now := time.Now()
	p := fleet.NewPreference("leaf", 3)
	least := p.Least()
	if least < time.Minute || least >= 2*time.Minute {
		t.Fatalf("it waits for %v", least)
	}
	goesTo := func(at, want int) {
		t.Helper()
		core, is := p.Better(at, now)
		if got := map[bool]int{true: core, false: -1}[is]; got != want {
			t.Errorf("from %d it goes to %d, want %d", at, got, want)
		}
	}
	pass := func(d time.Duration, answer ...bool) {
		for i, answered := range answer {
			p.Probed(i, answered, now)
		}
		now = now.Add(d)
		for i, answered := range answer {
			p.Probed(i, answered, now)
		}
	}
	goesTo(2, -1)
	pass(least-time.Second, true, true)
	goesTo(2, -1)
	pass(time.Second, true, true)
	goesTo(2, 0)
	goesTo(1, 0)
	goesTo(0, -1)
	pass(0, false, true)
	goesTo(2, 1)
	pass(least-time.Second, true, true) // it could go to 1, and would have to go on to 0 at once
	goesTo(2, -1)
	pass(time.Second, true, true)
	goesTo(2, 0)
	p.Probed(0, false, now)
	// What does not stay up is waited for longer each time, to a bound.
	for n, wait := 0, least; n < 12; n, wait = n+1, min(2*wait, time.Hour) {
		pass(wait-time.Second, true)
		goesTo(1, -1)
		pass(time.Second, true)
		goesTo(1, 0)
		p.Returned(0, now)
		now = now.Add(time.Minute)
		p.Left(0, now)
		goesTo(1, -1)
	}
	pass(time.Hour, true)
	goesTo(1, 0)
	p.Returned(0, now)
	now = now.Add(11 * time.Hour)
	p.Left(0, now)
	pass(least, true)
	goesTo(1, 0)
	others := map[time.Duration]bool{}
	for n := range 20 {
		others[fleet.NewPreference(fmt.Sprintf("leaf%d", n), 2).Least().Truncate(time.Second)] = true
	}
	if len(others) < 10 {
		t.Errorf("20 leaves come back at %d times", len(others))
	}
}
