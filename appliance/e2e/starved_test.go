package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// group is the election as a box tells of it.
func (p *pair) group(t *testing.T, n int) (g struct {
	State, Interval string
	Transitions     int
}) {
	t.Helper()
	out, errOut, code := p.boxes[n].Svcctl("announcements", "-o", "json")
	all := struct{ Group any }{&g}
	if err := json.Unmarshal([]byte(out), &all); err != nil || code != 0 {
		t.Fatalf("announcements of box %d: exit code %d, %v: %s%s", n+1, code, err, out, errOut)
	}
	return g
}

// both has the first box answer and the other one stand by.
func (p *pair) both(t *testing.T) {
	t.Helper()
	p.announcers[0].Launch()
	p.answersAs(t, 0)
	p.announcers[1].Launch()
	eventually(t, time.Minute, func() error { return p.says(1, "l2 lan0 standby 192.0.2.1") })
}

// changed asserts how often the boxes changed their states since they started.
func (p *pair) changed(t *testing.T, when string, want [2]int) {
	t.Helper()
	eventually(t, time.Minute, func() error { // it is told a moment later
		if got := [2]int{p.group(t, 0).Transitions, p.group(t, 1).Transitions}; got != want {
			return fmt.Errorf("%s the boxes changed their states %d times, want %d", when, got, want)
		}
		return nil
	})
}

// A box that stands by and is stopped for a while takes nothing over when it goes on. One that answers and is stopped is
// replaced; when it goes on it stands by, although its priority is higher, and it neither answers the questions that waited for
// it nor announces anything.
func Test501_stopped_boxes_go_on(t *testing.T) {
	p := newPair(t, election)
	p.both(t)
	p.announcers[1].Signal(unix.SIGSTOP)
	time.Sleep(2 * time.Second)
	p.announcers[1].Signal(unix.SIGCONT)
	time.Sleep(time.Second)
	p.changed(t, "after the one that stands by was stopped", [2]int{1, 0})

	p.announcers[0].Signal(unix.SIGSTOP)
	p.answersAs(t, 1)
	for _, f := range families {
		macOf(t, p.client, "eth0", f, f.pairVIP().Addr().String()) // and one more question for both
	}
	frames := neighborFrames(t, p.hosts[0], "lan0")
	p.announcers[0].Signal(unix.SIGCONT)
	eventually(t, time.Minute, func() error { return p.says(0, "l2 lan0 standby 192.0.2.2") })
	p.answersAs(t, 1)
	p.changed(t, "after the one that answered was stopped", [2]int{2, 1})
	ours := []netip.Addr{ipv4.pairVIP().Addr(), ipv6.pairVIP().Addr()}
	for _, frame := range frames() {
		if slices.Contains(ours, frame.from) || !frame.question && slices.Contains(ours, frame.target) {
			t.Errorf("the box that was replaced sent an %s", frame)
		}
	}
}

// While eight busy loops have the CPUs for 15 s, the box that answers goes on, and the other one stands by.
func Test502_busy_machine(t *testing.T) {
	p := newPair(t, election)
	p.both(t)
	var loops []*exec.Cmd
	for range 8 {
		loop := exec.Command("timeout", "15", "sh", "-c", "while :; do :; done")
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		loops = append(loops, loop)
	}
	for _, loop := range loops {
		_ = loop.Wait() // the exit code says that its time was over
	}
	p.changed(t, "after 15 s of 8 busy loops", [2]int{1, 0})
	t.Logf("adverts say that they come every %s", p.group(t, 0).Interval)
	p.answersAs(t, 0)
}
