package neighbor

import (
	"testing"
	"time"
)

// A port that may not speak sends nothing, though its machine would, and looks again soon.
func TestMayNotSpeak(t *testing.T) {
	for _, a := range vips {
		m := newMachine(box, func(time.Duration) time.Duration { return 0 })
		m.setPassive(start, false)
		m.add(start, a, true)
		p := &Port{m: m, wake: make(chan struct{}, 1), told: func() {}, may: func() bool { return false }} // a frame would need a socket
		before := time.Now()
		p.receive(ask(a))
		if next := p.tick(); next.Before(before) || next.After(time.Now().Add(askAgain)) {
			t.Errorf("%s: it looks again at %s", a, next)
		}
		if m.counters != (counters{}) {
			t.Errorf("%s: it did %+v", a, m.counters)
		}
		p.may = func() bool { t.Errorf("%s: a passive one asks", a); return true }
		m.setPassive(start, true)
		p.receive(ask(a))
		p.tick()
	}
}
