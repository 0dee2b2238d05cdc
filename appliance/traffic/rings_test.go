package traffic

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/nft"
)

// counted is a Snapshot of Services with connections, "a/s0" and so on.
func counted(at time.Time, since time.Duration, fresh ...int) *Snapshot {
	var ports []Port
	for i := range fresh {
		ports = append(ports, Port{Service: fmt.Sprintf("a/s%d", i), Protocol: nft.TCP})
	}
	found := indexOf(byService(ports))
	l := &Snapshot{At: at, Since: since, Counted: true}
	for i, n := range fresh {
		c := found.countsOf(&found.services[fmt.Sprintf("a/s%d", i)][0])
		c.New, c.Refusing, c.Open = n, uint64(n/10), 2*n
	}
	found.end(l)
	return l
}

func rounded(p wire.TrafficPoint) string {
	return fmt.Sprintf("%t %.1f %.1f %.1f", p.Known, p.New, p.Refused, p.Open)
}

var ringNoon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// A look counts for the time since the look before, whatever the time between them.
func TestGraph(t *testing.T) {
	r := newRings()
	r.add(counted(ringNoon, 0, 5000)) // the first look has no time
	for i := 1; i <= 30; i++ {
		r.add(counted(ringNoon.Add(time.Duration(i)*7*time.Second), 7*time.Second, 700, 70))
	}
	now := ringNoon.Add(210 * time.Second)
	for i, want := range map[int]string{0: "false 0.0 0.0 0.0", 68: "false 0.0 0.0 0.0", 69: "true 110.0 11.0 1540.0", 80: "true 110.0 11.0 1540.0", 89: "true 110.0 11.0 1540.0"} {
		if got := rounded(r.graph("", false, now).Points[i]); got != want {
			t.Errorf("point %d of the box: %s, want %s", i, got, want)
		}
	}
	if g := r.graph("a/s1", false, now); rounded(g.Points[89]) != "true 10.0 1.0 140.0" || g.Step != 10*time.Second || len(g.Points) != 90 || !g.From.Equal(now.Add(-15*time.Minute)) {
		t.Errorf("a Service: %+v from %s", g.Points[89], g.From)
	}
	if g := r.graph("", true, now); rounded(g.Points[287]) != "true 110.0 11.0 1540.0" || g.Step != 5*time.Minute || len(g.Points) != 288 || g.Points[286].Known {
		t.Errorf("a day: %+v", g.Points[285:])
	}
	if g := r.graph("a/none", true, now); rounded(g.Points[95]) != "true 0.0 0.0 0.0" || g.Points[94].Known {
		t.Errorf("a Service without traffic: %+v", g.Points[94:])
	}
	// An hour without looks is unknown, and a Service without connections has none.
	later := now.Add(time.Hour)
	r.add(counted(later, 10*time.Second, 0, 70))
	if g := r.graph("", false, later); g.Points[88].Known || rounded(g.Points[89]) != "true 7.0 0.7 140.0" {
		t.Errorf("after an hour: %+v", g.Points[87:])
	}
	if g := r.graph("a/s0", false, later); rounded(g.Points[89]) != "true 0.0 0.0 0.0" {
		t.Errorf("a Service that has no connections any more: %+v", g.Points[88:])
	}
	// The clock goes back.
	r.add(counted(ringNoon, 10*time.Second, 100))
	if g := r.graph("", false, ringNoon); rounded(g.Points[89]) != "true 10.0 1.0 200.0" || g.Points[88].Known {
		t.Errorf("after the clock went back: %+v", g.Points[87:])
	}
}

