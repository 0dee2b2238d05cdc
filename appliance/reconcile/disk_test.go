package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store/engine"
)

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

// TestDiskThatFails: whatever cannot be stored, and in whatever order a file changes, the process starts again, the
// tables are flushed and the disk is well again: what is stored is in force, and looked after.
func TestDiskThatFails(t *testing.T) {
	const services = 3
	name := func(i int) string { return fmt.Sprintf("s%d.yaml", i) }
	one := func(i int, endpoint string) string {
		return web(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.0.%d", 10+i), endpoint)
	}
	element := func(i int, endpoint string) string {
		return fmt.Sprintf("10.96.0.%d . tcp . 80 . 0 : %s . 8080", 10+i, endpoint)
	}
	changes := map[string]struct {
		do            func(r *rig)
		before, after []string // elements while it is not stored, and once it is
	}{
		"changed": {func(r *rig) { r.write(name(0), one(0, "10.2.0.1")) }, []string{element(0, "10.1.0.1")}, []string{element(0, "10.2.0.1")}},
		"new":     {func(r *rig) { r.write(name(services), one(services, "10.2.0.1")) }, []string{"!10.96.0.13"}, []string{element(services, "10.2.0.1")}},
		"removed": {func(r *rig) { r.write(name(0), "") }, []string{element(0, "10.1.0.1")}, []string{"!10.96.0.10"}},
	}
	faults := map[string]faulty.Fault{reasonDiskFull: faulty.Full, reasonDiskFailed: faulty.Fail, "": faulty.Refuse}
	for change, of := range changes {
		for reason, fault := range faults {
			for _, restart := range []string{"restart", "reboot"} {
				for _, order := range permutations([]string{change, restart, "flush", "well"}) {
					t.Run(fmt.Sprint(reason, " ", strings.Join(order, " ")), func(t *testing.T) {
						r := newRig(t)
						r.host()
						var stored []string
						for i := range services {
							r.write(name(i), one(i, "10.1.0.1"))
							if i > 0 {
								stored = append(stored, element(i, "10.1.0.1"))
							}
						}
						r.step()
						r.fault = func(engine.Transaction) faulty.Fault { return fault }
						r.engine.Inject(r.fault)
						changed, well := false, false
						for _, event := range order {
							switch event {
							case change:
								of.do(r)
								changed = true
							case "restart", "reboot":
								if event == "reboot" {
									r.kernel.Tamper(func(rs nft.Ruleset) { clear(rs) })
								}
								r.start()
								r.host()
								r.write("", "")
							case "flush":
								r.kernel.Tamper(func(rs nft.Ruleset) { clear(rs) })
								r.onForeignChange(kernel.Change{Ours: true, PID: 4711, Comm: "nft"})
							case "well":
								r.fault, well = nil, true
								r.engine.Inject(nil)
								r.clock = r.clock.Add(time.Minute)
							}
							r.step()
							wanted := slices.Concat(stored, of.before)
							if changed && well {
								wanted = slices.Concat(stored, of.after)
							}
							r.want(wanted...)
							s := r.board.Status()
							if !s.Ready {
								t.Errorf("after %s it is not ready: %s", event, s.Reason)
							}
							if !changed || well {
								if len(s.Problems) > 0 || !s.Synced {
									t.Errorf("after %s: synced %t (%s), problems %v", event, s.Synced, s.Reason, s.Problems)
								}
							} else if s.Synced || reason != "" && (!r.hasProblem(reason) || s.Errors() != 1 || !strings.HasPrefix(s.Reason, "1 file is not stored yet (disk f")) {
								t.Errorf("after %s, of a file that cannot be stored: synced %t, %q, problems %v", event, s.Synced, s.Reason, s.Problems)
							}
							if t.Failed() {
								t.FailNow()
							}
						}
					})
				}
			}
		}
	}
}
