package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestF07_massRemovalIsHeldAndReleased(t *testing.T) {
	b := newBox(t, flags{"allow-mass-removal": {"false"}})
	b.write("web.yaml", b.webDocuments(b.L1))
	for i := range 30 {
		b.svcctl.Manifests.Write(fmt.Sprintf("%02d.yaml", i), strings.Join(b.many(ipv4, i, 1), "---\n"))
	}
	b.svcctl.Start()
	var files []string
	for i := range 25 {
		files = append(files, filepath.Join(b.svcctl.Manifests.Path, fmt.Sprintf("%02d.yaml", i)))
	}
	if _, errOut, err := b.GW1.Run("rm", files...); err != nil { // one after the other
		t.Fatal(err, errOut)
	}
	b.hasReason(t, syncTimeout, "MassRemovalHeld", "svcctl confirm --removals")
	b.write("web.yaml", b.webDocuments(b.R1)) // goes on
	if _, errOut, code := b.svcctl.Svcctl("wait", "--timeout", syncTimeout.String()); code != 1 || !strings.Contains(errOut, "the removal of ") {
		t.Errorf("svcctl wait: exit code %d: %s", code, errOut)
	}
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.R1)...)
	}
	held, at := 0, b.clusterIPs(t, ipv4)
	for i := range 25 {
		if ip := at[fmt.Sprint(1000+i)]; ip != "" {
			if _, err := b.IN.Ask("tcp", ipv4.at(ip, uint16(1000+i))); err == nil {
				held++
			}
		}
	}
	if held < 15 { // the first few may be gone before it was a mass
		t.Errorf("%d of 25 Services are kept, want at least 15", held)
	}
	if _, stderr, code := b.svcctl.Svcctl("status"); code != 1 || !strings.Contains(stderr, "error") {
		t.Errorf("svcctl status: exit code %d: %s", code, stderr)
	}
	b.svcctl.Kill()
	b.svcctl.Start()
	b.hasReason(t, syncTimeout, "MassRemovalHeld", "svcctl confirm --removals")
	out, stderr, code := b.svcctl.Svcctl("confirm", "--removals", "--yes")
	if code != 0 || !strings.Contains(out, "released") {
		t.Fatalf("svcctl confirm --removals: exit code %d: %s%s", code, out, stderr)
	}
	b.hasReason(t, syncTimeout, "MassRemovalHeld")
	at = b.clusterIPs(t, ipv4)
	for i := range 25 {
		if ip := at[fmt.Sprint(1000+i)]; ip != "" {
			t.Errorf("after the release Service %d still is at %s", i, ip)
		}
	}
	b.serves(t, "in the end")
}

func TestF07_emptiedDirectoryIsHeld(t *testing.T) {
	b := web(t, flags{"allow-mass-removal": {"false"}}, l1)
	b.svcctl.Manifests.Remove("web.yaml")
	b.hasReason(t, syncTimeout, "MassRemovalHeld", "no manifests any more")
	b.serves(t, "with an emptied directory")
	b.change(func() { b.svcctl.Manifests.Write("none.yaml", "# on purpose\n") })
	for _, f := range families {
		if err := b.notListed(t, f, f.at(f.vip(41), 0).Addr()); err != nil {
			t.Errorf("after the emptiness was confirmed: %v", err)
		}
	}
}

// Files that go one after the other without a pause, as previews of a CI do, are removals that come, too.
func TestF07_removalsWithoutAPause(t *testing.T) {
	b := newBox(t, flags{"allow-mass-removal": {"false"}})
	b.write("web.yaml", b.webDocuments(b.L1))
	name := func(i int) string { return fmt.Sprintf("%03d.yaml", i) }
	for i := range 40 {
		b.svcctl.Manifests.Write(name(i), strings.Join(b.many(ipv4, i, 1), "---\n"))
	}
	b.svcctl.Start()
	for i := range 300 { // bounded
		b.svcctl.Manifests.Remove(name(i))
		b.svcctl.Manifests.Write(name(40+i), strings.Join(b.many(ipv4, 40+i, 1), "---\n"))
		// real time: the pace of the changes, faster than the half second of quiet that removals wait for
		time.Sleep(100 * time.Millisecond)
		if i > 20 && b.clusterIPOf(t, ipv4, 1020) == "" {
			b.serves(t, "meanwhile")
			return
		}
	}
	t.Error("while other files went, a Service that lost its file long ago is still served")
}

