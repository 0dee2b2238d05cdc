package bfd

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// wire carries packets between two machines under a clock of its own: with delays, and as the
// test wants with loss, copies and changed order.
type wire struct {
	now     time.Time
	m       [2]*Machine
	flying  []flight
	random  *rand.Rand
	drop    func(to int, p Packet) bool
	delay   func() time.Duration
	copies  float64
	stopped [2]bool // a machine that gets no time and reads nothing
	sent    [2]int
	downs   [2]int
	last    [2]Packet // sent by each
}

type flight struct {
	at time.Time
	to int
	p  Packet
}

func newWire(a, b Timers) *wire {
	w := &wire{
		now: time.Unix(1000, 0), random: rand.New(rand.NewPCG(1, 2)),
		drop: func(int, Packet) bool { return false }, delay: func() time.Duration { return time.Millisecond },
	}
	w.m[0] = NewMachine(11, a, false, w.now, w.random.Float64)
	w.m[1] = NewMachine(22, b, false, w.now, w.random.Float64)
	return w
}

func (w *wire) put(from int, p Packet) {
	w.sent[from]++
	w.last[from] = p
	parsed, err := ParsePacket(p.Bytes())
	if err != nil {
		panic(err) // no machine sends what is refused
	}
	if w.drop(1-from, parsed) {
		return
	}
	w.flying = append(w.flying, flight{w.now.Add(w.delay()), 1 - from, parsed})
	if w.random.Float64() < w.copies {
		w.flying = append(w.flying, flight{w.now.Add(w.delay()), 1 - from, parsed})
	}
}

// run lets time pass, a millisecond at a time.
func (w *wire) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(time.Millisecond) {
		var later []flight
		arrived := w.flying
		w.flying = nil
		for _, f := range arrived {
			if f.at.After(w.now) || w.stopped[f.to] {
				later = append(later, f)
				continue
			}
			if answer := w.m[f.to].Receive(f.p, w.now); answer != nil {
				w.put(f.to, *answer)
			}
		}
		w.flying = append(later, w.flying...)
		for i, m := range w.m {
			if next := m.Next(); w.stopped[i] || next.IsZero() || next.After(w.now) {
				continue
			}
			was, _ := m.Phase()
			if p := m.Advance(w.now); p != nil {
				w.put(i, *p)
			}
			if is, _ := m.Phase(); was == Up && is == Down {
				w.downs[i]++
			}
		}
	}
}

func (w *wire) phases(t *testing.T, a, b Phase) {
	t.Helper()
	for i, want := range []Phase{a, b} {
		if got, why := w.m[i].Phase(); got != want {
			t.Errorf("machine %d is %s (%s), want %s", i, got, why, want)
		}
	}
}

var quick = Timers{Transmit: 50 * time.Millisecond, Receive: 50 * time.Millisecond, Multiplier: 3}

func TestUpAndRates(t *testing.T) {
	w := newWire(Timers{Transmit: 100 * time.Millisecond, Receive: 50 * time.Millisecond}, Timers{Transmit: 60 * time.Millisecond, Receive: 200 * time.Millisecond, Multiplier: 5})
	w.run(900 * time.Millisecond)
	w.run(4 * time.Second)
	w.phases(t, Up, Up)
	w.sent = [2]int{}
	w.run(10 * time.Second)
	// The larger one of what is sent and what is taken, less up to a quarter.
	for i, interval := range []time.Duration{200 * time.Millisecond, 60 * time.Millisecond} {
		least, most := int(10*time.Second/interval), int(10*time.Second/(interval*3/4))
		if w.sent[i] < least || w.sent[i] > most {
			t.Errorf("machine %d sent %d packets in 10 s, want %d to %d", i, w.sent[i], least, most)
		}
	}
	if got := w.m[0].Detection(); got != 300*time.Millisecond {
		t.Errorf("detection time %s, want 5 times 60 ms", got)
	}
	if got := w.m[1].Detection(); got != 600*time.Millisecond {
		t.Errorf("detection time %s, want 3 times 200 ms", got)
	}
	if w.last[0].Poll || w.last[1].Poll {
		t.Error("the poll did not end")
	}
}

