package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// secondServer is another server beside that of the fleet.
func (f *fleet) secondServer() *netlab.Host {
	h := f.lab.Host("second")
	f.inside.Attach(h, "eth0", "10.1.0.12/24", "fd00:10:1::12/64")
	h.Serve("tcp", 80)
	return h
}

// webAt is web with another server.
func (f *fleet) webAt(name string, server *netlab.Host) (documents []string) {
	for _, fam := range families {
		documents = append(documents, fam.service(name, "ports: [{name: t, port: 80}]"), fam.slice(name, "t: 80", server))
	}
	return documents
}

// answers asserts who answers the client of each box for a Service, in both families; "" is nobody.
func (f *fleet) answers(name string, want ...string) {
	f.t.Helper()
	for _, fam := range families {
		vip, err := f.vip(0, fam, name)
		if err != nil {
			f.t.Fatal(err)
		}
		f.answersAt(netip.AddrPortFrom(vip, 80), want...)
	}
}

func (f *fleet) answersAt(vip netip.AddrPort, want ...string) {
	f.t.Helper()
	for n, client := range f.clients[:len(want)] {
		eventually(f.t, time.Minute, func() error {
			reply, err := client.Ask("tcp", vip)
			if got := reply.Server; (err == nil) != (want[n] != "") || err == nil && got != want[n] {
				return fmt.Errorf("the client of box %d asks %s: %q answers (%v), want %q", n+1, vip, got, err, want[n])
			}
			return nil
		})
	}
}

// rollout is what `svcctl fleet rollout status` shows on a box.
func (f *fleet) rollout(n int) (r struct {
	Phase, Why string
	Step       int
	Objects    []string
	Boxes      []struct {
		Name string
		New  bool
	}
}) {
	_ = f.boxes[n].Read("/svcctl/v1/rollout", &r) // there is no answer while etcd is away
	return r
}

// phase waits until a rollout is in a phase, and asserts what it says of why.
func (f *fleet) phase(n int, want, why string) {
	f.t.Helper()
	eventually(f.t, 2*time.Minute, func() error {
		if r := f.rollout(n); r.Phase != want || !strings.Contains(r.Why, why) {
			return fmt.Errorf("box %d says that the rollout is %+v, want %s (%s)", n+1, r, want, why)
		}
		return nil
	})
}

func (f *fleet) svcctl(n int, args ...string) string {
	f.t.Helper()
	out, errOut, code := f.boxes[n].Svcctl(args[0], args[1:]...)
	if code != 0 {
		f.t.Fatalf("svcctl %s on box %d: exit %d: %s%s", strings.Join(args, " "), n+1, code, out, errOut)
	}
	return out + errOut
}

// Test591_packets_of_a_rollout get the new versions on the box of the step, and those before on all others, also of what selectors
// find, over starts without etcd; undone, all have what was there before.
func Test591_packets_of_a_rollout(t *testing.T) {
	f := newFleet(t, 3)
	second := f.secondServer()
	pod := func(name, app, ip string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, labels: {app: %s}}\nspec: {containers: [{name: c, image: i, ports: [{containerPort: 80}]}]}\n"+
			"status: {phase: Running, podIP: %s, podIPs: [{ip: %s}], conditions: [{type: Ready, status: \"True\"}]}\n", name, app, ip, ip)
	}
	selecting := func(app string) string {
		return service("sel", "ipFamilies: [IPv4]", "clusterIP: 172.30.7.7", "selector: {app: "+app+"}", "ports: [{port: 80}]")
	}
	sel := netip.MustParseAddrPort("172.30.7.7:80")
	if out, code := f.apply(0, append(f.web("web"), selecting("one"), pod("one", "one", "10.1.0.11"), pod("two", "two", "10.1.0.12"))...); code != 0 {
		t.Fatal(out)
	}
	f.answers("web", "server", "server", "server")
	f.answersAt(sel, "server", "server", "server")

	if out, code := f.applyWith(0, append(append(f.webAt("web", second), f.webAt("fresh", second)...), selecting("two")), "--rollout", "box2,100%", "--bake", "1h", "--within", "1h"); code != 0 || !strings.Contains(out, "step 1 of 2 (box2)") {
		t.Fatalf("exit %d: %s", code, out)
	}
	f.answers("web", "server", "second", "server")
	f.answers("fresh", "", "second", "")
	f.answersAt(sel, "server", "second", "server")
	f.phase(2, "Baking", "")
	f.says(0, []string{"explain", "svc/" + families[0].name("web")}, "serves the version before rollout")
	f.says(1, []string{"explain", "svc/" + families[0].name("web")}, "serves the new version of rollout")
	f.says(1, []string{"status"}, "this box has the new versions")
	f.says(2, []string{"status"}, "this box has the versions before")
	f.says(0, []string{"get", "boxes"}, "ROLLOUT")
	for n := range f.boxes {
		if out, code := f.apply(n, f.web("web")...); code == 0 || !strings.Contains(out, "is under way in rollout") || !strings.Contains(out, "svcctl fleet rollout undo") {
			t.Errorf("a write to what is in a rollout: exit %d: %s", code, out)
		}
	}
	// What selectors find goes on, for both versions.
	f.svcctl(0, "delete", "pod", "one")
	f.answersAt(sel, "", "second", "")
	if out, code := f.apply(0, pod("again", "one", "10.1.0.11")); code != 0 {
		t.Fatal(out)
	}
	f.answersAt(sel, "server", "second", "server")

	web, err := f.vip(0, families[0], "web")
	if err != nil {
		t.Fatal(err)
	}
	// Boxes in and outside of the step start without etcd, on kernels that have nothing.
	f.stop()
	for _, n := range []int{1, 2} {
		f.boxes[n].Stop() // so that the replica has all that was followed, also within the last second
		f.hosts[n].LoadNft("flush ruleset\n")
		f.boxes[n].Start()
	}
	f.answersAt(netip.AddrPortFrom(web, 80), "server", "second", "server")
	f.answersAt(sel, "server", "second", "server")
	f.startEtcd()
	for n := range f.boxes {
		f.state(n, "Following")
	}
	f.answers("web", "server", "second", "server")

	eventually(t, time.Minute, func() error {
		if out, errOut, code := f.boxes[2].Svcctl("fleet", "rollout", "undo"); code != 0 {
			return fmt.Errorf("undo: exit %d: %s%s", code, out, errOut)
		}
		return nil
	})
	f.answers("web", "server", "server", "server")
	f.answersAt(sel, "server", "server", "server")
	f.phase(0, "Undone", "")
	if out, _, code := f.boxes[1].Svcctl("get", "svc", families[0].name("fresh")); code == 0 {
		t.Errorf("what the rollout has made is there: %s", out)
	}
	if out, code := f.apply(1, f.web("web")...); code != 0 {
		t.Errorf("a write after it: %s", out)
	}
}

