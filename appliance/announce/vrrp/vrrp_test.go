package vrrp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

const interval = 100 * time.Millisecond

var start = time.Unix(1_000_000, 0)

func TestPackets(t *testing.T) {
	for _, test := range []struct{ source, group, vip string }{
		{"192.0.2.1", "224.0.0.18", "192.0.2.50"}, {"fe80::1", "ff02::12", "2001:db8::50"},
	} {
		a := Advert{VRID: 51, Priority: 200, Interval: interval, Addresses: []netip.Addr{netip.MustParseAddr(test.vip)},
			Source: netip.MustParseAddr(test.source), Destination: netip.MustParseAddr(test.group)}
		b := a.Marshal()
		got, err := Parse(a.Source, a.Destination, append(b, 0, 0, 0)) // Ethernet pads
		if err != nil || !reflect.DeepEqual(got, a) {
			t.Errorf("%+v comes back as %+v: %v", a, got, err)
		}
		for i := range b {
			if _, err := Parse(a.Source, a.Destination, b[:i]); err == nil {
				t.Errorf("%d bytes are an advert", i)
			}
			bad := append([]byte(nil), b...)
			bad[i] ^= 0x10
			if _, err := Parse(a.Source, a.Destination, bad); err == nil {
				t.Errorf("an advert with byte %d changed is one", i)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	a := Advert{VRID: 1, Priority: 1, Interval: interval, Addresses: []netip.Addr{Group4}, Source: Group4, Destination: Group4}
	f.Add(a.Marshal(), false)
	f.Fuzz(func(t *testing.T, b []byte, v6 bool) {
		at := Group4
		if v6 {
			at = Group6
		}
		got, err := Parse(at, at, b)
		if err != nil {
			return
		}
		if again, err := Parse(at, at, got.Marshal()); err != nil || !reflect.DeepEqual(got, again) {
			t.Errorf("%+v comes back as %+v, %v", got, again, err)
		}
	})
}

// world is boxes on a segment, with a clock of its own.
type world struct {
	*testing.T
	now    time.Time
	boxes  []*box
	flight []flight
	landed []flight // of the step before, for its memory
	random *rand.Rand
	// loss is the number of lost adverts of 100; some of the others are duplicated, or late.
	loss  int
	split bool // no router hears another
}

type box struct {
	*Machine
	addr netip.Addr
	dead bool
	// Until then the process is stopped, and what comes waits for it; or the machine, and it is lost.
	stopped, paused time.Time
	was             State
	moves           int // to another state
	asserts         int // against another one that answered
}

// runs reports whether the process of a box does.
func (b *box) runs(now time.Time) bool {
	return !b.dead && !now.Before(b.stopped) && !now.Before(b.paused)
}

type flight struct {
	at time.Time
	to *box
	a  Advert
}

func newWorld(t *testing.T, configs ...Config) *world {
	w := &world{T: t, now: start, random: rand.New(rand.NewPCG(1, 2))}
	for i, c := range configs {
		w.boxes = append(w.boxes, &box{Machine: New(start, c), addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})})
	}
	return w
}

func (w *world) send(from *box, priorities []uint8) {
	for _, p := range priorities {
		for _, to := range w.boxes {
			if to == from || w.split || w.random.IntN(100) < w.loss {
				continue
			}
			a := Advert{VRID: from.cfg.VRID, Priority: p, Interval: from.Interval(), Source: from.addr}
			delay := time.Millisecond
			if w.loss > 0 {
				delay += time.Duration(w.random.IntN(150)) * time.Millisecond // more than an interval: out of order
				if w.random.IntN(10) == 0 {
					w.flight = append(w.flight, flight{w.now.Add(delay + 3*time.Millisecond), to, a})
				}
			}
			w.flight = append(w.flight, flight{w.now.Add(delay), to, a})
		}
	}
}

// run lets time go on, a millisecond at a time, and calls each with it.
func (w *world) run(d time.Duration, each func()) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(time.Millisecond) {
		before := w.flight
		w.flight, w.landed = w.landed[:0], before
		for _, f := range before {
			switch {
			case f.at.After(w.now) || w.now.Before(f.to.stopped):
				w.flight = append(w.flight, f)
			case f.to.runs(w.now):
				out, assert := f.to.Receive(w.now, &f.a, f.to.addr)
				if w.send(f.to, out); assert {
					f.to.asserts++
				}
			}
		}
		for _, b := range w.boxes {
			if !b.runs(w.now) {
				continue
			}
			if w.send(b, b.Tick(w.now)); b.state != b.was {
				b.moves, b.was = b.moves+1, b.state
			}
		}
		if each != nil {
			each()
		}
	}
}

