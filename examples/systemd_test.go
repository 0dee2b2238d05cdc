package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// maxExposure is the highest accepted score of `systemd-analyze security` for the appliance's
// unit, times ten: 0 is the best, 100 the worst.
const maxExposure = "20"

// analyze runs systemd-analyze, where it can be had.
func analyze(t *testing.T, args ...string) (string, error) {
	t.Helper()
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if _, apt := exec.LookPath("apt-get"); apt == nil && os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
			t.Fatalf("this test needs systemd-analyze: install the package systemd (%v)", err)
		}
		t.Skipf("SKIPPED, NOTHING WAS TESTED: there is no systemd-analyze here: %v", err)
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	return string(out), err
}

func TestUnitIsHardlyExposed(t *testing.T) {
	for _, unit := range []string{"svcctl.service", "svcctl-announce.service", "svcctl-discover.service"} {
		out, err := analyze(t, "security", "--offline=true", "--no-pager", "--threshold="+maxExposure, "systemd/"+unit)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		t.Log(lines[len(lines)-1])
		if err != nil {
			t.Errorf("%s is exposed too much: %v\n%s", unit, err, out)
		}
	}
}

// TestUnitsAreSound has systemd read the units, with programs that exist here.
func TestUnitsAreSound(t *testing.T) {
	dir := t.TempDir()
	var units []string
	for _, name := range []string{"svcctl.service", "svcctl-announce.service", "svcctl-discover.service", "svcctl-sysctl.service"} {
		content, err := os.ReadFile(filepath.Join("systemd", name))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer("/usr/local/bin/svcctl", "/bin/true", "/usr/lib/systemd/systemd-sysctl", "/bin/true").Replace(string(content))
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		units = append(units, path)
	}
	out, err := analyze(t, append([]string{"verify", "--man=no"}, units...)...)
	for line := range strings.Lines(out) {
		if strings.Contains(line, dir) || strings.Contains(line, "svcctl") {
			t.Error(strings.TrimSpace(line))
		}
	}
	if err != nil {
		t.Logf("systemd-analyze verify: %v\n%s", err, out) // also for units that are not ours
	}
}

// The packaged announcer may speak BGP with the routers of BGPPeers, which come without a restart.
func Test782_announcer_may_speak_BGP(t *testing.T) {
	unit, err := os.ReadFile("systemd/svcctl-announce.service")
	if err != nil {
		t.Fatal(err)
	}
	families := ""
	for line := range strings.Lines(string(unit)) {
		if list, is := strings.CutPrefix(line, "RestrictAddressFamilies="); is {
			families = " " + strings.TrimSpace(list) + " "
		}
		if strings.HasPrefix(line, "IPAddressDeny=") || strings.HasPrefix(line, "PrivateNetwork=") {
			t.Errorf("the unit forbids connections: %s", line)
		}
	}
	for _, family := range []string{" AF_INET ", " AF_INET6 "} {
		if !strings.Contains(families, family) {
			t.Errorf("the unit permits%s, and not%s", families, family)
		}
	}
}
