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

func Test455_objects_of_one_box_are_served_by_all(t *testing.T) {
	f := newFleet(t, 3)
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("web")
	for n := range f.boxes {
		for _, fam := range families {
			a, errA := f.vip(0, fam, "web")
			b, errB := f.vip(n, fam, "web")
			if errA != nil || errB != nil || a != b {
				t.Errorf("box 1 has %s and box %d %s (%v, %v)", a, n+1, b, errA, errB)
			}
		}
	}
	// Each has its Node, and keeps those of the others.
	eventually(t, time.Minute, func() error {
		for n := range f.boxes {
			if out, _, _ := f.boxes[n].Svcctl("get", "nodes", "-o", "name"); strings.Count(out, "box") != 3 {
				return fmt.Errorf("box %d has the Nodes %q", n+1, out)
			}
		}
		return nil
	})
	eventually(t, time.Minute, func() error {
		out, errOut, code := f.boxes[2].Svcctl("get", "boxes")
		if code != 0 || strings.Count(out, " OK ") != 3 {
			return fmt.Errorf("svcctl get boxes: exit %d: %s%s", code, out, errOut)
		}
		return nil
	})
	// What a selector finds is written by the box that has the turn, whoever that is.
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {app: sel}}\nspec: {nodeName: box2, containers: [{name: c, image: i, ports: [{containerPort: 80}]}]}\n" +
		"status: {phase: Running, podIP: 10.1.0.11, podIPs: [{ip: 10.1.0.11}], conditions: [{type: Ready, status: \"True\"}]}\n"
	svc := service("sel", "ipFamilies: [IPv4]", "selector: {app: sel}", "ports: [{port: 80}]")
	if out, code := f.apply(1, svc, pod); code != 0 {
		t.Fatal(out)
	}
	var vip netip.Addr
	eventually(t, time.Minute, func() (err error) { // another box has it a moment later
		out, _, _ := f.boxes[2].Svcctl("get", "svc", "sel", "-o", "jsonpath={.spec.clusterIP}")
		vip, err = netip.ParseAddr(strings.TrimSpace(out))
		return err
	})
	f.servesAt(netip.AddrPortFrom(vip, 80))
	if out, _, _ := f.boxes[0].Svcctl("get", "endpointslices", "-o", "jsonpath={.items[*].endpoints[*].zone}"); !strings.Contains(out, "z-box2") {
		t.Errorf("the endpoint on box2 has not its zone: %q", out)
	}
	if out, code := f.apply(1, "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: b}\n"); code == 0 || !strings.Contains(out, "fleet") {
		t.Errorf("a Secret: exit %d: %s", code, out)
	}
}

func Test456_etcd_goes_and_every_box_forwards(t *testing.T) {
	f := newFleet(t, 2)
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("web")
	end := f.keepAsking("web")
	f.stop()
	for n := range f.boxes {
		f.state(n, "CutOff")
	}
	for _, fam := range families {
		out, _, _ := f.boxes[0].Svcctl("get", "svc", fam.name("web"), "-o", "jsonpath={.spec.clusterIP}")
		f.servesAt(netip.AddrPortFrom(netip.MustParseAddr(strings.TrimSpace(out)), 80))
	}
	if out, _, _ := f.boxes[0].Svcctl("explain", "svc/"+families[0].name("web")); !strings.Contains(out, "cut off from etcd") {
		t.Errorf("explain does not say that the box is cut off: %s", out)
	}
	if out, code := f.apply(0, f.web("other")...); code == 0 || !strings.Contains(out, "cut off from etcd") {
		t.Errorf("a write without etcd: exit %d: %s", code, out)
	}
	end()
	// The box heals its tables without etcd.
	f.hosts[0].LoadNft("flush ruleset\n")
	f.serves("web")
	// A start without etcd begins with the replica, on a kernel that has nothing.
	f.boxes[1].Kill()
	f.hosts[1].LoadNft("flush ruleset\n")
	f.boxes[1].Start()
	f.serves("web")
	end = f.keepAsking("web")
	defer end()
	f.startEtcd()
	for n := range f.boxes {
		f.state(n, "Following")
	}
	eventually(t, time.Minute, func() error {
		if out, code := f.apply(1, f.web("later")...); code != 0 {
			return fmt.Errorf("a write after etcd came back: exit %d: %s", code, out)
		}
		return nil
	})
	f.serves("later")
}

func Test457_one_box_is_cut_off(t *testing.T) {
	f := newFleet(t, 2)
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("web")
	end := f.keepAsking("web")
	defer end()
	f.hosts[1].SetDown("ctl0")
	f.state(1, "CutOff")
	if out, code := f.apply(0, f.web("meanwhile")...); code != 0 {
		t.Fatal(out)
	}
	out, errOut, code := f.boxes[1].Svcctl("get", "svc")
	if code != 0 || strings.Contains(out, "meanwhile") {
		t.Errorf("a read on the box that is cut off: exit %d: %s%s", code, out, errOut)
	}
	f.hosts[1].SetUp("ctl0")
	f.state(1, "Following")
	f.serves("meanwhile")
	f.serves("web")
}