// is compares the states of the boxes, in their order.
func (w *world) is(want string) {
	w.Helper()
	text := ""
	for _, b := range w.boxes {
		s, _ := b.State()
		text += fmt.Sprintf("%s ", s)
	}
	if text != want+" " {
		w.Fatalf("after %s: %swant %s", w.now.Sub(start), text, want)
	}
}

func (w *world) answering() (n int) {
	for _, b := range w.boxes {
		if s, _ := b.State(); s.Answers() && !b.dead {
			n++
		}
	}
	return n
}

func config(priority uint8) Config { return Config{VRID: 51, Priority: priority, Interval: interval} }

func TestElection(t *testing.T) {
	w := newWorld(t, config(100), config(200))
	w.run(time.Second, nil)
	w.is("backup active")
	if w.boxes[0].Master() != w.boxes[1].addr {
		t.Errorf("the master is %s", w.boxes[0].Master())
	}
	// The active one dies: the other one takes over within 4 intervals, and is not preempted.
	w.boxes[1].dead = true
	died, took := w.now, time.Duration(0)
	w.run(time.Second, func() {
		if took == 0 && w.answering() > 0 {
			took = w.now.Sub(died)
		}
	})
	if took == 0 || took > 4*interval {
		t.Errorf("taken over after %s", took)
	}
	w.boxes[1].Machine, w.boxes[1].dead = New(w.now, config(200)), false
	w.run(time.Second, nil)
	w.is("active backup")
	// It says that it is not well.
	w.boxes[0].SetPriority(true)
	w.run(time.Second, func() {
		if w.answering() == 0 {
			t.Fatal("nobody answers")
		}
	})
	w.is("backup active")
}

func TestPreemption(t *testing.T) {
	first, second := config(100), config(200)
	first.Preempt, second.Preempt = true, true
	w := newWorld(t, first, second)
	w.boxes[1].dead = true
	w.run(time.Second, nil)
	w.boxes[1].dead, w.boxes[1].Machine = false, New(w.now, second)
	w.run(time.Second, nil)
	w.is("backup active")
}

// One that leaves answers until its successor does.
func TestLeave(t *testing.T) {
	w := newWorld(t, config(100), config(200))
	w.run(time.Second, nil)
	w.send(w.boxes[1], w.boxes[1].Leave(w.now, time.Minute))
	left, took := w.now, time.Duration(0)
	w.run(2*time.Second, func() {
		if w.answering() == 0 {
			t.Fatal("nobody answers")
		}
		if s, _ := w.boxes[1].State(); took == 0 && s == Out {
			took = w.now.Sub(left)
		}
	})
	w.is("active out")
	if took == 0 || took > interval {
		t.Errorf("handed over after %s", took)
	}
	w.boxes[1].Join(w.now)
	w.run(time.Second, nil)
	w.is("active backup")
	// Without another router it gives up after its patience.
	alone := newWorld(t, config(100))
	alone.run(time.Second, nil)
	alone.boxes[0].Leave(alone.now, time.Second)
	alone.run(900*time.Millisecond, nil)
	alone.is("leaving")
	alone.run(200*time.Millisecond, nil)
	alone.is("out")
}

// A box that begins anew is backup, has forgotten who was active, and is still unwell.
func TestJoinUnwell(t *testing.T) {
	w := newWorld(t, config(200))
	m := w.boxes[0].Machine
	m.SetPriority(true)
	w.run(time.Second, nil)
	w.is("active")
	m.Join(w.now)
	w.is("backup")
	w.run(time.Second-interval, nil)
	w.is("active")
	if adverts := m.Tick(w.now.Add(interval)); len(adverts) != 1 || adverts[0] != unwell {
		t.Errorf("it says that its priority is %d, want %d", adverts, unwell)
	}
}

