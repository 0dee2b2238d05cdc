package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// sourceFleet is a fleet whose boxes have directories for source lb, all of them empty.
func sourceFleet(t *testing.T, boxes int) (f *fleet, dirs []string) {
	for range boxes {
		dirs = append(dirs, t.TempDir())
	}
	f = newFleet(t, boxes, func(n int) []string { return []string{"--manifests", "lb=" + dirs[n]} })
	return f, dirs
}

// put writes a file of a directory, by renaming it into place.
func put(t *testing.T, dir, name string, documents ...string) {
	t.Helper()
	temporary := filepath.Join(dir, "."+name)
	if err := os.WriteFile(temporary, []byte(strings.Join(documents, "---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// readBy waits until a box says who reads source lb.
func (f *fleet) readBy(n int, reader string) {
	f.t.Helper()
	eventually(f.t, time.Minute, func() error {
		out, errOut, code := f.boxes[n].Svcctl("fleet", "source", "list")
		for _, line := range strings.Split(out, "\n") {
			if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "lb" && fields[1] == reader && fields[2] == "reading" {
				return nil
			}
		}
		return fmt.Errorf("svcctl fleet source list: exit %d: %s%s", code, out, errOut)
	})
}

// says waits until what svcctl prints on a box has all of some words.
func (f *fleet) says(n int, args []string, words ...string) {
	f.t.Helper()
	eventually(f.t, time.Minute, func() error {
		out, errOut, _ := f.boxes[n].Svcctl(args[0], args[1:]...)
		for _, word := range words {
			if !strings.Contains(out, word) {
				return fmt.Errorf("box %d: svcctl %s says nothing of %q: %s%s", n+1, strings.Join(args, " "), word, out, errOut)
			}
		}
		return nil
	})
}

// at is the address of a Service on a box, once it has it.
func (f *fleet) at(n int, fam family, name string) (at netip.AddrPort) {
	f.t.Helper()
	eventually(f.t, time.Minute, func() error {
		vip, err := f.vip(n, fam, name)
		at = netip.AddrPortFrom(vip, 80)
		return err
	})
	return at
}

func Test475_one_box_reads_the_files_for_all(t *testing.T) {
	f, dirs := sourceFleet(t, 3)
	put(t, dirs[0], "web.yaml", f.web("web")...)
	f.readBy(1, "box1")
	four := families[0]
	web := f.at(1, four, "web")
	f.servesAt(web)
	f.servesAt(f.at(0, families[1], "web"))
	for n := range f.boxes { // file and line are known everywhere
		f.says(n, []string{"explain", web.String()}, "lb:web.yaml:1")
		f.says(n, []string{"describe", "svc/" + four.name("web")}, "lb:web.yaml:1")
	}
	// One box pulls the same, the other one has an old clone.
	put(t, dirs[1], "web.yaml", f.web("web")...)
	put(t, dirs[2], "web.yaml", f.web("web")[:2]...)
	f.says(1, []string{"status"}, "standby, read by box1")
	f.says(2, []string{"status"}, "this box has lb:web.yaml otherwise", "svcctl fleet source take lb --box box3")
	if out, code := f.apply(1, strings.Replace(f.web("web")[0], "port: 80", "port: 81", 1)); code == 0 || !strings.Contains(out, "box1 reads") {
		t.Errorf("a write to an object of a file, on a box that does not read it: exit %d: %s", code, out)
	}
	// The reader dies: who agrees takes over, and its changes are in force.
	f.boxes[0].Kill()
	f.readBy(1, "box2")
	put(t, dirs[1], "more.yaml", f.web("more")...)
	more := f.at(2, four, "more")
	f.boxes[0].Start()
	f.servesAt(more)
	f.says(0, []string{"status"}, "this box has lb:more.yaml otherwise", "read by box2")
	f.servesAt(web)
	// Somebody says that the old clone is right.
	if out, errOut, code := f.boxes[0].Svcctl("fleet", "source", "take", "lb", "--box", "box3"); code != 0 {
		t.Fatalf("svcctl fleet source take: exit %d: %s%s", code, out, errOut)
	}
	f.readBy(0, "box3")
	eventually(t, time.Minute, func() error {
		for n, client := range f.clients {
			if reply, err := client.Ask("tcp", more); err == nil {
				return fmt.Errorf("%s still answers the client of box %d", reply.Server, n+1)
			}
		}
		return nil
	})
	f.servesAt(web)
	f.says(1, []string{"status"}, "differs, read by box3")
	// Nothing is lost with a directory that is emptied.
	if err := os.Remove(filepath.Join(dirs[2], "web.yaml")); err != nil {
		t.Fatal(err)
	}
	f.says(2, []string{"status"}, "confirm with `svcctl confirm --removals`")
	f.servesAt(web)
	if out, errOut, code := f.boxes[2].Svcctl("confirm", "--removals", "--yes"); code != 0 {
		t.Fatalf("svcctl confirm --removals: exit %d: %s%s", code, out, errOut)
	}
	eventually(t, time.Minute, func() error {
		if _, err := f.vip(0, four, "web"); err == nil {
			return fmt.Errorf("box 1 still has the Service after svcctl confirm --removals")
		}
		return nil
	})
}

func Test476_apply_waits_for_the_boxes(t *testing.T) {
	f := newFleet(t, 3)
	apply := func(name, wait string) (string, int) { return f.applyWith(0, f.web(name), "--wait="+wait) }
	f.says(0, []string{"get", "boxes"}, "box1", "box2", "box3")
	if out, code := apply("one", "all,1m"); code != 0 {
		t.Fatalf("--wait=all of three boxes: exit %d: %s", code, out)
	}
	one := f.at(0, families[0], "one")
	for n, client := range f.clients { // at once: it has been waited for
		if reply, err := client.Ask("tcp", one, patiently); err != nil || reply.Server != f.server.Name {
			t.Errorf("the client of box %d after --wait=all: %+v, %v", n+1, reply, err)
		}
	}
	f.boxes[2].Kill()
	if out, code := apply("two", "quorum,1m"); code != 0 { // the two others have told that they have it
		t.Fatalf("--wait=quorum with two of three boxes: exit %d: %s", code, out)
	}
	if out, code := apply("two", "all,20s"); code != 1 || !strings.Contains(out, "box3") || strings.Contains(out, "box1 (") {
		t.Errorf("--wait=all with a box that is away: exit %d: %s", code, out)
	}
	if out, code := apply("three", "quorum,1m"); code != 0 {
		t.Errorf("--wait=quorum with two of three boxes: exit %d: %s", code, out)
	}
	if out, code := apply("four", "present,1m"); code != 0 || !strings.Contains(out, "not waited for: box3") {
		t.Errorf("--wait=present with a box that is away: exit %d: %s", code, out)
	}
	if out, code := apply("five", "box"); code != 0 {
		t.Errorf("--wait=box: exit %d: %s", code, out)
	}
	f.boxes[1].Kill()
	if out, code := apply("six", "quorum,3s"); code != 1 || !strings.Contains(out, "box2") {
		t.Errorf("--wait=quorum with one of three boxes: exit %d: %s", code, out)
	}
}

// A box of its own with files becomes the first of a fleet, and its directory a source: objects are what they
// were, connections go on, and the files go on to say what is in force.
func Test562_files_of_a_box_become_a_source(t *testing.T) {
	dir := t.TempDir()
	source := "lb=" + dir
	f := layFleet(t, 2, func(n int) []string {
		if n == 0 {
			return []string{"--manifests", source}
		}
		return nil
	})
	put(t, dir, "web.yaml", f.web("web")...)
	single := f.single(f.hosts[0], "box1")
	single.Manifests.Path = dir
	single.Start()
	of := t.TempDir()
	put(t, of, "apart.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: apart}\n")
	if out, errOut, code := single.Svcctl("apply", "-f", of); code != 0 { // of no file
		t.Fatal(out, errOut)
	}
	const facts = "jsonpath={.metadata.uid} {.metadata.resourceVersion} {.spec.clusterIP}"
	get := func(b *netlab.Appliance, fam family) string {
		out, errOut, code := b.Svcctl("get", "svc", fam.name("web"), "-o", facts)
		if code != 0 {
			t.Fatal(out, errOut)
		}
		return out
	}
	before := map[string]string{}
	for _, fam := range families {
		before[fam.name("web")] = get(single, fam)
	}
	single.Stop()
	f.svcctlFleet("init", "--from", single.Data, "--manifests", source)
	for _, b := range f.boxes {
		b.Start()
	}
	f.readBy(1, "box1")
	for n, b := range f.boxes {
		for _, fam := range families {
			if now := get(b, fam); now != before[fam.name("web")] {
				t.Errorf("box %d has %q, and the box of its own had %q", n+1, now, before[fam.name("web")])
			}
		}
		f.says(n, []string{"explain", "svc/" + families[0].name("web")}, "lb:web.yaml")
		f.says(n, []string{"get", "namespaces", "-o", "name"}, "apart")
	}
	f.serves("web")
	put(t, dir, "web.yaml", f.web("other")...)
	f.at(1, families[0], "other")
	f.serves("other")
	eventually(t, time.Minute, func() error {
		if vip, err := f.vip(1, families[0], "web"); err == nil {
			return fmt.Errorf("web is no longer in a file, and box 2 has it at %s", vip)
		}
		return nil
	})
}

// A source that no box has any more is forgotten: packets go on, and any box may change its objects.
func TestForgetASource(t *testing.T) {
	dir := t.TempDir()
	f := newFleet(t, 2, func(n int) []string { return [][]string{{"--manifests", "lb=" + dir}, nil}[n] })
	put(t, dir, "web.yaml", f.web("web")...)
	f.readBy(1, "box1")
	web := f.at(1, families[0], "web")
	f.servesAt(web)
	if out, errOut, code := f.boxes[1].Svcctl("fleet", "source", "forget", "lb"); code == 0 || !strings.Contains(out+errOut, "box1 has the source") {
		t.Errorf("a source that a box has is forgotten: exit %d: %s%s", code, out, errOut)
	}
	f.boxes[0].Stop()
	eventually(t, time.Minute, func() error { // its lease may have to end
		if out, errOut, code := f.boxes[1].Svcctl("fleet", "source", "forget", "lb"); code != 0 || !strings.Contains(out, "Its 4 objects belong to the API now") {
			return fmt.Errorf("svcctl fleet source forget: exit %d: %s%s", code, out, errOut)
		}
		return nil
	})
	f.says(1, []string{"fleet", "source", "list"}, "No box has read")
	if again := f.at(1, families[0], "web"); again != web {
		t.Errorf("web is at %s, and was at %s", again, web)
	}
	f.servesAt(web)
	if out, errOut, code := f.boxes[1].Svcctl("delete", "svc", families[0].name("web")); code != 0 {
		t.Errorf("svcctl delete: exit %d: %s%s", code, out, errOut)
	}
}
