package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// disk is a small file system for a data directory, in a mount namespace of its own.
type disk struct {
	t      *testing.T
	dir    string
	enter  []string // the command that enters the namespace
	filler string
}

// onSmallDisk gives a box a data directory of 16 MiB.
func (b *box) onSmallDisk(t *testing.T) *disk {
	t.Helper()
	d := &disk{t: t, dir: b.svcctl.Data, filler: filepath.Join(b.svcctl.Data, "filler")}
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	holder := exec.Command("unshare", "--mount", "sh", "-ec", `mount -t tmpfs -o size=16m,mode=0700 tmpfs "$0"; echo; exec sleep infinity`, d.dir)
	mounted, err := holder.StdoutPipe()
	if err == nil {
		err = holder.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	if _, err := mounted.Read(make([]byte, 1)); err != nil {
		t.Fatalf("mount a small file system: %v", err)
	}
	d.enter = []string{"nsenter", "--target", strconv.Itoa(holder.Process.Pid), "--mount"}
	b.svcctl.Wrapper = d.enter
	return d
}

func (d *disk) run(args ...string) error {
	command := slices.Concat(d.enter, args)
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (d *disk) must(args ...string) {
	d.t.Helper()
	if err := d.run(args...); err != nil {
		d.t.Fatal(err)
	}
}

// fill writes until nothing more fits.
func (d *disk) fill() {
	d.t.Helper()
	if err := d.run("dd", "if=/dev/zero", "of="+d.filler, "bs=4k"); err == nil || !strings.Contains(err.Error(), "No space left") {
		d.t.Fatalf("fill the disk: %v", err)
	}
}

// permutations returns all orders of some words.
func permutations(words []string) (all [][]string) {
	if len(words) < 2 {
		return [][]string{words}
	}
	for i, first := range words {
		for _, rest := range permutations(slices.Concat(words[:i], words[i+1:])) {
			all = append(all, append([]string{first}, rest...))
		}
	}
	return all
}

// A data directory that is full, or read-only, for a while: what is stored is served, in every order of a change, a restart or
// reboot, a flush and space that is freed, and what came meanwhile is in force once it can be stored.
func Test670_full_disk(t *testing.T) {
	b := newBox(t, nil)
	d := b.onSmallDisk(t)
	// Every change needs pages that a full disk does not have.
	large := strings.Repeat("x", 100<<10)
	docs := func(vip int, name string, host *netlab.Host) func(f family) []string {
		return func(f family) []string {
			return []string{
				annotated(f.service(name, "clusterIP: "+f.vip(vip), "ports: [{name: p80, port: 80}]"), "example.com/large", large+host.Name),
				f.slice(name, "p80: 80", host),
			}
		}
	}
	answers := func(when string, vip int, want string) {
		t.Helper()
		for _, f := range families {
			if want == "" {
				if reply, err := b.IN.Ask("tcp", f.at(f.vip(vip), 80)); err == nil {
					t.Errorf("%s: %s: answered by %s", when, f.vip(vip), reply.Server)
				}
				continue
			}
			reply, err := b.IN.Ask("tcp", f.at(f.vip(vip), 80), patiently)
			if err != nil || reply.Server != want || reply.Client.Addr() != f.of(b.IN) {
				t.Errorf("%s: %s: answered by %q, which sees %s, %v; want %s", when, f.vip(vip), reply.Server, reply.Client, err, want)
			}
		}
	}
	stored := func(when string) {
		t.Helper()
		for vip := 51; vip < 59; vip++ {
			answers(when, vip, "L1")
		}
	}
	reports := func(when, reason string) {
		t.Helper()
		eventually(t, syncTimeout, func() error {
			s := b.status()
			errs := slices.DeleteFunc(s.Problems, func(p problem) bool { return p.Severity == "warning" }) // a warning is about the copies of files
			if !s.Ready || s.Synced || len(errs) != 1 || errs[0].Reason != reason || !strings.HasPrefix(s.Reason, "1 file is not stored yet (disk f") {
				return fmt.Errorf("%s: ready %t, synced %t: %s\n%s", when, s.Ready, s.Synced, s.Reason, list(s.Problems))
			}
			return nil
		})
	}
	healed := func(when string) {
		t.Helper()
		b.GW1.Nft("flush", "ruleset")
		eventually(t, syncTimeout, func() error {
			for _, f := range families {
				if _, err := b.IN.Ask("tcp", f.at(f.vip(51), 80)); err != nil {
					return fmt.Errorf("%s: %w", when, err)
				}
			}
			return nil
		})
		stored(when)
	}
	synced := func(when string) {
		t.Helper()
		// What a full disk refused for long is tried again every 30 s.
		if _, errOut, code := b.svcctl.Svcctl("wait", "--timeout", (3 * syncTimeout).String()); code != 0 {
			t.Fatalf("%s: svcctl wait: exit code %d: %s", when, code, errOut)
		}
	}
	for i := range 8 {
		b.write(fmt.Sprintf("stored%d.yaml", i), docs(51+i, fmt.Sprint("stored", i), b.L1))
	}
	base := func() {
		b.write("web.yaml", docs(41, "web", b.L1))
		_ = os.Remove(filepath.Join(b.svcctl.Manifests.Path, "new.yaml")) // where there is one
	}
	// begin starts on an empty disk: a file that has grown before has pages for another change.
	begin := func() {
		if b.svcctl.Running() {
			b.svcctl.Kill()
		}
		base()
		d.must("umount", d.dir)
		d.must("mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "tmpfs", d.dir)
		b.svcctl.Start()
		synced("at the beginning")
	}
	changes := []struct {
		name          string
		do            func()
		vip           int
		before, after string
	}{
		{"changed", func() { b.write("web.yaml", docs(41, "web", b.R1)) }, 41, "L1", "R1"},
		{"new", func() { b.write("new.yaml", docs(42, "new", b.R1)) }, 42, "", "R1"},
		{"removed", func() { b.svcctl.Manifests.Remove("web.yaml") }, 41, "L1", ""},
	}
	for i, order := range slices.Concat(permutations([]string{"change", "restart", "flush", "space"}), permutations([]string{"change while it is down", "flush", "space"})) {
		c, reboot := changes[i%len(changes)], i%2 == 0 // the tables stay, or go as with a reboot
		begin()
		d.fill()
		changed, full := false, true
		for n, event := range order {
			when := fmt.Sprintf("%s file: %s", c.name, strings.Join(order[:n+1], ", "))
			switch event {
			case "change":
				c.do()
				changed = true
			case "restart", "change while it is down":
				b.svcctl.Kill()
				if event != "restart" {
					c.do()
					changed = true
				}
				if reboot {
					when += " with a reboot"
					b.GW1.Nft("flush", "ruleset")
				}
				b.svcctl.Start()
			case "flush":
				healed(when)
			case "space":
				d.must("rm", d.filler)
				full = false
			}
			want := c.before
			if changed && !full {
				synced(when)
				want = c.after
			}
			stored(when)
			answers(when, c.vip, want)
			if changed && full {
				reports(when, "DiskFull")
			} else {
				for _, p := range b.status().Problems {
					if p.Severity != "warning" {
						t.Errorf("%s: %s", when, p)
					}
				}
			}
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	for _, c := range changes {
		round := c.name + " file on a read-only disk"
		begin()
		b.svcctl.Kill()
		d.must("mount", "-o", "remount,ro", d.dir)
		c.do()
		b.GW1.Nft("flush", "ruleset")
		b.svcctl.Start()
		stored(round)
		answers(round, c.vip, c.before)
		reports(round, "DiskFailed")
		healed(round)
		d.must("mount", "-o", "remount,rw", d.dir)
		b.svcctl.Kill()
		b.svcctl.Start()
		synced(round + ": writable again")
		answers(round+": writable again", c.vip, c.after)
	}
}
