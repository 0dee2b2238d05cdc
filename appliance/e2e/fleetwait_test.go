package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// The ways in which etcd does not answer a box, as rules on the box.
var awayRules = map[string]string{
	"refusing": "chain c { type filter hook output priority -300; oifname ctl0 tcp dport 2379 reject with tcp reset; }",
	"silent":   "chain c { type filter hook output priority -300; oifname ctl0 tcp dport 2379 drop; }",
}

// Test800_a_cold_start_does_not_wait_for_etcd: after a boot the kernel has nothing, and the replica is programmed at once, whether etcd
// answers or not. With rules in the kernel, which may be newer than the replica, the start waits for etcd for a moment.
func Test800_a_cold_start_does_not_wait_for_etcd(t *testing.T) {
	const waited = "the start goes on with the replica"
	f := newFleet(t, 1)
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("web")
	var vips []netip.AddrPort
	for _, fam := range families {
		vips = append(vips, f.at(0, fam, "web"))
	}
	f.boxes[0].Stop() // the replica is on disk
	f.boxes[0].Start()
	start := func(rules string) time.Duration { // as after a boot, with rules of the host
		f.boxes[0].Kill()
		f.hosts[0].LoadNft("flush ruleset\n" + rules)
		began := time.Now()
		f.boxes[0].Start()
		took := time.Since(began)
		for _, vip := range vips {
			f.servesAt(vip)
		}
		return took
	}
	t.Logf("with etcd a cold start has its rules after %v", start(""))
	f.state(0, "Following")
	// Where etcd was late, it is a problem.
	if log := f.boxes[0].Log(); !strings.Contains(log, "does not follow the fleet") && (strings.Contains(log, "FleetCutOff") || strings.Contains(log, "not written yet")) {
		t.Errorf("a cold start with etcd reports a problem: %s", log)
	}
	for way, rule := range awayRules {
		t.Logf("%s etcd: a cold start has its rules after %v", way, start("table ip cut {\n"+rule+"\n}\n"))
		if strings.Contains(f.boxes[0].Log(), waited) {
			t.Errorf("%s: a cold start has waited for etcd", way)
		}
		f.boxes[0].Kill()
		f.boxes[0].Start()
		if !strings.Contains(f.boxes[0].Log(), waited) {
			t.Errorf("%s: a start with rules in the kernel has not waited for etcd", way)
		}
		f.state(0, "CutOff")
		f.hosts[0].LoadNft("delete table ip cut\n")
		f.state(0, "Following")
	}
}

// notified is what systemd gets of a box.
type notified struct {
	mu   sync.Mutex
	text []string
}

func (n *notified) all() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.text, "\n")
}

// notify stands in for systemd.
func notify(t *testing.T, b *netlab.Appliance) *notified {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	b.Env = append(b.Env, "NOTIFY_SOCKET="+path)
	n := &notified{}
	go func() {
		for b := make([]byte, 64<<10); ; {
			read, err := conn.Read(b)
			if err != nil {
				return
			}
			n.mu.Lock()
			n.text = append(n.text, string(b[:read]))
			n.mu.Unlock()
		}
	}()
	return n
}

