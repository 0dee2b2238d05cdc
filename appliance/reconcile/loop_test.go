package reconcile

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/watch"
)

func (r *rig) host() {
	r.observed.facts, r.observed.moved = &node.Facts{
		Interfaces: []node.Interface{{Index: 2, Name: "ext0"}},
		Addresses:  []node.Address{{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Interface: "ext0", Index: 2}},
	}, true
}

// write puts a file into the snapshot; without text it removes it.
func (r *rig) write(path, text string) {
	if text == "" {
		delete(r.files, path)
	} else {
		r.files[path] = manifest.Decode(path, []byte(text), manifest.DefaultLimits())
	}
	files := manifest.FilesOf(r.files)
	r.observed.snapshot, r.observed.unsynced = &watch.Snapshot{
		// Files without a directory are in one that is never empty.
		Files: files, Sources: []watch.Source{{Dir: "manifests", State: watch.StateWatching, Files: len(slices.Collect(files.All()))}, {Dir: ".", State: watch.StateWatching, Files: 1}},
	}, true
}

func (r *rig) text() string {
	rs, _ := r.kernel.View()
	var b strings.Builder
	if err := rs.WriteText(&b); err != nil {
		r.t.Fatal(err)
	}
	return b.String()
}

func (r *rig) want(lines ...string) {
	r.t.Helper()
	text := r.text()
	for _, line := range lines {
		if line, not := strings.CutPrefix(line, "!"); strings.Contains(text, line) == not {
			r.t.Errorf("the ruleset and %q: found %v, want %v\n%s\n%s", line, !not, not, text, r.logged.String())
		}
	}
}