// TestSlowUntilUp: a session that is not up sends at most one packet a second.
func TestSlowUntilUp(t *testing.T) {
	w := newWire(quick, quick)
	w.drop = func(int, Packet) bool { return true }
	w.run(10 * time.Second)
	if w.sent[0] > 15 || w.sent[0] < 10 || w.last[0].MinTx < time.Second {
		t.Errorf("%d packets in 10 s, the last one %+v", w.sent[0], w.last[0])
	}
}

func TestDetection(t *testing.T) {
	w := newWire(quick, quick)
	w.run(5 * time.Second)
	w.phases(t, Up, Up)
	w.drop = func(to int, _ Packet) bool { return to == 0 } // one direction only
	w.run(200 * time.Millisecond)
	if got, why := w.m[0].Phase(); got != Down || why != Expired {
		t.Errorf("%s (%s)", got, why)
	}
	w.run(10 * time.Millisecond)
	if got, why := w.m[1].Phase(); got != Down || why != NeighborDown {
		t.Errorf("the other end is %s (%s)", got, why)
	}
	w.drop = func(int, Packet) bool { return false }
	w.run(5 * time.Second)
	w.phases(t, Up, Up)
}

// TestLossCopiesAndOrder: what a bad network does to packets does not take a session down, as
// long as one of three arrives in time.
func TestLossCopiesAndOrder(t *testing.T) {
	w := newWire(quick, Timers{Transmit: 50 * time.Millisecond, Receive: 50 * time.Millisecond, Multiplier: 5})
	lost := [2]int{}
	w.copies = 0.3
	w.delay = func() time.Duration { return time.Duration(w.random.IntN(40)) * time.Millisecond }
	w.drop = func(to int, _ Packet) bool { // never two in a row
		if lost[to] == 0 && w.random.Float64() < 0.3 {
			lost[to]++
			return true
		}
		lost[to] = 0
		return false
	}
	w.run(30 * time.Second) // also with polls and finals that are lost
	w.phases(t, Up, Up)
	w.downs = [2]int{}
	w.run(10 * time.Minute)
	w.phases(t, Up, Up)
	if w.downs != [2]int{} {
		t.Errorf("sessions went down %v times", w.downs)
	}
}