// waits asserts that a box waits for its fleet, with texts as the reason, and refuses all else with it.
func (f *fleet) waits(n int, texts ...string) {
	f.t.Helper()
	eventually(f.t, time.Minute, func() error {
		out, errOut, code := f.boxes[n].Svcctl("status", "-o", "json")
		var s struct {
			Ready, Synced bool
			Reason        string
			Fleet         struct{ State, Why string }
			Problems      []struct{ Reason, Severity, Message string }
		}
		if err := json.Unmarshal([]byte(out), &s); err != nil {
			return fmt.Errorf("exit %d: %s: %w", code, errOut, err)
		}
		if code != 1 || s.Ready || s.Synced || s.Fleet.State != "Waiting" || s.Reason != s.Fleet.Why || len(s.Problems) != 1 || s.Problems[0].Reason != "FleetWaiting" || s.Problems[0].Severity != "error" || s.Problems[0].Message != s.Reason {
			return fmt.Errorf("exit %d: %+v", code, s)
		}
		for _, text := range texts {
			if !strings.Contains(s.Fleet.Why, text) || !strings.Contains(f.boxes[n].Log(), text) {
				return fmt.Errorf("it lacks %q: %+v", text, s)
			}
		}
		return nil
	})
	f.says(n, []string{"status"}, append([]string{"Waiting"}, texts...)...)
	for _, verb := range [][]string{
		{"get", "svc"}, {"get", "boxes"}, {"describe", "svc/web"}, {"explain", "svc/web"}, {"explain", "172.30.0.1:80"}, {"health"}, {"top", "--once"}, {"top", "--connections", "svc/web"},
		{"admin", "alloc"}, {"journal"}, {"admin", "env"}, {"announce", "status"}, {"fleet", "source", "list"}, {"fleet", "rollout", "status"}, {"fleet", "accept"}, {"confirm", "--removals", "--yes"}, {"delete", "svc", "web"},
		// real time: wait does not end well
		{"announce", "drain"}, {"admin", "export", "-"}, {"wait", "--timeout", "1s"}, {"trace", "172.30.0.1:80", "--predict"}, {"confirm"}, {"rollback"}, {"admin", "kubeconfig"}, {"admin", "token"},
	} {
		if out, errOut, code := f.boxes[n].Svcctl(verb[0], verb[1:]...); code != 1 || !strings.Contains(errOut, "the state in fleet pop1 is Waiting: ") {
			f.t.Errorf("%v: exit %d: %s%s", verb, code, out, errOut)
		}
	}
	if out, code := f.apply(n, f.web("never")...); code == 0 || !strings.Contains(out, "Waiting") {
		f.t.Errorf("apply: exit %d: %s", code, out)
	}
	f.says(n, []string{"doctor"}, "Waiting")
}

// Test801_a_new_box_that_waits_for_etcd_answers: while a box without a replica waits for etcd, its socket answers with the state, the
// reason and the next step, and refuses all else; systemd waits with it. It starts on its own when etcd answers, and a client that
// waits for it goes on.
func Test801_a_new_box_that_waits_for_etcd_answers(t *testing.T) {
	f := layFleet(t, 1)
	f.svcctlFleet("init")
	f.stop()
	f.starts(func() { f.startEtcd() }, fleetEtcd, "connection refused", "start etcd, or correct --etcd")
}

// Test802_a_box_waits_for_the_fleet_to_be_made: `serve` before `fleet init` does not end, and starts on its own after it.
func Test802_a_box_waits_for_the_fleet_to_be_made(t *testing.T) {
	f := layFleet(t, 1)
	f.starts(func() { f.svcctlFleet("init") }, "etcd has no fleet pop1: make it with `svcctl fleet init`")
}

// starts starts a box that waits for the reasons in texts until they are removed.
func (f *fleet) starts(remove func(), texts ...string) {
	f.t.Helper()
	systemd := notify(f.t, f.boxes[0])
	f.boxes[0].Launch()
	eventually(f.t, time.Minute, func() error {
		if log := f.boxes[0].Log(); !strings.Contains(log, "state=Waiting") {
			return fmt.Errorf("the log has %s", log)
		}
		return nil
	})
	f.boxes[0].Stop() // in good order
	f.boxes[0].Launch()
	f.waits(0, texts...)
	if said := systemd.all(); !strings.Contains(said, "EXTEND_TIMEOUT_USEC=") || !strings.Contains(said, "STATUS=Waiting: ") || strings.Contains(said, "READY=1") {
		f.t.Errorf("systemd was notified of %s", said)
	}
	waited := make(chan string, 1)
	go func() {
		out, errOut, code := f.boxes[0].Svcctl("wait", "--for", "ready", "--timeout", "10m")
		waited <- fmt.Sprintf("%d%s%s", code, out, errOut)
	}()
	remove()
	if what := <-waited; what != "0" {
		f.t.Errorf("svcctl wait, while a box waits: exit %s", what)
	}
	f.state(0, "Following")
	eventually(f.t, time.Minute, func() error {
		if said := systemd.all(); !strings.Contains(said, "READY=1") {
			return fmt.Errorf("systemd was notified of %s", said)
		}
		return nil
	})
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		f.t.Fatal(out)
	}
	f.serves("web")
	f.boxes[0].Stop()
}