// A data directory that is not mounted, or was lost, takes nothing out of the kernel.
func TestF18_lostDataDirectory(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, data string){
		"state.db is missing": func(t *testing.T, data string) {
			if err := os.Remove(filepath.Join(data, "state.db")); err != nil {
				t.Fatal(err)
			}
		},
		"the directory is away": func(t *testing.T, data string) {
			if err := os.Rename(data, data+".away"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := web(t, flags{"allow-mass-removal": {"false"}}, l1)
			file := filepath.Join(t.TempDir(), "client.yaml")
			client := strings.NewReplacer("name: web", "name: client", "172.30.0.41", "172.30.0.43", "fd00:172:30::41", "fd00:172:30::43")
			if err := os.WriteFile(file, []byte(client.Replace(both(b.webDocuments(b.R1)))), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, errOut, code := b.svcctl.Svcctl("apply", "-f", file, "--wait"); code != 0 {
				t.Fatalf("svcctl apply: exit code %d: %s%s", code, out, errOut)
			}
			client43 := func(when string) {
				t.Helper()
				for _, f := range families {
					b.reaches(t, b.IN, "tcp", f.at(f.vip(43), 80), plain, f.on(80, b.R1)...)
				}
				b.serves(t, when)
			}
			client43("at first")
			b.svcctl.Stop()
			lose(t, b.svcctl.Data)
			if out, _, code := b.svcctl.Svcctl("doctor", "--data-dir", b.svcctl.Data); code != 1 || !strings.Contains(out, "has no state.db, but the kernel serves") {
				t.Errorf("svcctl doctor: exit code %d: %s", code, out)
			}
			for range 2 {
				b.svcctl.Start()
				b.hasReason(t, syncTimeout, "UnknownServicesHeld", "svcctl confirm --removals", b.svcctl.Data)
				client43("without the data")
				b.rewrite("web.yaml", b.webDocuments(b.L2)) // goes on
				b.rewrite("web.yaml", b.webDocuments(b.L1))
				b.svcctl.Kill()
			}
			b.svcctl.Start()
			if out, _, code := b.svcctl.Svcctl("doctor", "--data-dir", b.svcctl.Data); code != 1 || !strings.Contains(out, "no object declares") {
				t.Errorf("svcctl doctor: exit code %d: %s", code, out)
			}
			if out, errOut, code := b.svcctl.Svcctl("confirm", "--removals", "--yes"); code != 0 || !strings.Contains(out, "2 addresses and ports released") {
				t.Errorf("svcctl confirm --removals: exit code %d: %s%s", code, out, errOut)
			}
			b.hasReason(t, syncTimeout, "UnknownServicesHeld")
			for _, f := range families {
				if _, err := b.IN.Ask("tcp", f.at(f.vip(43), 80)); err == nil {
					t.Errorf("%s: it still answers after the release", f)
				}
			}
			b.serves(t, "in the end")

			// After `svcctl down` a new data directory is a first start.
			b.svcctl.Stop()
			if _, errOut, code := b.svcctl.Svcctl("down", "--yes"); code != 0 {
				t.Fatalf("svcctl down: exit code %d: %s", code, errOut)
			}
			if err := os.RemoveAll(b.svcctl.Data); err != nil {
				t.Fatal(err)
			}
			b.svcctl.Start()
			b.serves(t, "after a first start")
			b.hasReason(t, syncTimeout, "UnknownServicesHeld")
		})
	}
}

// A directory that is not where --manifests says takes its Services nowhere.
func TestF07_renamedDirectoryIsHeld(t *testing.T) {
	b := web(t, flags{"allow-mass-removal": {"false"}}, l1)
	b.svcctl.Stop()
	path := b.svcctl.Manifests.Path
	b.svcctl.Manifests.Path = path + "X" // a typing error
	defer func() { b.svcctl.Manifests.Path = path }()
	b.svcctl.Start()
	b.hasReason(t, syncTimeout, "MassRemovalHeld", path+" is in no directory that is watched now", path+"X is unavailable", "--manifests")
	b.serves(t, "with another directory")
	b.svcctl.Stop()
	b.svcctl.Manifests.Path = path
	b.svcctl.Start()
	b.hasReason(t, syncTimeout, "MassRemovalHeld")
	b.serves(t, "in the end")
}
