package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// What serve refuses to read is refused by every verb that reads manifests, in serve's words,
// and the rest is read.
func TestHostileFiles(t *testing.T) {
	b := newBox(t)
	b.Env.Plan = appliance.Plan
	b.file("m/good.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: good}\nspec: {clusterIP: 10.96.0.11, ports: [{port: 80}]}\n")
	b.file("secret.yaml", "root:x:0:0\n")
	b.file("m/big.yaml", "")
	if err := os.Truncate("m/big.yaml", 20<<30); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo("m/fifo.yaml", 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"m/out.yaml": "../secret.yaml", "m/zero.yaml": "/dev/zero"} {
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		verb string
		code int
	}{{"plan", cli.ExitNo}, {"diff", cli.ExitUsage}, {"apply", cli.ExitNo}, {"delete", cli.ExitNo}} {
		code := b.run(c.verb, "-f", "m")
		got := b.err.String()
		if code != c.code {
			t.Errorf("%s: exit %d, want %d: %s", c.verb, code, c.code, got)
		}
		for _, want := range []string{
			"m/big.yaml: the file has 21474836480 bytes, more than the limit of 67108864; split it\n",
			"m/fifo.yaml: not a file but a FIFO; skipped\n",
			"m/out.yaml: the link leads out of the watched directory; links must be relative and stay inside\n",
			"m/zero.yaml: the link leads out of the watched directory; links must be relative and stay inside\n",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%s does not say %q: %s", c.verb, want, got)
			}
		}
		if strings.Contains(got, "root:x") {
			t.Errorf("%s shows what a link leads to: %s", c.verb, got)
		}
		if out := b.out.String(); !strings.Contains(out, "10.96.0.11") && !strings.Contains(out, "good") {
			t.Errorf("%s does not read the good file: %s", c.verb, out)
		}
	}
}

// Files of settings, tokens and certificates are bounded, and never waited for.
func TestHostileSettings(t *testing.T) {
	b := newBox(t)
	if err := syscall.Mkfifo("fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	b.file("good", "zone: a\n")
	for name, args := range map[string][]string{
		"config":     {"plan", "--config", "PATH", "-f", "good"},
		"token-file": {"get", "svc", "--server", "127.0.0.1:1", "--token-file", "PATH"},
		"ca":         {"get", "svc", "--server", "127.0.0.1:1", "--token", "t", "--ca", "PATH"},
	} {
		for _, path := range []string{"fifo", "/dev/zero"} {
			line := append([]string{}, args...)
			for i := range line {
				if line[i] == "PATH" {
					line[i] = path
				}
			}
			if code := b.run(line...); code != cli.ExitUsage || !strings.Contains(b.err.String(), path+": not a file but a") {
				t.Errorf("--%s %s: exit %d: %s", name, path, code, b.err.String())
			}
		}
	}
}

// TestDoctorAsks: doctor asks the appliance on the socket where its data is, and what it knows of its certificate
// and of addresses that no host answers for.
func TestDoctorAsks(t *testing.T) {
	b := newBox(t)
	var with config.Config
	b.Env.Doctor = func(_ context.Context, cfg config.Config, serving bool) []checkup.Finding {
		with = cfg
		if !serving {
			t.Error("nobody serves")
		}
		return nil
	}
	b.setup = wire.Setup{
		DataDir: "/srv/svcctl", Manifests: []string{"/srv/m"},
		Certificate: &wire.Certificate{File: "c.pem", Expires: noon, Problem: "the new certificate cannot be used", Advice: "renew it", Bad: true},
		Unanswered:  []wire.Unanswered{{Address: "192.0.2.50", Interface: "eth0", Network: "192.0.2.0/24", Services: []string{"default/web"}}},
	}
	if code := b.run("doctor"); code != cli.ExitNo {
		t.Errorf("exit %d: %s", code, b.err.String())
	}
	if with.DataDir != "/srv/svcctl" || len(with.Manifests) != 1 || with.Manifests[0] != "/srv/m" {
		t.Errorf("it examines %q and %q", with.DataDir, with.Manifests)
	}
	for _, want := range []string{"the new certificate cannot be used", "renew it", "192.0.2.50 lies in the network 192.0.2.0/24 of eth0", "ip address add 192.0.2.50/32 dev eth0"} {
		if !strings.Contains(strings.Join(strings.Fields(b.out.String()), " "), want) {
			t.Errorf("no %q in %s", want, b.out.String())
		}
	}
	if b.run("doctor", "--data-dir", "/elsewhere"); with.DataDir != "/elsewhere" {
		t.Errorf("it examines %q", with.DataDir)
	}
}

// TestPlanStdin: plan reads standard input, as apply does.
func TestPlanStdin(t *testing.T) {
	b := newBench()
	b.Env.Plan = appliance.Plan
	b.In = strings.NewReader("apiVersion: v1\nkind: Service\nmetadata: {name: piped}\nspec: {clusterIP: 10.96.0.77, ports: [{port: 80}]}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: [{port: 99999}]}\n")
	if code := b.run("plan", "-f", "-"); code != cli.ExitNo || !strings.Contains(b.out.String(), "10.96.0.77") || !strings.Contains(b.err.String(), "stdin:") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, b.out.String(), b.err.String())
	}
	missing := filepath.Join(t.TempDir(), "missing")
	if code := b.run("plan", "-f", missing); code != cli.ExitNo || !strings.Contains(b.err.String(), "-f takes a file, a directory, or - for stdin") {
		t.Errorf("exit %d: %s", code, b.err.String())
	}
}
