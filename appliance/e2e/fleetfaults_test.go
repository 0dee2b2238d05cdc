package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

// Test576_a_box_is_cut_off_one_way: what the box says does not reach etcd, or what etcd says does not reach the box. It says that it
// is cut off, forwards, heals its tables, and has what happened meanwhile once the way is free again.
func Test576_a_box_is_cut_off_one_way(t *testing.T) {
	f := newFleet(t, 2)
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("web")
	end := f.keepAsking("web")
	defer end()
	for way, rule := range map[string]string{
		"out": "chain c { type filter hook output priority -300; oifname ctl0 tcp dport 2379 drop; }",
		"in":  "chain c { type filter hook input priority -300; iifname ctl0 tcp sport 2379 drop; }",
	} {
		f.hosts[1].LoadNft("table ip cut {\n" + rule + "\n}\n")
		f.state(1, "CutOff")
		if out, code := f.apply(0, f.web(way)...); code != 0 {
			t.Fatal(out)
		}
		if out, code := f.apply(1, f.web("never")...); code == 0 || !strings.Contains(out, "cut off from etcd") {
			t.Errorf("%s: a write on the box that is cut off: exit %d: %s", way, code, out)
		}
		// What etcd sends arrives where only the way there is cut.
		if out, _, _ := f.boxes[1].Svcctl("get", "svc"); way == "in" && strings.Contains(out, families[0].name(way)) {
			t.Errorf("the box that is cut off has heard of it: %s", out)
		}
		f.hosts[1].LoadNft("delete table ip cut\n")
		f.state(1, "Following")
		f.serves(way)
	}
	for n := range f.boxes {
		if out, _, _ := f.boxes[n].Svcctl("get", "svc"); strings.Contains(out, families[0].name("never")) {
			t.Errorf("box %d has what was refused: %s", n+1, out)
		}
	}
}

// Test577_the_disk_of_etcd_is_slow: with each fdatasync of etcd late, writes are late and made; with all of them stuck a client is told
// that the outcome is unknown, and boxes forward and heal all the same. What was sent meanwhile is there once or not at all.
func Test577_the_disk_of_etcd_is_slow(t *testing.T) {
	f := newFleet(t, 2)
	f.stop()
	f.fsync = true
	f.startEtcd()
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("web")
	var vips []netip.AddrPort
	for _, fam := range families {
		vips = append(vips, f.at(0, fam, "web"))
	}
	f.slowDisk("300ms", func() {
		if out, code := f.apply(0, f.web("late")...); code != 0 {
			t.Errorf("a write with a slow disk: exit %d: %s", code, out)
		}
		f.serves("late")
	})
	f.slowDisk("300s", func() {
		if out, code := f.apply(0, f.web("stuck")...); code == 0 || !strings.Contains(out, "no answer came in time") && !strings.Contains(out, "etcd") {
			t.Errorf("a write while the disk is stuck: exit %d: %s", code, out)
		}
		for n, h := range f.hosts {
			f.state(n, "CutOff")
			h.LoadNft("flush ruleset\n")
		}
		for _, vip := range vips { // the loop does not wait for etcd
			f.servesAt(vip)
		}
	})
	for n := range f.boxes {
		f.state(n, "Following")
	}
	eventually(t, time.Minute, func() error { // it may have been made, or not
		if out, code := f.apply(1, f.web("stuck")...); code != 0 {
			return fmt.Errorf("the same again: exit %d: %s", code, out)
		}
		return nil
	})
	f.serves("stuck")
	for _, fam := range families {
		a, b := f.at(0, fam, "stuck"), f.at(1, fam, "stuck")
		if a != b {
			t.Errorf("box 1 has %s and box 2 %s", a, b)
		}
	}
}

// slowDisk delays each fdatasync of etcd while do runs.
func (f *fleet) slowDisk(by string, do func()) {
	f.t.Helper()
	text, err := os.ReadFile(f.pid)
	if err != nil {
		f.t.Fatal(err)
	}
	pid := strings.TrimSpace(string(text))
	stop := f.etcd.Background("strace", "-f", "-p", pid, "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:delay_enter="+by)
	eventually(f.t, time.Minute, func() error {
		status, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			return err
		}
		if strings.Contains(string(status), "TracerPid:\t0\n") {
			return fmt.Errorf("nobody traces etcd yet")
		}
		return nil
	})
	defer stop()
	do()
}