// Test592_a_rollout_goes_on_by_itself, also when the box that drives it dies; a deletion is one, too.
func Test592_a_rollout_goes_on_by_itself(t *testing.T) {
	f := newFleet(t, 3)
	second := f.secondServer()
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.answers("web", "server", "server", "server")
	driver := f.driver()
	first := (driver + 1) % 3
	if out, code := f.applyWith(first, f.webAt("web", second), "--rollout", f.hosts[first].Name, "--bake", "10s", "--within", "1h"); code != 0 {
		t.Fatal(out)
	}
	f.boxes[driver].Kill()
	if out, errOut, code := f.boxes[first].Svcctl("fleet", "rollout", "status", "--wait"); code != 0 || !strings.Contains(out, "Done") {
		t.Errorf("exit %d: %s%s", code, out, errOut)
	}
	f.boxes[driver].Start()
	f.answers("web", "second", "second", "second")
	if out, code := f.apply(driver, f.web("web")...); code != 0 {
		t.Errorf("a write afterwards: %s", out)
	}
	f.answers("web", "server", "server", "server")

	// A Service that is deleted goes from the box of the step.
	var vips []netip.AddrPort
	names := []string{"svc"}
	for _, fam := range families {
		vip, err := f.vip(0, fam, "web")
		if err != nil {
			t.Fatal(err)
		}
		vips, names = append(vips, netip.AddrPortFrom(vip, 80)), append(names, fam.name("web"))
	}
	f.svcctl(0, append([]string{"delete", "--rollout", "box2", "--bake", "1h", "--within", "1h"}, names...)...)
	for _, vip := range vips {
		f.answersAt(vip, "server", "", "server")
	}
	f.says(1, []string{"explain", names[0] + "/" + names[1]}, "serves the new version of rollout")
	f.says(0, []string{"explain", names[0] + "/" + names[1]}, "before the rollout, and here until it comes, it is served")
	f.svcctl(0, "fleet", "rollout", "undo")
	f.answers("web", "server", "server", "server")
	for i, fam := range families {
		if vip, err := f.vip(1, fam, "web"); err != nil || vip != vips[i].Addr() {
			t.Errorf("after undo the address is %s (%v), and was %s", vip, err, vips[i])
		}
	}
}

