package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
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
	out, errOut, code := p.boxes[n].Svcctl("announce", "status", "-o", "json")
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
	// A box counts as dead after 3.2 s without adverts, and not 0.3 s, for which a busy machine may not run it.
	p := newPair(t, func(n int) []string { return append(election(n), "--interval", "1s") })
	p.both(t)
	p.announcers[1].Signal(unix.SIGSTOP)
	time.Sleep(5 * time.Second) // real time: longer than the other one may be silent; its adverts wait
	p.announcers[1].Signal(unix.SIGCONT)
	time.Sleep(time.Second) // real time: a takeover would be seen by then
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

// While eight busy loops have the CPUs for 5 s, 16 times as long as a box may be silent, the box that answers goes on, and the other
// one stands by.
func Test502_busy_machine(t *testing.T) {
	p := newPair(t, election)
	p.both(t)
	var loops []*exec.Cmd
	for range 8 {
		loop := exec.Command("timeout", "5", "sh", "-c", "while :; do :; done")
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		loops = append(loops, loop)
	}
	for _, loop := range loops {
		_ = loop.Wait() // the exit code says that its time was over
	}
	p.changed(t, "after 5 s of 8 busy loops", [2]int{1, 0})
	t.Logf("adverts say that they come every %s", p.group(t, 0).Interval)
	p.answersAs(t, 0)
}

// Two boxes of different virtual routers both answer: each says so, with the Ethernet address of the other and what to do. A box
// without carrier says that it is not heard, and one that stands by does not ask for its addresses to be given to an interface.
func Test504_what_is_wrong_with_an_election_is_told(t *testing.T) {
	p := newPair(t, func(n int) []string { return []string{"--l2", "lan0", "--vrid", fmt.Sprint(51 + n)} })
	vip := ipv4.pairVIP().Addr().String()
	says := func(n int, verb string, wants ...string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			out, _, _ := p.boxes[n].Svcctl(verb, map[string][]string{"explain": {vip}, "announce": {"status"}}[verb]...)
			for _, want := range wants {
				if text := strings.Join(strings.Fields(out), " "); !strings.Contains(text, want) {
					return fmt.Errorf("no %q in %s of box %d:\n%s", want, verb, n+1, out)
				}
			}
			return nil
		})
	}
	for n, a := range p.announcers {
		a.Launch()
		says(n, "announce", "l2 lan0 announced")
	}
	for n := range p.boxes {
		other := macInside(t, p.hosts[1-n], "lan0")
		says(n, "status", "two boxes answer for "+vip, "the one with the Ethernet address "+other, "the same --vrid")
		says(n, "doctor", "two boxes answer for "+vip)
		says(n, "explain", other+" answers as well")
	}
	p.announcers[1].Stop()
	standby := p.boxes[1].Announcer(election(0)...)
	standby.Launch()
	says(1, "announce", "standby: 192.0.2.1 answers")
	says(1, "doctor", "for 2 another box answers, and this one stands by")
	if out, _, _ := p.boxes[1].Svcctl("doctor"); strings.Contains(out, "ip address add") {
		t.Errorf("a box that stands by is to be given addresses:\n%s", out)
	}
	p.lan.Unplug(p.hosts[0])
	says(0, "announce", "down: the interface has no carrier", "priority 1")
	says(0, "status", "the adverts of this box are not received on lan0: it has no carrier")
	says(0, "explain", "is not announced on lan0: the interface has no carrier")
	says(1, "announce", "l2 lan0 announced")
}
