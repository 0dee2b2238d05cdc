package netlab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pretender is a program that behaves as svcctl does, as far as this package knows it.
const pretender = `#!/bin/sh
case "$1" in
serve)
	trap 'echo msg=stopped >&2; exit 0' TERM
	echo "arguments: $*" >&2
	echo 'time=now level=INFO msg=programmed services=0' >&2
	while :; do sleep 0.05; done ;;
status) echo "status of $3"; exit 1 ;;
esac
`

func TestAppliance(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "svcctl")
	if err := os.WriteFile(binary, []byte(pretender), 0o755); err != nil {
		t.Fatal(err)
	}
	a := New(t).Host("box").Appliance(binary, "--node-name=gw1")
	a.Start()
	for _, want := range []string{"serve", "--manifests " + a.Manifests.Path, "--data-dir " + a.Data, "--node-name=gw1"} {
		if !strings.Contains(a.Log(), want) {
			t.Errorf("no %q in the log:\n%s", want, a.Log())
		}
	}
	if out, _, code := a.Svcctl("status"); out != "status of "+a.Socket+"\n" || code != 1 {
		t.Errorf("svcctl status: %q, exit code %d", out, code)
	}
	a.Stop()
	if a.Running() || !strings.Contains(a.Log(), "msg=stopped") {
		t.Errorf("running: %t, log:\n%s", a.Running(), a.Log())
	}
	a.Start()
	a.Kill()
	if a.Running() || strings.Contains(a.Log(), "msg=stopped") {
		t.Errorf("running: %t, log since the second start:\n%s", a.Running(), a.Log())
	}
}

func TestProgramsEndWithTheHost(t *testing.T) {
	t.Parallel()
	l := New(t)
	h := l.Host("box")
	dir := t.TempDir()
	binary, alive := filepath.Join(dir, "svcctl"), filepath.Join(dir, "alive")
	script := "#!/bin/sh\nwhile :; do echo . >> " + alive + "; sleep 0.01; done\n"
	if err := os.WriteFile(binary, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	a := h.Appliance(binary)
	a.Launch()
	size := func() int64 {
		info, err := os.Stat(alive)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	for size() == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	l.close() // the Host's thread ends, and with it what it started
	select {
	case <-a.exited:
	case <-time.After(endTimeout):
		t.Fatal("the program outlived the host it was started on")
	}
}

func TestDir(t *testing.T) {
	d := Dir{Path: t.TempDir(), t: t}
	d.Write("a.yaml", "one")
	d.Write("a.yaml", "two")
	d.WriteInPlace("b.yaml", "three")
	for name, want := range map[string]string{"a.yaml": "two", "b.yaml": "three"} {
		if got, err := os.ReadFile(filepath.Join(d.Path, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	d.Remove("a.yaml")
	d.Remove("b.yaml")
	if left, err := os.ReadDir(d.Path); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
