package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// Test626_a_rollout_on_leaves: those of the step have the new versions, all other boxes those before, also after a start without a core
// box; it is begun, looked at and undone through leaves.
func Test626_a_rollout_on_leaves(t *testing.T) {
	l := newLeafFleet(t, 1, 2, "--leaf-writes")
	second := l.secondServer()
	if out, code := l.applyWith(0, l.web("web"), "--wait=all"); code != 0 {
		t.Fatal(out)
	}
	l.answers("web", "server", "server", "server")
	l.allOK(2)
	if out, code := l.applyWith(2, append(l.webAt("web", second), l.webAt("fresh", second)...), "--rollout", "box2,100%", "--bake", "1h", "--within", "1h"); code != 0 || !strings.Contains(out, "step 1 of 2 (box2)") {
		t.Fatalf("through a leaf: exit %d: %s", code, out)
	}
	l.answers("web", "server", "second", "server")
	l.answers("fresh", "", "second", "")
	l.phase(2, "Baking", "") // box2 has said that it has it
	l.says(1, []string{"explain", "svc/" + families[0].name("web")}, "serves the new version of rollout")
	l.says(2, []string{"explain", "svc/" + families[0].name("web")}, "serves the version before rollout")
	l.says(2, []string{"fleet", "rollout", "status"}, "box1", "box2", "box3")
	if out, code := l.apply(2, l.web("web")...); code == 0 || !strings.Contains(out, "is under way in rollout") {
		t.Errorf("a write to what is in a rollout, through a leaf: exit %d: %s", code, out)
	}

	// Leaves start without a core box, on kernels that have nothing.
	var vips []netip.AddrPort
	for _, fam := range families {
		vip, err := l.vip(0, fam, "web")
		if err != nil {
			t.Fatal(err)
		}
		vips = append(vips, netip.AddrPortFrom(vip, 80))
	}
	l.boxes[0].Kill()
	for _, n := range []int{1, 2} {
		l.boxes[n].Stop() // so that the replica has all that was followed, also within the last second
		l.hosts[n].LoadNft("flush ruleset\n")
		l.boxes[n].Start()
	}
	for _, vip := range vips {
		l.answersAt(vip, "server", "second", "server")
	}
	if out, errOut, code := l.boxes[2].Svcctl("fleet", "rollout", "undo"); code == 0 || !strings.Contains(errOut, "nothing was changed") {
		t.Errorf("undo without a core box: exit %d: %s%s", code, out, errOut)
	}
	l.boxes[0].Start()
	for n := range l.boxes {
		l.state(n, "Following")
	}
	l.answers("web", "server", "second", "server")
	eventually(t, time.Minute, func() error {
		if out, errOut, code := l.boxes[2].Svcctl("fleet", "rollout", "undo"); code != 0 {
			return fmt.Errorf("undo through a leaf: exit %d: %s%s", code, out, errOut)
		}
		return nil
	})
	l.answers("web", "server", "server", "server")
	for n := range l.boxes {
		l.phase(n, "Undone", "")
	}
	l.allOK(0)

	// What a leaf reports stops it. Resumed, it goes on, to where other boxes report the same, and to its end.
	var unready []string
	for _, fam := range families {
		unready = append(unready, fam.slice("web", "t: 80"))
	}
	if out, code := l.applyWith(0, unready, "--rollout", "box3", "--bake", "3s", "--within", "1h"); code != 0 {
		t.Fatal(out)
	}
	l.phase(0, "Stopped", "box box3 has a new problem, Service default/"+families[0].name("web")+" NoEndpoints")
	for _, vip := range vips[:1] {
		l.answersAt(vip, "server", "server", "")
	}
	l.svcctl(1, "fleet", "rollout", "resume")
	eventually(t, 2*time.Minute, func() error {
		r := l.rollout(0)
		if r.Phase != "Stopped" || r.Step != 1 || strings.Contains(r.Why, "box3") {
			return fmt.Errorf("resumed it is %+v", r)
		}
		return nil
	})
	for _, vip := range vips {
		l.answersAt(vip, "", "", "")
	}
	eventually(t, 2*time.Minute, func() error { // box 1 and box 2 report one after the other
		r := l.rollout(0)
		if r.Phase == "Stopped" {
			l.svcctl(2, "fleet", "rollout", "resume")
		}
		if r.Phase != "Done" {
			return fmt.Errorf("resumed it is %+v", r)
		}
		return nil
	})
	if out, code := l.apply(2, l.web("web")...); code != 0 {
		t.Errorf("a write afterwards: %s", out)
	}
	l.answers("web", "server", "server", "server")
}
