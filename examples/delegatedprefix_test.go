package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDelegatedPrefix runs the hook: the manifest of the example is its output, an earlier prefix leaves when its lifetime ends or the
// provider takes it back, and what it cannot use changes nothing.
func TestDelegatedPrefix(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "dns.yaml")
	run := func(now string, prefixes ...string) error {
		cmd := exec.Command("delegated-prefix/delegated-prefix.sh", append([]string{"delegated-prefix/dns.yaml.in", file}, prefixes...)...)
		cmd.Env = append(os.Environ(), "NOW="+now)
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		return err
	}
	content := func() string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	asked := func(now, want string, prefixes ...string) {
		t.Helper()
		if err := run(now, prefixes...); err != nil {
			t.Fatal(err)
		}
		if got := content(); !strings.Contains(got, `load-balancer-ips: "`+want+`"`) || strings.Contains(got, "PREFIX") {
			t.Errorf("the address is not %s:\n%s", want, got)
		}
	}
	asked("0", "2001:db8:11:0::53", "2001:db8:11::/56,3600")
	asked("1800", "2001:db8:12:3400::53,2001:db8:11:0::53", "2001:db8:12:3400::/56,3600")
	if example, err := os.ReadFile("delegated-prefix/dns.yaml"); err != nil || string(example) != content() {
		t.Errorf("%v: delegated-prefix/dns.yaml is not what the commands of the README write:\n%s", err, content())
	}
	asked("1900", "2001:db8:12:3400::53,2001:db8:11:0::53", "2001:db8:12:3400::/56,3600") // a renewal
	asked("3600", "2001:db8:12:3400::53", "2001:db8:12:3400::/56,3600")
	asked("3700", "2001:db8:13:ff::53,2001:db8:14:1::53", "2001:db8:13:ff::/64,infinity", "2001:db8:14:1:0:0:0:0/64,4294967295", "2001:db8:12:3400::/56,0")
	before := content()
	for _, bad := range []string{"/,", "2001:db8::/56", "2001:db8::/65,60", "192.0.2.0/24,60", "2001:db8::/56,soon", "db8/56,60"} {
		if run("3800", bad) == nil || content() != before {
			t.Errorf("%q is taken: %s", bad, content())
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}