func Test458_a_snapshot_of_etcd_is_restored_under_the_boxes(t *testing.T) {
	f := newFleet(t, 2)
	if out, code := f.apply(0, f.web("old")...); code != 0 {
		t.Fatal(out)
	}
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	if _, _, err := f.etcdctl("snapshot", "save", snapshot); err != nil {
		t.Fatal(err)
	}
	if out, code := f.apply(0, f.web("new")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("new")
	var lost []netip.AddrPort
	for _, fam := range families {
		vip, err := f.vip(0, fam, "new")
		if err != nil {
			t.Fatal(err)
		}
		lost = append(lost, netip.AddrPortFrom(vip, 80))
	}
	end := f.keepAsking("old")
	defer end()
	f.stop()
	if err := os.RemoveAll(f.dir); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.etcdctl("snapshot", "restore", snapshot, "--data-dir", f.dir); err != nil {
		t.Fatal(err)
	}
	f.startEtcd()
	for n := range f.boxes {
		f.state(n, "WentBack")
	}
	for _, vip := range lost { // nothing leaves the kernel on its account
		f.servesAt(vip)
	}
	if out, code := f.apply(0, f.web("never")...); code == 0 || !strings.Contains(out, "svcctl fleet accept") {
		t.Errorf("a write while etcd is not believed: exit %d: %s", code, out)
	}
	if out, errOut, code := f.boxes[0].Svcctl("fleet", "accept"); code != 0 {
		t.Fatalf("svcctl fleet accept: exit %d: %s%s", code, out, errOut)
	}
	for n := range f.boxes {
		f.state(n, "Following")
	}
	f.serves("old")
	for n, client := range f.clients {
		eventually(t, time.Minute, func() error {
			if reply, err := client.Ask("tcp", lost[0]); err == nil {
				return fmt.Errorf("%s still answers the client of box %d", reply.Server, n+1)
			}
			return nil
		})
	}
	if out, code := f.apply(1, f.web("after")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("after")
}

func Test459_an_emptied_prefix_is_held(t *testing.T) {
	f := newFleet(t, 1)
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("web")
	backup := filepath.Join(t.TempDir(), "backup")
	f.svcctlFleet("backup", backup)
	vip, err := f.vip(0, families[0], "web")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.etcdctl("del", "--prefix", "svcctl/"); err != nil {
		t.Fatal(err)
	}
	f.state(0, "Emptied")
	f.servesAt(netip.AddrPortFrom(vip, 80))
	// A fleet that is made anew is another one, until the box is told.
	f.svcctlFleet("init", "--from", backup)
	f.state(0, "OtherFleet")
	f.servesAt(netip.AddrPortFrom(vip, 80))
	f.boxes[0].Stop()
	if err := os.Rename(f.boxes[0].Data, f.boxes[0].Data+".old"); err != nil {
		t.Fatal(err)
	}
	f.boxes[0].Start()
	f.state(0, "Following")
	if again, err := f.vip(0, families[0], "web"); err != nil || again != vip {
		t.Errorf("web has %s after the restore, and had %s (%v)", again, vip, err)
	}
	f.serves("web")
}

// refusedWith is the text of a verb that was refused; of one that was done it is none.
func refusedWith(text string, code int) string {
	if code == 0 {
		return "{done}"
	}
	return text
}

func Test460_boxes_that_do_not_fit_are_named(t *testing.T) {
	f := newFleet(t, 1)
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	other := f.lab.Router("other")
	f.lab.Segment("more").Attach(other, "x0", "10.8.0.1/24").Attach(f.etcd, "eth1", "10.8.0.100/24")
	other.Route("10.9.0.100/32", "10.8.0.100")
	namesake := f.box(other, "box1")
	namesake.Start()
	f.boxes = append(f.boxes, namesake)
	f.state(1, "Namesake")
	if out, code := f.apply(1, f.web("never")...); code == 0 || !strings.Contains(out, "named box1") {
		t.Errorf("a write of a namesake: exit %d: %s", code, out)
	}
	namesake.Kill()
	differs := f.box(other, "box9", "--service-node-port-range", "31000-31999")
	differs.Start()
	f.boxes[1] = differs
	f.state(1, "Differs")
	for _, out := range []string{refusedWith(f.apply(1, f.web("never")...)), f.svcctlFleet("status")} {
		if strings.Contains(out, "{") || !strings.Contains(out, "--service-node-port-range") {
			t.Errorf("of a box with other settings: %s", out)
		}
	}
	f.says(1, []string{"status"}, "Differs", "--service-node-port-range is 31000-31999 here and 30000-32767 in the fleet; it", "svcctl fleet status")
	if out, _, _ := differs.Svcctl("get", "svc", "-o", "name"); !strings.Contains(out, families[0].name("web")) {
		t.Errorf("a box with other settings has %q", out)
	}
	f.boxes, f.clients = f.boxes[:1], f.clients[:1]
	f.serves("web")
}