// TestRandomNetworks: whatever is lost, both ends agree after the network has healed.
func TestRandomNetworks(t *testing.T) {
	for seed := range uint64(200) {
		w := newWire(quick, quick)
		w.random = rand.New(rand.NewPCG(seed, 1))
		w.copies = 0.2
		w.delay = func() time.Duration { return time.Duration(w.random.IntN(100)) * time.Millisecond }
		w.drop = func(int, Packet) bool { return w.random.Float64() < 0.6 }
		w.run(10 * time.Second)
		w.drop = func(int, Packet) bool { return false }
		w.copies, w.delay = 0, func() time.Duration { return time.Millisecond }
		w.run(6 * time.Second)
		w.phases(t, Up, Up)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestStoppedProcess: a process that gets no time for a while does not blame its neighbor, and
// one whose neighbor is silent after that does.
func TestStoppedProcess(t *testing.T) {
	w := newWire(Timers{Transmit: 50 * time.Millisecond, Receive: 50 * time.Millisecond, Multiplier: 255}, quick)
	w.run(5 * time.Second)
	w.phases(t, Up, Up)
	w.stopped[0] = true
	w.run(2 * time.Second)
	w.stopped[0] = false
	queued := w.flying
	w.flying = nil // and what has arrived was lost, as with a machine that stood still
	if len(queued) == 0 {
		t.Fatal("nothing arrived meanwhile")
	}
	w.run(time.Second)
	w.phases(t, Up, Up)
	if w.downs[0] != 0 {
		t.Errorf("the neighbor was blamed %d times", w.downs[0])
	}
	w.stopped[0] = true
	w.run(2 * time.Second)
	w.stopped[0] = false
	w.drop = func(to int, _ Packet) bool { return to == 0 }
	w.flying = nil
	w.run(350 * time.Millisecond)
	if got, _ := w.m[0].Phase(); got != Down {
		t.Errorf("%s without a packet after the stop", got)
	}
}

func TestAdminDown(t *testing.T) {
	w := newWire(quick, quick)
	w.run(5 * time.Second)
	w.m[0].TakeDown(w.now)
	w.run(50 * time.Millisecond)
	w.phases(t, AdminDown, Down)
	if _, why := w.m[1].Phase(); why != NeighborDown || w.last[0].Diagnostic != AdministratorWas {
		t.Errorf("diagnostics: %s, sent %s", why, w.last[0].Diagnostic)
	}
	w.run(5 * time.Second)
	w.phases(t, AdminDown, Down)
}

// TestRestartedNeighbor: one that comes back with another discriminator is followed.
func TestRestartedNeighbor(t *testing.T) {
	w := newWire(quick, quick)
	w.run(5 * time.Second)
	w.m[1] = NewMachine(33, quick, false, w.now, w.random.Float64)
	w.run(6 * time.Second)
	w.phases(t, Up, Up)
	if remote, _ := w.m[0].Remote(); remote.Mine != 33 {
		t.Errorf("the neighbor is %d", remote.Mine)
	}
}

func TestPassive(t *testing.T) {
	w := newWire(quick, quick)
	w.m[0] = NewMachine(11, quick, true, w.now, w.random.Float64)
	w.stopped[1] = true
	w.run(5 * time.Second)
	if w.sent[0] != 0 {
		t.Errorf("a passive end began, with %d packets", w.sent[0])
	}
	w.stopped[1] = false
	w.run(5 * time.Second)
	w.phases(t, Up, Up)
}

// TestQuietNeighbor: to one that wants no packets none are sent.
func TestQuietNeighbor(t *testing.T) {
	w := newWire(quick, quick)
	w.m[0].Receive(Packet{Phase: Down, Multiplier: 3, Mine: 9, MinTx: time.Second}, w.now)
	w.stopped[1] = true
	w.run(2 * time.Second)
	if w.sent[0] != 0 {
		t.Errorf("%d packets", w.sent[0])
	}
}

func TestCheck(t *testing.T) {
	for want, timers := range map[string]Timers{
		"transmit interval 10ms":    {Transmit: 10 * time.Millisecond},
		"receive interval 2m0s":     {Receive: 2 * time.Minute},
		"detection multiplier 300":  {Multiplier: 300},
		"detection multiplier -1 i": {Multiplier: -1},
	} {
		if err := timers.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := (Timers{}).Check(); err != nil {
		t.Error(err)
	}
}

// FuzzParsePacket: no bytes break the parser or a machine, and what is taken is encoded alike.
func FuzzParsePacket(f *testing.F) {
	f.Add(Packet{Phase: Up, Poll: true, Multiplier: 3, Mine: 1, Yours: 2, MinTx: time.Second, MinRx: time.Second}.Bytes(), int64(5))
	f.Add(Packet{Phase: Down, Final: true, Demand: true, Multiplier: 255, Mine: 7}.Bytes(), int64(1<<40))
	f.Fuzz(func(t *testing.T, b []byte, later int64) {
		p, err := ParsePacket(b)
		if err != nil {
			return
		}
		again, err := ParsePacket(p.Bytes())
		if err != nil || again != p {
			t.Errorf("%+v became %+v: %v", p, again, err)
		}
		now := time.Unix(1000, 0)
		m := NewMachine(p.Yours|1, quick, false, now, func() float64 { return 0.5 })
		for range 4 {
			if answer := m.Receive(p, now); answer != nil && (answer.Poll || !answer.Final) {
				t.Errorf("a poll was answered with %+v", answer)
			}
			m.Advance(now)
			if next := m.Next(); !next.IsZero() && next.Before(now.Add(-time.Hour)) {
				t.Errorf("next at %s, now is %s", next, now)
			}
			now = now.Add(time.Duration(later & (1<<36 - 1)))
		}
	})
}