// When a split heals one stays, which announces itself to those that followed the other, in whichever order they are heard.
func TestSplitHeals(t *testing.T) {
	for _, priorities := range [][2]uint8{{100, 200}, {100, 100}} {
		for offset := range interval / time.Millisecond {
			w := newWorld(t, config(priorities[0]), config(priorities[1]))
			w.run(time.Second, nil)
			w.split = true
			w.run(1500*time.Millisecond+offset*time.Millisecond, nil)
			w.is("active active")
			w.split = false
			w.run(2*interval, nil)
			w.is("backup active") // the higher priority, or the higher address
			if w.boxes[1].asserts == 0 {
				t.Errorf("%v: healed after %d ms, the one that stays does not know that it was not alone", priorities, offset)
			}
		}
	}
}

func TestOthersAreNotHeard(t *testing.T) {
	other := config(250)
	other.VRID = 52
	w := newWorld(t, config(100), other)
	w.run(time.Second, nil)
	w.is("active active")
}

// With 20 of 100 adverts lost, some twice and out of order, one router answers nearly always, two do for
// moments, and it comes to rest when the segment does.
func TestBadSegment(t *testing.T) {
	w := newWorld(t, config(100), config(150), config(200))
	w.run(time.Second, nil)
	w.loss = 20
	nobody, several := 0, 0
	w.run(10*time.Minute, func() {
		switch n := w.answering(); {
		case n == 0:
			nobody++
		case n > 1:
			several++
		}
	})
	if nobody > 0 || several > 60_000 {
		t.Errorf("of 600,000 ms no box answers for %d and several do for %d", nobody, several)
	}
	w.loss = 0
	w.run(2*time.Second, nil)
	if w.answering() != 1 {
		t.Errorf("%d answer in the end", w.answering())
	}
}

// An active box whose process was stopped was replaced, and stands by when it goes on, whatever its priority: what waits for it
// says so. With preemption it takes over again. One that was not replaced goes on.
func TestActiveIsStopped(t *testing.T) {
	for name, test := range map[string]struct {
		preempt    bool
		stop       time.Duration
		want       string
		moves      int // of the one that was stopped, since it became active
		otherMoves int
	}{
		"long": {false, 30 * time.Second, "active backup", 1, 1}, "preemption": {true, 30 * time.Second, "backup active", 0, 2}, "a moment": {false, 2 * interval, "backup active", 0, 0},
	} {
		first, second := config(100), config(200)
		second.Preempt = test.preempt
		w := newWorld(t, first, second)
		w.run(time.Second, nil)
		w.boxes[1].moves, w.boxes[1].stopped = 0, w.now.Add(test.stop)
		w.run(test.stop, nil)
		w.run(interval, func() {
			if w.answering() == 0 {
				t.Fatalf("%s: nobody answers", name)
			}
		})
		w.run(time.Minute, nil)
		w.is(test.want)
		if got := [2]int{w.boxes[1].moves, w.boxes[0].moves}; got != [2]int{test.moves, test.otherMoves} {
			t.Errorf("%s: it changed its state %d times and the other one %d times, want %d and %d", name, got[0], got[1], test.moves, test.otherMoves)
		}
	}
}

// A box that stands by and does not run, or whose whole machine does not, takes over from no router that is well; and from one
// that died meanwhile it does.
func TestBackupIsStopped(t *testing.T) {
	for _, machine := range []bool{false, true} {
		for _, dies := range []bool{false, true} {
			w := newWorld(t, config(100), config(200))
			w.run(time.Second, nil)
			end := w.now.Add(30 * time.Second)
			if machine {
				w.boxes[0].paused = end
			} else {
				w.boxes[0].stopped = end
			}
			w.run(10*time.Second, nil)
			w.boxes[1].dead = dies
			w.run(20*time.Second, nil)
			if w.run(10*interval, nil); dies {
				w.boxes[1].dead, w.boxes[1].Machine = false, New(w.now, config(200))
			}
			w.run(time.Second, nil)
			if want := map[bool]int{false: 0, true: 1}[dies]; w.boxes[0].moves != want {
				t.Errorf("machine %t, dies %t: the one that stood by changed its state %d times, want %d", machine, dies, w.boxes[0].moves, want)
			}
		}
	}
}