func web(name, ip string, endpoints ...string) string {
	s := fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {clusterIP: %[2]s, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
`, name, ip)
	for _, e := range endpoints {
		s += "- addresses: [" + e + "]\n"
	}
	return s
}

func TestNothingIsProgrammedBeforeEverySourceWasRead(t *testing.T) {
	r := newRig(t)
	r.step()
	r.host()
	r.step()
	if r.kernel.Commits() != 0 || r.board.Ready() == nil || r.wait != 0 {
		t.Errorf("without manifests: %d commits, ready: %v, retry in %v", r.kernel.Commits(), r.board.Ready(), r.wait)
	}
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	if err := r.board.Ready(); err != nil || r.ready != 1 {
		t.Errorf("with manifests: ready %v, announced %d times\n%s", err, r.ready, r.logged.String())
	}
	r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.1 . 8080")
	if s := r.board.Status(); !s.Synced || s.Counts.Services != 1 || s.Counts.Endpoints != 1 {
		t.Errorf("status %+v", s)
	}
}

func TestChangesAreCommittedAndNothingElse(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1", "10.1.0.2"))
	r.write("b.yaml", web("dns", "10.96.0.11", "10.1.0.3"))
	r.step()
	commits := r.kernel.Commits()
	r.write("a.yaml", "# a comment\n"+web("web", "10.96.0.10", "10.1.0.1", "10.1.0.2"))
	r.step()
	if n := r.kernel.Commits(); n != commits {
		t.Errorf("a comment made %d commits", n-commits)
	}
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1", "10.1.0.9"))
	r.step()
	if n := r.kernel.Commits(); n != commits+1 || r.opts.Publisher.Status.LastTransaction.Elements != 4 {
		t.Errorf("one endpoint replaced: %d commits, %d elements, want 1 and 4", n-commits, r.opts.Publisher.Status.LastTransaction.Elements)
	}
	r.write("b.yaml", "")
	r.step()
	r.want("10.96.0.10 . tcp . 80 . 1 : 10.1.0.9 . 8080", "!10.96.0.11")

	commits = r.kernel.Commits()
	r.start()
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1", "10.1.0.9"))
	r.step()
	if n := r.kernel.Commits(); n != commits || r.ready != 2 {
		t.Errorf("a restart over unchanged input made %d commits, ready %d times", n-commits, r.ready)
	}
}

// TestOneChangeAmongTenThousand holds the promise that a change costs what it changes.
func TestOneChangeAmongTenThousand(t *testing.T) {
	r := newRig(t)
	r.host()
	const services, perFile = 10_000, 100
	file := func(n, last int) string {
		var b strings.Builder
		for i := n * perFile; i < (n+1)*perFile; i++ {
			name := fmt.Sprintf("s%d", i)
			fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {ports: [{port: 80}]}\n---\n", name)
			fmt.Fprintf(&b, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}\naddressType: IPv4\nports: [{port: 80}]\nendpoints:\n", name)
			for e := range 5 {
				if k := i*5 + e; k == last {
					b.WriteString("- addresses: [10.9.9.9]\n")
				} else {
					fmt.Fprintf(&b, "- addresses: [10.%d.%d.%d]\n", 128+k>>16, k>>8&255, k&255)
				}
			}
			b.WriteString("---\n")
		}
		return b.String()
	}
	for n := range services / perFile {
		r.write(fmt.Sprintf("%d.yaml", n), file(n, -1))
	}
	r.step()
	commits := r.kernel.Commits()
	r.write("42.yaml", file(42, 42*perFile*5+3))
	r.step()
	if tx := r.opts.Publisher.Status.LastTransaction; r.kernel.Commits() != commits+1 || tx.Elements == 0 || tx.Elements > 8 {
		t.Errorf("one endpoint replaced among %d Services: %d transactions, %d elements, want 1 and at most 8", services, r.kernel.Commits()-commits, tx.Elements)
	}
}

func TestAddressesOfTheHostAreFollowed(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", strings.Replace(web("web", "10.96.0.10", "10.1.0.1"), "spec: {", "spec: {type: NodePort, ", 1))
	r.step()
	r.want("192.0.2.1 : goto nodeport", "!192.0.2.7")
	r.observed.facts.Addresses[0].Prefix = netip.MustParsePrefix("192.0.2.7/24")
	r.observed.moved = true
	r.step()
	r.want("192.0.2.7 : goto nodeport", "!192.0.2.1 ")
}

func TestForeignChangesAreMended(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	before := r.text()
	for name, tamper := range map[string]func(nft.Ruleset){
		"flush":          func(rs nft.Ruleset) { clear(rs) },
		"delete element": func(rs nft.Ruleset) { clear(rs[nft.IPv4].Sets["backends"].Elements) },
		"add chain":      func(rs nft.Ruleset) { rs[nft.IPv4].Chains["evil"] = &nft.Chain{Name: "evil"} },
		"empty chain":    func(rs nft.Ruleset) { rs[nft.IPv4].Chains["prerouting"].Rules = nil },
		"redefine set": func(rs nft.Ruleset) {
			rs[nft.IPv4].Sets["services"].Size = 7
		},
	} {
		r.kernel.Tamper(tamper)
		r.onForeignChange(kernel.Change{Ours: true, PID: 4711, Comm: "nft"})
		r.step()
		if got := r.text(); got != before {
			t.Errorf("after %q the ruleset is\n%s\nwant\n%s", name, got, before)
		}
		// Without the notice the next change finds it.
		r.kernel.Tamper(tamper)
		r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.2"))
		r.step()
		r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
		r.step()
		if got := r.text(); got != before {
			t.Errorf("after %q unnoticed the ruleset is\n%s\nwant\n%s", name, got, before)
		}
	}
	if !strings.Contains(r.logged.String(), "pid=4711") {
		t.Errorf("the culprit is not named:\n%s", r.logged.String())
	}
}

func TestFailedCommitsAreOutcomesToVerify(t *testing.T) {
	for name, fault := range map[string]error{
		"refused":         &kernel.OpError{Text: "add element"},
		"outcome unknown": kernel.ErrOutcomeUnknown,
		"stale":           kernel.ErrStale,
		"other":           errors.New("no buffer space"),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.host()
			r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
			r.step()
			for _, times := range []int{1, maxAttempts - 1, maxAttempts + 2} {
				left := times
				r.kernel.Inject(func(*nft.Batch) error {
					if left == 0 {
						return nil
					}
					left--
					return fault
				})
				ip := fmt.Sprintf("10.1.0.%d", 10+times)
				r.write("a.yaml", web("web", "10.96.0.10", ip))
				r.step()
				for range 3 {
					if s := r.board.Status(); r.wait > 0 && s.Synced {
						t.Error("a failed step counts as synced")
					}
					if wait, needed := r.until(); needed {
						r.clock = r.clock.Add(wait)
						r.step()
					}
				}
				r.want("10.96.0.10 . tcp . 80 . 0 : " + ip)
				if s := r.board.Status(); !s.Synced || r.wait != 0 {
					t.Errorf("after %d failures: synced %v, retry in %v", times, s.Synced, r.wait)
				}
			}
		})
	}
}

func TestStoreThatCannotBeWritten(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	r.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Refuse })
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.2"))
	r.step()
	r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.1 . 8080")
	if r.wait == 0 || r.board.Status().Synced {
		t.Error("a change that could not be stored counts as done")
	}
	r.engine.Inject(nil)
	r.step()
	r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.2 . 8080")
}

// What serves a Gateway cannot be stored after its backend was: it is tried again later, not at once, and no log line is written
// without a pause.
func Test1134_gateway_that_cannot_be_stored_is_tried_later(t *testing.T) {
	const gateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
spec: {gatewayClassName: svcctl, listeners: [{name: db, port: 5432, protocol: TCP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: db}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}
`
	for _, fault := range []faulty.Fault{faulty.Refuse, faulty.Full, faulty.Fail} {
		r := newRig(t)
		r.host()
		r.write("gateway.yaml", gateway)
		r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
		settle := func() (steps int) {
			for steps = 1; steps < 10; steps++ {
				r.step()
				select {
				case <-r.wake:
				default:
					return steps
				}
			}
			return steps
		}
		settle()
		commits := 0
		r.engine.Inject(func(engine.Transaction) faulty.Fault {
			if commits++; commits == 1 { // that of the file
				return faulty.NoFault
			}
			return fault
		})
		r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.2"))
		if n := settle(); n == 10 || r.wait == 0 || commits < 2 {
			t.Errorf("%v: %d steps at once, %d commits, the next step in %v", fault, n, commits, r.wait)
		}
		if fault == faulty.Fail {
			continue // for good
		}
		r.engine.Inject(nil)
		settle()
		_, list, _ := r.store.Service("default/edge-svcctl")
		if len(list) != 1 || list[0].Endpoints[0].Addresses[0] != "10.1.0.2" {
			t.Errorf("%v: what serves the Gateway is %v", fault, list)
		}
	}
}

// A full disk is told with what it keeps from being stored; what was in force stays, and is put
// right when others change it.
func TestFullDisk(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	r.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Full })
	for i := range 30 {
		r.write(fmt.Sprintf("%d.yaml", i), web(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.1.%d", i), "10.1.0.2"))
	}
	r.step()
	s := r.board.Status()
	if s.Synced || !s.Ready || s.Reason != "30 files are not stored yet (disk full); what was in force stays in force" {
		t.Errorf("ready %v, synced %v: %s", s.Ready, s.Synced, s.Reason)
	}
	want := "the disk of " + r.cfg.DataDir + " is full: free space there. Tried again every 30 s; nothing in force is lost"
	if !r.hasProblem(reasonDiskFull) || s.Errors() != 1 || s.Problems[0].Message != want {
		t.Errorf("problems %v", s.Problems)
	}
	r.kernel.Tamper(func(rs nft.Ruleset) { clear(rs) })
	r.onForeignChange(kernel.Change{Ours: true, PID: 4711, Comm: "nft"})
	r.step()
	r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.1 . 8080")
	r.engine.Inject(nil)
	r.step()
	r.want("10.96.1.29 . tcp . 80 . 0 : 10.1.0.2 . 8080")
	if s := r.board.Status(); !s.Synced || len(s.Problems) != 0 {
		t.Errorf("synced %v, problems %v", s.Synced, s.Problems)
	}
}

func TestProblemsAreLoggedOnceAndWhenTheyAreOver(t *testing.T) {
	r := newRig(t)
	r.host()
	bad := strings.Replace(web("web", "10.96.0.10", "10.1.0.1"), "port: 80,", "port: 0,", 1)
	r.write("a.yaml", bad)
	r.write("b.yaml", web("dns", "10.96.0.11", "10.1.0.3"))
	for range 3 {
		r.step()
	}
	r.want("10.96.0.11 . tcp . 80 . 0 : 10.1.0.3 . 8080", "!10.96.0.10")
	problems := r.board.Status().Problems
	if len(problems) != 1 || problems[0].File != "a.yaml" || problems[0].Line == 0 || problems[0].Field != "spec.ports[0].port" {
		t.Fatalf("problems %+v", problems)
	}
	if n := strings.Count(r.logged.String(), "msg=problem "); n != 1 {
		t.Errorf("the problem is logged %d times\n%s", n, r.logged.String())
	}
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	if len(r.board.Status().Problems) != 0 || !strings.Contains(r.logged.String(), `msg="problem is over"`) {
		t.Errorf("problems %v\n%s", r.board.Status().Problems, r.logged.String())
	}
}

func TestAffinityForgetsEndpointsThatAreGone(t *testing.T) {
	r := newRig(t)
	r.host()
	sticky := func(endpoints ...string) string {
		return strings.Replace(web("web", "10.96.0.10", endpoints...), "spec: {", "spec: {sessionAffinity: ClientIP, ", 1)
	}
	r.write("a.yaml", sticky("10.1.0.1", "10.1.0.2"))
	r.step()
	r.write("a.yaml", sticky("10.1.0.2"))
	r.step()
	gone := nft.AddrPortData(netip.MustParseAddrPort("10.1.0.1:8080"))
	count := 0
	for _, f := range r.kernel.Forgotten() {
		if f.Set.Name == "affinity/default/web" && slices.Equal(f.Data, []string{gone}) {
			count++
		}
	}
	if count != 2 {
		t.Errorf("forgotten %d times, want once with the change and once after it: %+v", count, r.kernel.Forgotten())
	}
	// Also when it went while the process was down.
	r.start()
	r.host()
	r.write("a.yaml", sticky("10.1.0.3"))
	r.step()
	again := slices.DeleteFunc(slices.Clone(r.kernel.Forgotten()), func(f nft.ForgetData) bool { return f.Set.Name != "affinity/default/web" })
	if len(again) != 4 {
		t.Errorf("%d forgets after a restart, want 4: %+v", len(again), again)
	}
}