// Rings are the same after a restart; those of another box, of the future and damaged ones are left out.
func TestRingsSurvive(t *testing.T) {
	dir, discard := t.TempDir(), slog.New(slog.DiscardHandler)
	r := newRings()
	for i := 1; i <= 600; i++ {
		r.add(counted(ringNoon.Add(time.Duration(i)*10*time.Second), 10*time.Second, i, 70))
	}
	now := ringNoon.Add(6000 * time.Second)
	r.save(dir, "gw1", false, discard)
	r.save(dir, "gw1", true, discard)
	read := func(box string, now time.Time) *rings {
		r := newRings()
		r.load(dir, box, now, discard)
		return r
	}
	again := read("gw1", now)
	for _, of := range []string{"", "a/s0", "a/s1"} {
		for _, day := range []bool{false, true} {
			if got, want := again.graph(of, day, now), r.graph(of, day, now); fmt.Sprint(got) != fmt.Sprint(want) || !want.Points[len(want.Points)-1].Known {
				t.Errorf("%q: %+v, want %+v", of, got, want)
			}
		}
	}
	for what, other := range map[string]*rings{"another box": read("gw2", now), "the clock is behind": read("gw1", ringNoon)} {
		if g := other.graph("", true, now); fmt.Sprint(g) != fmt.Sprint(newRings().graph("", true, now)) {
			t.Errorf("%s: %+v", what, g)
		}
	}
	for _, name := range []string{ringsFile, serviceFile} {
		for _, size := range []int64{0, 10, 31, 1000} {
			if err := os.Truncate(filepath.Join(dir, name), size); err != nil {
				t.Fatal(err)
			}
			read("gw1", now) // no panic
		}
	}
}

// Services are bounded: the busiest stay.
func TestRingsAreBounded(t *testing.T) {
	r := newRings()
	fresh := make([]int, 3*mostRings)
	for i := range fresh {
		fresh[i] = 1 + i
	}
	r.add(counted(ringNoon, 10*time.Second, fresh...))
	if len(r.services) != mostRings || r.services[fmt.Sprint("a/s", 3*mostRings-1)] == nil || r.services["a/s0"] != nil {
		t.Fatalf("%d Services, which are not the busiest", len(r.services))
	}
	r.add(counted(ringNoon.Add(10*time.Second), 10*time.Second, fresh[:1]...))
	if len(r.services) != mostRings || r.services["a/s0"] == nil {
		t.Errorf("%d Services, without the one that has connections", len(r.services))
	}
}

// The first viewer has rates when a start has made a look, a second before.
func Test1149_the_first_viewer_after_a_start_has_rates(t *testing.T) {
	table := &table{ports: []Port{web}}
	q := &Queries{observer: table.observer()}
	if q.Begin(); table.reads != 0 {
		t.Errorf("%d looks where none are kept", table.reads)
	}
	q.observer.rings = newRings()
	q.Begin()
	table.now = table.now.Add(minPause)
	seen, err := q.Traffic(wire.TrafficQuery{Sort: "name", Limit: 9})
	if err != nil || seen.Seconds != minPause.Seconds() || table.reads != 2 {
		t.Errorf("%+v, %v after %d looks; want rates", seen, err, table.reads)
	}
}

// Looks are made without viewers, and kept; those of viewers count.
func TestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		var gone atomic.Bool
		ports := func(int) (of map[string][]Port, all bool, now int) {
			if gone.Load() {
				return nil, true, 1
			}
			return byService([]Port{{Service: "a/web", Protocol: nft.TCP}}), true, 1
		}
		q := &Queries{observer: New(func(func(*conntrack.Connection)) (int, error) { n++; return 0, nil }, ports, nil)}
		dir := t.TempDir()
		log := slog.New(slog.DiscardHandler)
		q.Remember(dir, "gw1", log)
		ctx, end := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- q.Record(ctx, dir, "gw1", log) }()
		time.Sleep(10 * time.Minute)
		synctest.Wait()       // for a look at the same time
		if n < 50 || n > 61 { // fewer where the machine is slow
			t.Errorf("%d looks in ten minutes", n)
		}
		if g := q.Graph("", false); !g.Points[len(g.Points)-2].Known {
			t.Errorf("nothing is recorded: %+v", g)
		}
		gone.Store(true)
		before := n
		time.Sleep(10 * time.Minute)
		if n != before {
			t.Errorf("%d looks without Services", n-before)
		}
		end()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, serviceFile)); err != nil {
			t.Error(err)
		}
	})
}
