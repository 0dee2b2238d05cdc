package neighbor

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// A port that may not speak sends nothing, though its machine would, and looks again soon.
func TestMayNotSpeak(t *testing.T) {
	for _, a := range vips {
		m := newMachine(box, func(time.Duration) time.Duration { return 0 })
		m.setPassive(start, false)
		m.add(start, a, true)
		p := &Port{m: m, wake: make(chan struct{}, 1), changed: func() {}, may: func() bool { return false }} // a frame would need a socket
		before := time.Now()
		p.receive(ask(a))
		if next := p.tick(); next.Before(before) || next.After(time.Now().Add(recheck)) {
			t.Errorf("%s: it looks again at %s", a, next)
		}
		if m.Counters != (Counters{}) {
			t.Errorf("%s: it did %+v", a, m.Counters)
		}
		p.may = func() bool { t.Errorf("%s: a passive one asks", a); return true }
		m.setPassive(start, true)
		p.receive(ask(a))
		p.tick()
	}
}

// Another host that claims an address which an election gave to this box is a contest when it goes on, and no more when it has
// ended or the election gave the address anew.
func TestContest(t *testing.T) {
	for _, a := range vips {
		r := newRig(t)
		r.setPassive(start, false)
		r.add(start, a, false)
		is := func(when string, want bool) {
			t.Helper()
			if e := r.entries[a]; e.Contested != want || want && e.Rival != rival || e.State != Announced {
				t.Errorf("%s: %s it is %+v, want contested: %t", a, when, e.Status, want)
			}
		}
		claimed := func(offset time.Duration) {
			r.until(offset)
			if clear(r.changed); len(r.receive(r.now, claim(a))) == 0 && offset == 4*time.Second {
				t.Errorf("%s: it is not defended", a)
			}
		}
		claimed(0)
		claimed(2 * time.Second)
		is("in a takeover", false)
		claimed(4 * time.Second)
		if is("after that", true); len(r.changed) != 1 || r.Conflicts != 1 {
			t.Errorf("%s: changed are %v, and %d conflicts", a, r.changed, r.Conflicts)
		}
		clear(r.changed)
		probes := 0
		for offset := 6 * time.Second; offset < 5*time.Minute; offset += time.Second {
			for _, frames := range r.until(offset) {
				for _, frame := range frames {
					if msg, _ := parse(frame); msg.asks == a && !msg.from.IsValid() {
						probes++
						r.receive(r.now, claim(a))
					}
				}
			}
		}
		if len(r.changed) != 0 {
			t.Errorf("%s: it is told of twice", a)
		}
		if is("as long as its probes are answered", true); probes < 25 {
			t.Errorf("%s: it was probed %d times in 295 s", a, probes)
		}
		r.until(5*time.Minute + 45*time.Second)
		is("when three probes had no answer", false)
		claimed(6 * time.Minute)
		claimed(6*time.Minute + 4*time.Second)
		is("again", true)
		r.refresh(r.now)
		is("announced anew", true)
		r.setPassive(r.now, true)
		r.setPassive(r.now, false)
		is("given anew", false)
	}
}

// Test878_an_interface_takes_no_frames: a queue that does not empty delays an announcer by no more than its patience with each frame.
func Test878_an_interface_takes_no_frames(t *testing.T) {
	lab := netlab.New(t)
	h := lab.Host("box")
	lab.Segment("lan").Attach(h, "eth0", "192.0.2.1/24").Attach(lab.Host("other"), "eth0", "192.0.2.2/24")
	if _, text, err := h.Run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "8bit", "burst", "200", "limit", "1000000"); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	done := make(chan error, 1)
	if err := h.Do(func() error {
		ifi, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		p, err := Open(ifi, nil, slog.New(slog.DiscardHandler), func() {}, nil)
		if err != nil {
			return err
		}
		t.Cleanup(p.Close)
		raw, err := p.arp.SyscallConn()
		if err != nil {
			return err
		}
		var full error
		if err := raw.Control(func(fd uintptr) { full = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, 1) }); err != nil || full != nil {
			t.Fatal(err, full)
		}
		go func() {
			p.do(func(time.Time) (frames [][]byte) {
				for range 20 { // the least buffer has room for fewer
					frames = append(frames, ask(vips[0]))
				}
				return frames
			})
			done <- nil
		}()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("frames are still being sent")
	}
}

// TestErrorOfAnInterfaceThatIsGone: it is the kernel's, and asks for no right that the process has.
func TestErrorOfAnInterfaceThatIsGone(t *testing.T) {
	h := netlab.New(t).Host("box")
	err := h.Do(func() error {
		p, err := Open(&net.Interface{Index: 4711, Name: "gone0", HardwareAddr: make(net.HardwareAddr, 6)}, nil, slog.New(slog.DiscardHandler), func() {}, nil)
		if err == nil {
			p.Close()
		}
		return err
	})
	if !errors.Is(err, unix.ENODEV) || strings.Contains(err.Error(), "CAP_NET_RAW") {
		t.Errorf("%v", err)
	}
}