// Test593_a_rollout_stops_by_itself when a box of the step has a new problem, or is not heard of, or a Service has no endpoint any
// more; the other boxes never have it.
func Test593_a_rollout_stops_by_itself(t *testing.T) {
	f := newFleet(t, 3)
	second := f.secondServer()
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.answers("web", "server", "server", "server")
	roll := func(documents ...string) {
		t.Helper()
		if out, code := f.applyWith(0, documents, "--rollout", "box2", "--bake", "1h", "--within", "1h"); code != 0 {
			t.Fatal(out)
		}
	}
	undo := func() {
		t.Helper()
		f.svcctl(2, "fleet", "rollout", "undo")
		f.answers("web", "server", "server", "server")
	}
	end := f.keepAsking("web")

	// Another program has the node port on box 2.
	f.hosts[1].Serve("tcp", 30080)
	roll(families[0].service("web", "type: NodePort", "ports: [{name: t, port: 80, nodePort: 30080}]"))
	f.phase(0, "Stopped", "box box2 has a new problem")
	f.says(2, []string{"status"}, "rollout", "has stopped in step 1 of 2")
	for _, n := range []int{0, 2} {
		if out, _, _ := f.hosts[n].Run("nft", "list", "ruleset"); strings.Contains(out, "30080") {
			t.Errorf("box %d has the node port: %s", n+1, out)
		}
	}
	undo()
	end()

	// No endpoint is ready any more.
	var unready []string
	for _, fam := range families {
		unready = append(unready, fam.slice("web", "t: 80"))
	}
	roll(unready...)
	f.phase(0, "Stopped", "NoEndpoints")
	f.answers("web", "server", "", "server")
	undo()
	// So that nobody has to say it.
	if out, code := f.applyWith(0, unready, "--rollout", "box2", "--bake", "1h", "--within", "1h", "--on-failure", "undo"); code != 0 {
		t.Fatal(out)
	}
	f.phase(0, "Undone", "box box2 has a new problem, Service default/"+families[0].name("web")+" NoEndpoints")
	if out, _, code := f.boxes[2].Svcctl("fleet", "rollout", "status", "--wait"); code != 1 || !strings.Contains(out, "Undone") || !strings.Contains(out, "NoEndpoints") {
		t.Errorf("status of what was undone by itself: exit %d: %s", code, out)
	}
	f.answers("web", "server", "server", "server")
	eventually(t, time.Minute, func() error {
		if out, _, _ := f.boxes[0].Svcctl("get", "events"); !strings.Contains(out, "RolloutUndone") {
			return fmt.Errorf("no Event tells of it: %s", out)
		}
		return nil
	})

	// Box 2 goes away.
	roll(f.webAt("web", second)...)
	f.answers("web", "server", "second", "server")
	f.boxes[1].Kill()
	f.phase(2, "Stopped", "box box2 does not report")
	f.answers("web", "server")
	f.boxes[1].Start()
	f.answers("web", "server", "second", "server")
	undo()
}

// driver is the box that moves rollouts, as the first box has it.
func (f *fleet) driver() (driver int) {
	f.t.Helper()
	eventually(f.t, time.Minute, func() error {
		out, _, _ := f.boxes[0].Svcctl("status")
		for n, h := range f.hosts {
			if strings.Contains(out, "controllers run on "+h.Name) {
				driver = n
				return nil
			}
		}
		return fmt.Errorf("nobody drives: %s", out)
	})
	return driver
}

// Test629_a_rollout_is_undone_by_itself, by another box when the one that drives it is the one that fails. Of rollouts that begin at the
// same moment one does.
func Test629_a_rollout_is_undone_by_itself(t *testing.T) {
	f := newFleet(t, 2)
	second := f.secondServer()
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.answers("web", "server", "server")
	// What cannot be pruned in steps has nothing rolled out.
	set := []string{"--prune", "--applyset", "shop"}
	if out, code := f.applyWith(0, append(f.web("web"), "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"), set...); code != 0 {
		t.Fatal(out)
	}
	out, code := f.applyWith(0, f.webAt("web", second), append(set, "--rollout", "box2", "--bake", "1h", "--within", "1h")...)
	if code != 1 || !strings.Contains(out, "namespace/shop: not pruned") || !strings.Contains(out, "nothing is rolled out: no box has any of it") {
		t.Errorf("a Namespace that is pruned in a rollout: exit %d: %s", code, out)
	}
	f.phase(1, "Undone", "it was not started")
	f.answers("web", "server", "server")
	var begun sync.WaitGroup
	var said [2]string
	var codes [2]int
	for n := range f.boxes {
		begun.Go(func() {
			said[n], codes[n] = f.applyWith(n, f.webAt("web", second), "--rollout", f.hosts[n].Name, "--bake", "1h", "--within", "1h")
		})
	}
	begun.Wait()
	if codes[0]+codes[1] != 1 || !strings.Contains(said[0]+said[1], "is under way: wait until") {
		t.Fatalf("two at the same moment: exit %v: %s", codes, said)
	}
	f.svcctl(0, "fleet", "rollout", "undo")
	driver := f.driver()
	other := 1 - driver
	if out, code := f.applyWith(other, f.webAt("web", second), "--rollout", f.hosts[driver].Name, "--bake", "1h", "--within", "1h", "--on-failure", "undo"); code != 0 {
		t.Fatal(out)
	}
	f.says(other, []string{"fleet", "rollout", "status"}, "it is undone by itself")
	f.boxes[driver].Kill()
	f.phase(other, "Undone", "box "+f.hosts[driver].Name+" does not report any more")
	f.boxes[driver].Start()
	f.answers("web", "server", "server")
	if out, code := f.apply(driver, f.web("web")...); code != 0 {
		t.Errorf("a write after it: %s", out)
	}
}
