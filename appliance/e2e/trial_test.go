package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// backTimeout is how long a trial that is over may take to be back in the kernel on a busy machine.
const backTimeout = time.Minute

// management is the operator's own way in: the client EXT by a load balancer IP to L1. spec are
// more lines of its Service.
func (f family) management(spec ...string) string {
	return f.service("management", append([]string{"type: LoadBalancer", "ports: [{name: p80, port: 80}]"}, spec...)...)
}

// managed is a box with the operator's way in, made through the API, and its addresses.
func managed(t *testing.T, other flags) (b *box, v *verbs, at map[family]string) {
	t.Helper()
	b = newBox(t, other)
	b.svcctl.Start()
	v = b.verbs(t)
	v.does(0, "apply", "--wait", "-f", v.file("management.yaml", both(func(f family) []string {
		return []string{f.management(), f.slice("management", "p80: 80", b.L1)}
	})))
	return b, v, v.waysIn()
}

// waysIn are the load balancer IPs of the operator's way in.
func (v *verbs) waysIn() map[family]string {
	v.t.Helper()
	at := map[family]string{}
	for _, f := range families {
		at[f] = v.does(0, "get", "svc", f.name("management"), "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
		if at[f] == "" {
			v.t.Fatalf("%s has no address", f.name("management"))
		}
	}
	return at
}

// tryOpen is nil when the operator comes in by both families.
func (b *box) tryOpen(at map[family]string) error {
	for _, f := range families {
		if err := b.tryReaches(b.EXT, "tcp", f.at(at[f], 80), masq, f.on(80, b.L1)...); err != nil {
			return err
		}
	}
	return nil
}

// comesBack waits until the operator comes in by both families. Its first questions are short: a SYN that was
// dropped is repeated after seconds. The first of them pass untranslated after a reboot or while the way in is cut, and their entries
// would take later questions from the same ports, for two minutes: the appliance forgets them.
func (b *box) comesBack(t *testing.T, at map[family]string) {
	t.Helper()
	within := 300 * time.Millisecond
	eventually(t, backTimeout, func() error {
		within += within / 4
		for _, f := range families {
			if _, err := b.EXT.Ask("tcp", f.at(at[f], 80), netlab.Within(within)); err != nil {
				return err
			}
			if left := b.GW1.Conntrack("-L", "-f", f.pick("ipv4", "ipv6"), "-p", "tcp", "-d", at[f], "--dport", "80", "--state", "SYN_SENT"); strings.Contains(left, "[UNREPLIED]") {
				return fmt.Errorf("questions of before are not forgotten:\n%s", left)
			}
		}
		return b.tryOpen(at)
	})
}

// cut asserts that the operator does not come in by any family.
func (b *box) cut(t *testing.T, when string, at map[family]string) {
	t.Helper()
	var all sync.WaitGroup
	for _, f := range families {
		all.Go(func() {
			// real time: nobody answers
			if reply, err := b.EXT.Ask("tcp", f.at(at[f], 80), netlab.Within(400*time.Millisecond)); err == nil {
				t.Errorf("%s: the way in is not cut: answered by %s", when, reply)
			}
		})
	}
	all.Wait()
}

// cuts are changes that shut the operator out: what is applied, or else the Service is deleted.
func (b *box) cuts() []func(f family) []string {
	return []func(f family) []string{
		nil,
		func(f family) []string {
			return []string{f.management("loadBalancerSourceRanges: [" + f.pick("192.0.2.200/32", "2001:db8::200/128") + "]")}
		},
		func(f family) []string {
			return []string{f.service("management", "type: ClusterIP", "ports: [{name: p80, port: 80}]")}
		},
		func(f family) []string { return []string{f.slice("management", "p80: 80")} },
		func(f family) []string {
			return []string{f.service("management", "type: LoadBalancer", "ports: [{name: p80, port: 8080}]")}
		},
	}
}

// reboot is a kernel that knows nothing: the process is killed, tables and connections are gone, and the boot
// has another name.
func (b *box) reboot(t *testing.T, boot int) {
	t.Helper()
	b.svcctl.Kill()
	for _, f := range families {
		b.GW1.Nft("delete", "table", f.pick("ip", "ip6"), "svcctl")
	}
	b.GW1.Conntrack("-F")
	b.svcctl.Wrapper = inBoot(t, boot)
}

// inBoot is a command that runs another one in a boot of the machine that has a name of its own.
func inBoot(t *testing.T, boot int) []string {
	t.Helper()
	id := filepath.Join(t.TempDir(), "boot_id")
	if err := os.WriteFile(id, fmt.Appendf(nil, "00000000-0000-4000-8000-%012d\n", boot), 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"unshare", "--mount", "sh", "-ec", `mount --bind "$0" /proc/sys/kernel/random/boot_id; exec "$@"`, id}
}

// Test430_what_nobody_confirms_goes_back cuts the operator's way in 20 times, in different ways, with
// nothing else, a crash, or a reboot before the time is over. It is there again every time, at the same address.
func Test430_what_nobody_confirms_goes_back(t *testing.T) {
	b, v, at := managed(t, nil)
	uid := v.does(0, "get", "svc", ipv4.name("management"), "-o", "jsonpath={.metadata.uid}")
	cuts := b.cuts()
	for round := range 20 {
		when := fmt.Sprintf("round %d", round)
		if err := b.tryOpen(at); err != nil {
			t.Fatalf("%s: before: %v", when, err)
		}
		if documents := cuts[round%len(cuts)]; documents == nil {
			v.does(0, "delete", "svc", ipv4.name("management"), ipv6.name("management"), "--confirm", "1h")
		} else {
			v.does(0, "apply", "--force-conflicts", "--wait", "--confirm", "1h", "-f", v.file("cut.yaml", both(documents)))
		}
		v.synced()
		b.cut(t, when, at)
		switch round % 4 {
		case 1:
			b.svcctl.Kill()
			b.svcctl.Start()
			b.cut(t, when+", started again", at)
		case 2:
			b.reboot(t, round)
			b.svcctl.Start()
			b.cut(t, when+", rebooted", at)
		}
		// A second change moves the end. It has an hour: a machine may be busy until it is sent.
		v.says(0, []string{"undone at"}, "apply", "--confirm", "1h", "-f", v.file("new.yaml", service("new", "ports: [{port: 80}]")))
		v.says(0, []string{"undone at"}, "confirm", "--start", "1s")
		switch round % 4 {
		case 1:
			b.svcctl.Kill()
			b.svcctl.Launch()
		case 3:
			b.reboot(t, round)
			b.svcctl.Launch()
		}
		b.comesBack(t, at)
		v.says(1, []string{"nothing waits to be confirmed"}, "confirm")
		v.says(1, []string{"not found"}, "get", "svc", "new")
	}
	if got := v.does(0, "get", "svc", ipv4.name("management"), "-o", "jsonpath={.metadata.uid}"); got != uid {
		t.Errorf("the uid is %s, and was %s", got, uid)
	}
}

// Test431_files_that_nobody_confirms_are_held cuts the way in by files: one is changed, one removed, one comes.
// After the time, in a namespace that knows nothing, what they said before is in force.
func Test431_files_that_nobody_confirms_are_held(t *testing.T) {
	b := newBox(t, nil)
	b.write("management.yaml", func(f family) []string { return []string{f.management()} })
	b.write("slices.yaml", func(f family) []string { return []string{f.slice("management", "p80: 80", b.L1)} })
	b.svcctl.Start()
	v := b.verbs(t)
	at := v.waysIn()
	v.says(0, []string{"undone at"}, "confirm", "--start", "1h")
	b.change(func() {
		b.svcctl.Manifests.Remove("slices.yaml")
		b.write("management.yaml", func(f family) []string {
			return []string{f.service("management", "type: ClusterIP", "ports: [{name: p80, port: 80}]")}
		})
		b.write("new.yaml", func(f family) []string { return []string{f.service("new", "ports: [{port: 80}]")} })
	})
	b.cut(t, "changed", at)
	eventually(t, syncTimeout, func() error { // what a file said before is kept when its copy is replaced, a moment later
		// The exit code is 0 while the Services without endpoints are within their grace, and 1 after it.
		if out, errOut, _ := v.svcctl.Svcctl("status"); !strings.Contains(out, "On trial") || !strings.Contains(out, "3 files") {
			return fmt.Errorf("no trial of 3 files in the status:\n%s%s", out, errOut)
		}
		return nil
	})
	v.says(0, []string{"undone at"}, "confirm", "--start", "1s")
	b.svcctl.Kill()
	// The box is another one, with the same disk.
	next := &box{Standard: netlab.NewStandard(t), t: t, flags: b.flags}
	next.svcctl = next.GW1.Appliance(binary, b.flags.args()...)
	next.svcctl.Data, next.svcctl.Manifests, next.svcctl.Socket = b.svcctl.Data, b.svcctl.Manifests, b.svcctl.Socket
	next.svcctl.Wrapper = inBoot(t, 431)
	next.svcctl.Start()
	held := func(b *box, when string) {
		t.Helper()
		b.comesBack(t, at)
		b.hasReason(t, backTimeout, "NotConfirmed", "management.yaml", "slices.yaml", "new.yaml")
		v.says(1, []string{"not found"}, "get", "svc", ipv4.name("new"))
		v.says(1, []string{"Not confirmed", "3 files"}, "status")
	}
	v.box = next
	held(next, "back")
	next.svcctl.Kill()
	next.svcctl.Start()
	held(next, "started again")
	v.says(1, []string{"not confirmed", "svcctl confirm --start"}, "apply", "--confirm", "1m", "-f", v.file("other.yaml", service("other", "ports: [{port: 80}]")))
	// What changes once more counts, the others stay held.
	next.rewrite("new.yaml", func(f family) []string { return []string{f.service("new", "ports: [{port: 81}]")} })
	v.does(0, "get", "svc", ipv4.name("new"), ipv6.name("new"))
	if err := next.tryOpen(at); err != nil {
		t.Error(err)
	}
	next.hasReason(t, backTimeout, "NotConfirmed", "management.yaml", "slices.yaml")
	// Another trial tries them again, and this time they stay.
	v.does(0, "confirm", "--start", "1h")
	v.synced()
	next.cut(t, "tried again", at)
	v.says(0, []string{"Confirmed"}, "confirm")
	next.svcctl.Kill()
	next.svcctl.Start()
	next.cut(t, "confirmed", at)
	next.hasReason(t, backTimeout, "NotConfirmed")
}

// Test432_what_is_confirmed_stays: neither the time nor a restart takes it back, and an address that it gave up
// is for others then, not before.
func Test432_what_is_confirmed_stays(t *testing.T) {
	b, v, at := managed(t, flags{"load-balancer-pool": {"198.51.100.1-198.51.100.1", "2001:db8:198::1-2001:db8:198::1"}})
	v.does(0, "apply", "-f", v.file("waits.yaml", both(func(f family) []string {
		return []string{f.service("waits", "type: LoadBalancer", "ports: [{name: p80, port: 80}]"), f.slice("waits", "p80: 80", b.R1)}
	})))
	v.does(0, "delete", "svc", ipv4.name("management"), ipv6.name("management"), "--confirm", "1h")
	v.synced()
	for _, f := range families {
		// real time: nobody answers
		if reply, err := b.EXT.Ask("tcp", f.at(at[f], 80), netlab.Within(500*time.Millisecond)); err == nil {
			t.Errorf("another Service has the address on trial: %s", reply)
		}
	}
	v.does(0, "apply", "--confirm", "1m", "-f", v.file("other.yaml", service("other", "ports: [{port: 80}]")))
	v.says(0, []string{"Confirmed: 3 objects"}, "confirm")
	b.svcctl.Kill()
	b.svcctl.Start()
	v.says(1, []string{"nothing waits"}, "confirm", "--back")
	for _, f := range families {
		eventually(t, backTimeout, func() error { return b.tryReaches(b.EXT, "tcp", f.at(at[f], 80), masq, f.on(80, b.R1)...) })
	}
	v.says(1, []string{"not found"}, "get", "svc", ipv4.name("management"))
	v.does(0, "get", "svc", "other")
	// Taken back by hand.
	v.does(0, "delete", "svc", ipv4.name("waits"), ipv6.name("waits"), "--confirm", "1h")
	v.says(0, []string{"taken back", "Service default/" + ipv4.name("waits") + " created"}, "confirm", "--back")
	for _, f := range families {
		eventually(t, backTimeout, func() error { return b.tryReaches(b.EXT, "tcp", f.at(at[f], 80), masq, f.on(80, b.R1)...) })
	}
}

// Test433_rollback takes back what clients did since a revision, and names what a file did.
func Test433_rollback(t *testing.T) {
	b, v, at := managed(t, nil)
	b.rewrite("filed.yaml", func(f family) []string { return []string{f.service("filed", "ports: [{port: 80}]")} })
	revision := fmt.Sprint(b.status().Revision.Accepted)
	v.does(0, "delete", "svc", ipv4.name("management"), ipv6.name("management"))
	v.does(0, "apply", "-f", v.file("new.yaml", service("new", "ports: [{port: 80}]")))
	b.rewrite("filed.yaml", func(f family) []string { return []string{f.service("filed", "ports: [{port: 81}]")} })
	b.cut(t, "deleted", at)
	says := []string{"Service default/" + ipv4.name("management") + " created", "Service default/new deleted", " left", "it belongs to", "filed.yaml"}
	v.says(0, append(says, "dry run"), "rollback", revision, "--dry-run")
	b.cut(t, "after a dry run", at)
	// Somebody else changes something after the look.
	last := v.does(0, "rollback", "--dry-run", "-o", "json")
	v.does(0, "apply", "-f", v.file("later.yaml", service("later", "ports: [{port: 80}]")))
	var seen struct{ Last uint64 }
	if err := json.Unmarshal([]byte(last), &seen); err != nil || seen.Last == 0 {
		t.Fatalf("%v: %s", err, last)
	}
	for _, to := range []string{revision, ""} {
		v.says(1, []string{"nothing was rolled back", fmt.Sprint(seen.Last)}, "rollback", append([]string{"--yes", "--last", fmt.Sprint(seen.Last)}, strings.Fields(to)...)...)
	}
	v.does(0, "get", "svc", "later", "new")
	v.says(0, []string{"Service default/later deleted"}, "rollback", "--yes")
	v.says(2, []string{"this removes 1 Service", "repeat it with --yes"}, "rollback", revision)
	v.says(0, says, "rollback", "--yes", revision)
	b.comesBack(t, at)
	v.says(0, []string{"81"}, "get", "svc", ipv4.name("filed"), "-o", "jsonpath={.spec.ports[0].port}")
	// The last change was the rollback, which goes back, too.
	v.does(0, "rollback", "--yes", "--confirm", "1h")
	v.synced()
	b.cut(t, "rolled back", at)
	v.does(0, "confirm", "--back")
	b.comesBack(t, at)
	v.says(1, []string{"journal"}, "rollback", "1")
	v.says(1, []string{"is not there yet"}, "rollback", "9007199254740991")
}

// Test435_a_pending_trial_is_shown in the status, as people and programs read it.
func Test435_a_pending_trial_is_shown(t *testing.T) {
	_, v, _ := managed(t, nil)
	v.does(0, "delete", "svc", ipv4.name("management"), "--confirm", "10m")
	out := v.does(0, "status", "-o", "json")
	var s struct {
		Trial struct {
			ID, User string
			Ends     time.Time
			Objects  []string
		}
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatal(err)
	}
	if s.Trial.ID == "" || s.Trial.User != "root" || len(s.Trial.Objects) != 1 || s.Trial.Objects[0] != ipv4.object("Service", "management") ||
		s.Trial.Ends.Before(time.Now()) {
		t.Errorf("%+v", s.Trial)
	}
	v.says(0, []string{"On trial", "1 object: back in"}, "status")
	v.does(0, "confirm")
	v.says(2, []string{"want a duration"}, "apply", "--confirm", "soon", "-f", v.file("x.yaml", service("x", "ports: [{port: 80}]")))
}