// A box that stands by and is always late takes over from one that died all the same.
func TestBackupIsAlwaysLate(t *testing.T) {
	w := newWorld(t, config(100), config(200))
	w.run(time.Second, nil)
	w.boxes[1].dead = true
	for range 3 {
		w.boxes[0].stopped = w.boxes[0].Next().Add(3 * interval)
		w.run(w.boxes[0].stopped.Sub(w.now)+time.Millisecond, nil)
	}
	w.is("active active")
}

// One that says that it leaves is succeeded at once, also by a box that is late.
func TestLateSuccessor(t *testing.T) {
	w := newWorld(t, config(100), config(200))
	w.run(time.Second, nil)
	w.send(w.boxes[1], w.boxes[1].Leave(w.now, time.Minute))
	w.boxes[1].dead = true // no second time
	w.run(2*time.Millisecond, nil)
	w.boxes[0].stopped = w.now.Add(time.Second)
	w.run(time.Second+2*time.Millisecond, nil)
	if s, _ := w.boxes[0].State(); s != Active {
		t.Errorf("it is %s", s)
	}
}

// A box that is late with its adverts says so in their interval, and is not replaced when it is later still. In time again, its
// death is noticed as soon as before.
func TestLateAdverts(t *testing.T) {
	w := newWorld(t, config(100), config(200))
	active := w.boxes[1]
	w.run(time.Second, nil)
	if active.Interval() != interval {
		t.Errorf("in time, it advertises an interval of %s", active.Interval())
	}
	for _, late := range []time.Duration{20, 120, 220, 350, 400, 390} {
		for range 20 {
			active.stopped = active.Next().Add(late * time.Millisecond)
			w.run(active.stopped.Sub(w.now)+time.Millisecond, nil)
		}
		if want := interval + late*time.Millisecond; active.Interval() < want-centisecond || active.Interval() > want+2*centisecond {
			t.Errorf("late by %d ms, it advertises an interval of %s", late, active.Interval())
		}
	}
	if w.boxes[0].moves > 0 {
		t.Errorf("the box that stands by changed its state %d times", w.boxes[0].moves)
	}
	active.stopped = w.now.Add(time.Minute)
	w.boxes[0].dead = true
	w.run(time.Minute+interval, nil)
	if want := (1 + mostLate) * interval; active.Interval() != want {
		t.Errorf("after a minute's stop it advertises an interval of %s, want %s", active.Interval(), want)
	}
	w.boxes[0].dead, w.boxes[0].Machine = false, New(w.now, config(100))
	w.run(3*time.Minute, nil)
	w.is("backup active")
	if active.Interval() != interval {
		t.Errorf("in time again, it advertises an interval of %s", active.Interval())
	}
	active.dead = true
	w.run(4*interval, nil)
	w.is("active active")
}

// A box that takes over from one that was late, as on a busy machine that has both, begins with the interval of that one. A stop
// that would have been too long in time does not end its turn.
func TestSuccessorOfLateBox(t *testing.T) {
	w := newWorld(t, config(100), config(200))
	w.run(time.Second, nil)
	for _, late := range []time.Duration{1, 2, 3, 4, 4} {
		w.boxes[1].stopped = w.boxes[1].Next().Add(late * interval)
		w.run(w.boxes[1].stopped.Sub(w.now)+2*time.Millisecond, nil)
	}
	w.is("backup active")
	w.boxes[1].stopped = w.now.Add(5 * time.Second)
	w.run(5*time.Second, nil)
	w.run(interval, nil)
	w.is("active backup")
	if w.boxes[0].Interval() <= 4*interval {
		t.Errorf("the successor advertises an interval of %s", w.boxes[0].Interval())
	}
	w.boxes[0].stopped = w.now.Add(8 * interval)
	w.run(8*interval, nil)
	w.is("active backup")
}
