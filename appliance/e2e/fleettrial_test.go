package e2e

import (
	"fmt"
	"net/netip"
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
	if out, errOut, code := f.boxes[1].Svcctl("trial", "5m"); code == 0 || !strings.Contains(out+errOut, "in a fleet files are not tried") {
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
