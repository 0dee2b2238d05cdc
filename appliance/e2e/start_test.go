package e2e

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// refusesToStart asserts that svcctl ends by itself, without success, with one line
// about it that has every text.
func refusesToStart(t *testing.T, a *netlab.Appliance, texts ...string) {
	t.Helper()
	a.Launch()
	if state := a.Wait(); state.Success() {
		t.Errorf("svcctl ended with success, want a refusal to start")
	}
	for line := range strings.Lines(a.Log()) {
		all := true
		for _, text := range texts {
			all = all && strings.Contains(line, text)
		}
		if all {
			return
		}
	}
	t.Errorf("no line with %q in\n%s", texts, a.Log())
}

func TestStart_second_instance(t *testing.T) {
	b := web(t, nil, l1)
	second := b.GW1.Appliance(binary, b.flags.args()...)
	second.Data = b.svcctl.Data
	b.commitsNothing(t, "a second instance", func() { refusesToStart(t, second, b.svcctl.Data) })
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1)...)
	}
}

func TestStart_socket_in_use(t *testing.T) {
	b := newBox(t, nil)
	listener, err := net.Listen("unix", b.svcctl.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	refusesToStart(t, b.svcctl, b.svcctl.Socket)
	if rules := b.GW1.Nft("list", "ruleset"); rules != "" {
		t.Errorf("rules of an appliance that did not start:\n%s", rules)
	}
}

func TestStart_after_a_crash_takes_the_socket_over(t *testing.T) {
	b := web(t, nil, l1)
	b.svcctl.Kill()
	b.svcctl.Start()
	if _, stderr, code := b.svcctl.Svcctl("wait", "--for", "synced"); code != 0 {
		t.Errorf("svcctl wait --for synced: exit code %d: %s", code, stderr)
	}
}

func TestStart_without_privileges(t *testing.T) {
	b := newBox(t, nil) // skips when this test has none itself
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Dir(dir), filepath.Dir(binary)} {
		if err := syscall.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Chown(dir, nobody65534, nobody65534); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, append([]string{
		"serve", "--manifests", dir, "--data-dir", filepath.Join(dir, "data"), "--socket", filepath.Join(dir, "sock"),
	}, b.flags.args()...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nobody65534, Gid: nobody65534},
		Pdeathsig:  syscall.SIGKILL,
	}
	timer := time.AfterFunc(syncTimeout, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "CAP_NET_ADMIN") {
		t.Errorf("svcctl serve without privileges: %v, want a refusal that names CAP_NET_ADMIN:\n%s", err, out)
	}
}

// nobody65534 is a user without rights on every distribution.
const nobody65534 = 65534

func TestDown_removes_everything(t *testing.T) {
	b := sticky(t, 600, l1r1)
	const foreign = "table inet foreign { }"
	b.GW1.LoadNft(foreign)
	if _, stderr, code := b.svcctl.Svcctl("down", "--yes"); code != 1 || !strings.Contains(stderr, b.svcctl.Socket) {
		t.Errorf("svcctl down beside a running appliance: exit code %d: %s", code, stderr)
	}
	b.svcctl.Stop()
	if _, stderr, code := b.svcctl.Svcctl("down"); code != 2 {
		t.Errorf("svcctl down with nobody to ask: exit code %d: %s", code, stderr)
	}
	if _, stderr, code := b.svcctl.Svcctl("down", "--yes"); code != 0 {
		t.Fatalf("svcctl down --yes: exit code %d: %s", code, stderr)
	}
	if rules := strings.Fields(b.GW1.Nft("list", "ruleset")); strings.Join(rules, " ") != "table inet foreign { }" {
		t.Errorf("left after svcctl down:\n%s", b.GW1.Nft("list", "ruleset"))
	}
	b.svcctl.Start()
	for _, f := range families {
		answers(t, b.IN, "tcp", f.at(f.vip(41), 80))
	}
}
