package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// TestSandbox runs the appliance as examples/systemd/svcctl.service does, as far as that
// can be done without systemd: as a user without rights but CAP_NET_ADMIN, and with a look
// at the system calls it makes. None of them may be one that the unit forbids.
func TestSandbox(t *testing.T) {
	b := newBox(t, flags{"metrics-listen": {"127.0.0.1:9155"}, "listen": {"127.0.0.1:6443"}})
	allowed := allowedCalls(t)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: NodePort", "clusterIP: "+f.vip(41), nodePorts(f, 30080)), f.slice("web", "p80: 80", b.L1),
		}
	})
	dir := filepath.Dir(b.svcctl.Data)
	for _, path := range []string{dir, filepath.Dir(dir), b.svcctl.Manifests.Path, filepath.Dir(binary)} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(b.svcctl.Data, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{b.svcctl.Data, dir} {
		if err := os.Chown(path, nobody65534, nobody65534); err != nil {
			t.Fatal(err)
		}
	}
	calls := filepath.Join(t.TempDir(), "calls")
	b.svcctl.Wrapper = []string{"strace", "-D", "-f", "-c", "-S", "name", "-U", "name", "-o", calls,
		"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all,+net_admin",
		"--inh-caps=-all,+net_admin", "--ambient-caps=-all,+net_admin", "--no-new-privs"}
	b.svcctl.Start()
	b.serves(t, "in the sandbox")
	b.rewrite("web.yaml", b.webDocuments(b.R1))
	b.GW1.Nft("flush", "ruleset")
	eventually(t, syncTimeout, func() error {
		_, err := b.IN.Ask("tcp", ipv4.at(ipv4.vip(41), 80), netlab.Within(time.Second))
		return err
	})
	b.api(t).do("GET", servicesPath, "", 200)
	if problems := b.status().Problems; len(problems) != 0 {
		t.Errorf("problems in the sandbox:\n%s", list(problems))
	}
	b.svcctl.Stop()
	var made []string
	eventually(t, syncTimeout, func() error { // strace writes when the program has ended
		text, err := os.ReadFile(calls)
		made = strings.Fields(regexp.MustCompile(`(?m)^.*<detached \.\.\.>$`).ReplaceAllString(string(text), "")) // a task that ended as strace let go
		if err == nil && len(made) < 20 {
			err = fmt.Errorf("only %d system calls", len(made))
		}
		return err
	})
	// What setpriv does before the program runs is systemd's work.
	byPrivileges := []string{"capset", "setresuid", "setresgid", "setgroups", "prctl", "capget", "execve"}
	for _, call := range made {
		if !allowed[call] && !slices.Contains(byPrivileges, call) && !strings.HasPrefix(call, "-") && !slices.Contains([]string{"name", "syscall", "total"}, call) {
			t.Errorf("it calls %s, which the unit forbids", call)
		}
	}
	t.Logf("%d system calls", len(made))
}

// allowedCalls are the system calls that the unit's filter lets through:
// @system-service without @privileged and @resources.
func allowedCalls(t *testing.T) map[string]bool {
	t.Helper()
	var expand func(set string, add func(string))
	expand = func(set string, add func(string)) {
		out, err := exec.Command("systemd-analyze", "--no-pager", "syscall-filter", set).Output()
		if err != nil {
			t.Fatalf("systemd-analyze syscall-filter %s: %v: install the package systemd", set, err)
		}
		for line := range strings.Lines(string(out)) {
			switch name := strings.TrimSpace(line); {
			case name == set, name == "", strings.HasPrefix(name, "#"):
			case strings.HasPrefix(name, "@"):
				expand(name, add)
			default:
				add(name)
			}
		}
	}
	allowed := map[string]bool{}
	expand("@system-service", func(call string) { allowed[call] = true })
	for _, set := range []string{"@privileged", "@resources"} {
		expand(set, func(call string) { delete(allowed, call) })
	}
	return allowed
}
