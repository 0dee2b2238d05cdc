package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Test579_a_trial_of_a_box_that_died goes back on the others, by whichever of them has the turn then. One that another box
// confirms stays.
func Test579_a_trial_of_a_box_that_died(t *testing.T) {
	f := newFleet(t, 2)
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("web")
	if out, code := f.applyWith(0, f.web("kept"), "--confirm", "1h"); code != 0 {
		t.Fatal(out)
	}
	f.serves("kept")
	f.says(1, []string{"status"}, "confirm")
	if out, errOut, code := f.boxes[1].Svcctl("confirm", "--start", "5m"); code == 0 || !strings.Contains(out+errOut, "in a fleet files are not tried") {
		t.Errorf("a trial of files: exit %d: %s%s", code, out, errOut)
	}
	if out, errOut, code := f.boxes[1].Svcctl("confirm"); code != 0 {
		t.Fatalf("svcctl confirm on the other box: exit %d: %s%s", code, out, errOut)
	}
	var documents []string
	var vips []netip.AddrPort
	for i, fam := range families {
		address := []string{"172.30.9.9", "fd00:172:30::99"}[i]
		documents = append(documents, fam.service("tried", "clusterIP: '"+address+"'", "ports: [{name: t, port: 80}]"), fam.slice("tried", "t: 80", f.server))
		vips = append(vips, netip.AddrPortFrom(netip.MustParseAddr(address), 80))
	}
	if out, code := f.applyWith(0, documents, "--confirm", "10s"); code != 0 {
		t.Fatal(out)
	}
	f.boxes[0].Kill()
	client := f.clients[1]
	for i, fam := range families {
		eventually(t, 2*time.Minute, func() error {
			out, errOut, code := f.boxes[1].Svcctl("get", "svc", "-o", "name") // asks etcd
			if code != 0 || strings.Contains(out, fam.name("tried")) {
				return fmt.Errorf("box 2 still has it: exit %d: %s%s", code, out, errOut)
			}
			if reply, err := client.Ask("tcp", vips[i]); err == nil {
				return fmt.Errorf("%s still answers at %s", reply.Server, vips[i])
			}
			return nil
		})
	}
	f.boxes[0].Start()
	f.serves("web")
	f.serves("kept")
	for n := range f.boxes {
		if out, _, _ := f.boxes[n].Svcctl("get", "svc", "-o", "name"); strings.Contains(out, families[0].name("tried")) {
			t.Errorf("box %d has %s", n+1, out)
		}
	}
	if out, errOut, code := f.boxes[1].Svcctl("confirm"); code == 0 {
		t.Errorf("what went back is confirmed: %s%s", out, errOut)
	}
}

// Test617_a_box_is_cut_off_past_the_end_of_a_trial: it has in force what was so before the trial, over a restart too, and
// says so, until it hears that the trial was confirmed. Services that were not on trial do not notice.
func Test617_a_box_is_cut_off_past_the_end_of_a_trial(t *testing.T) {
	f := newFleet(t, 2)
	if out, code := f.apply(0, append(f.web("web"), f.web("gone")...)...); code != 0 {
		t.Fatal(out)
	}
	f.serves("web")
	f.serves("gone")
	gone, tried := map[string]netip.AddrPort{}, map[string]netip.AddrPort{}
	var documents []string
	for i, fam := range families {
		gone[fam.name("")] = f.at(0, fam, "gone")
		address := []string{"172.30.9.9", "fd00:172:30::99"}[i]
		documents = append(documents, fam.service("tried", "clusterIP: '"+address+"'", "ports: [{name: t, port: 80}]"), fam.slice("tried", "t: 80", f.server))
		tried[fam.name("")] = netip.AddrPortFrom(netip.MustParseAddr(address), 80)
	}
	end := f.keepAsking("web")
	defer end()
	answers := func(n int, when string, has, lacks map[string]netip.AddrPort) {
		t.Helper()
		eventually(t, 2*time.Minute, func() error {
			for _, at := range has {
				if reply, err := f.clients[n].Ask("tcp", at); err != nil || reply.Server != f.server.Name {
					return fmt.Errorf("%s nobody answers the client of box %d at %s: %v", when, n+1, at, err)
				}
			}
			for _, at := range lacks {
				if reply, err := f.clients[n].Ask("tcp", at); err == nil {
					return fmt.Errorf("%s %s answers the client of box %d at %s", when, reply.Server, n+1, at)
				}
			}
			return nil
		})
	}
	if out, code := f.applyWith(0, documents, "--confirm", "40s"); code != 0 {
		t.Fatal(out)
	}
	for _, fam := range families {
		if out, errOut, code := f.boxes[0].Svcctl("delete", "--confirm", "40s", "svc", fam.name("gone")); code != 0 {
			t.Fatal(out, errOut)
		}
	}
	answers(1, "on trial", tried, gone)
	heal := f.cutOff(1)
	if out, errOut, code := f.boxes[0].Svcctl("confirm"); code != 0 {
		t.Fatalf("svcctl confirm: exit %d: %s%s", code, out, errOut)
	}
	answers(1, "when the trial is over", gone, tried)
	f.says(1, []string{"status"}, "what was in force before it is in force here")
	answers(0, "confirmed", tried, gone)
	f.boxes[1].Stop()
	f.boxes[1].Start()
	answers(1, "after a restart", gone, tried)
	file := filepath.Join(t.TempDir(), "more.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(f.web("more"), "---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, errOut, code := f.boxes[1].Svcctl("plan", "--against", "running", "-f", file); code != 2 || !strings.Contains(errOut, "what was in force before it is") {
		t.Errorf("a plan meanwhile: exit %d: %s%s", code, out, errOut)
	}
	heal()
	answers(1, "when it hears that it was confirmed", tried, gone)
	if out, _, _ := f.boxes[1].Svcctl("status"); strings.Contains(out, "what was in force before") {
		t.Errorf("svcctl status: %s", out)
	}
}
