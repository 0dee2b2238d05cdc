package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/appliance/announce"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/discover"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/manifest"
)

var update = flag.Bool("update", false, "write the golden files")

// bench is a program whose surroundings a test sees and sets.
type bench struct {
	*cli.Env
	out, err bytes.Buffer
	env      map[string]string
	served   *config.Config // what serve was called with
	planned  []string       // the paths plan was called with
	downs    int
	// what the kernel has, and whether a process holds it
	frontends int
	held      bool
	leftErr   error
	findings  []checkup.Finding // what doctor finds
}

func newBench() *bench {
	b := &bench{env: map[string]string{}}
	b.Env = &cli.Env{
		Version: "v0.1.0",
		In:      strings.NewReader(""),
		Out:     &b.out,
		Err:     &b.err,
		LookupEnv: func(name string) (string, bool) {
			v, ok := b.env[name]
			return v, ok
		},
		Now: func() time.Time { return time.Date(2025, 11, 20, 9, 30, 15, 0, time.UTC) },
		Serve: func(_ context.Context, cfg config.Config, _ *slog.Logger) error {
			cfg.Log.Queue = nil // no setting, and another one in each run
			b.served = &cfg
			return nil
		},
		Plan: func(_ config.Config, paths []string, _ io.Reader, w io.Writer) ([]string, []manifest.Problem, error) {
			b.planned = paths
			_, err := io.WriteString(w, "table ip svcctl {\n}\n")
			return nil, nil, err
		},
		Down:     func(context.Context) error { b.downs++; return nil },
		Left:     func() (int, bool, error) { return b.frontends, b.held, b.leftErr },
		Announce: func(context.Context, announce.Config, *slog.Logger) error { return nil },
		Discover: func(context.Context, discover.Config, *slog.Logger) error { return nil },
		Environ:  func() []string { return nil },
		Doctor:   func(context.Context, config.Config, bool) []checkup.Finding { return b.findings },
		Uplinks:  appliance.UplinkFinding,
	}
	b.Client = func(v *cli.Verb) *client.Client { return settings.Client(b.Env, v) }
	return b
}

// run runs a command line and returns its exit code; output is that of this run.
func (b *bench) run(args ...string) int {
	b.out.Reset()
	b.err.Reset()
	b.served = nil
	return run(context.Background(), b.Env, args)
}

// golden compares text with a file in testdata.
func golden(t testing.TB, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it):\n%s", path, diff)
	}
}

// fake is an appliance that is as its fields say.
type fake struct {
	status wire.Status
	behind error // what Synced and Ready say
	held   wire.Released
}

func (f *fake) Status() wire.Status { return f.status }

func (f *fake) Release(context.Context) (r wire.Released, err error) {
	r, f.held = f.held, wire.Released{}
	return r, nil
}

func (f *fake) Healthy() error { return nil }

func (f *fake) Ready() error { return f.behind }

func (f *fake) Synced(ctx context.Context, _ uint64) error {
	if f.behind == nil {
		return nil
	}
	<-ctx.Done()
	return f.behind
}

// serveFake serves f and returns its socket.
func serveFake(t *testing.T, f *fake) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	log := slog.New(slog.DiscardHandler)
	srv := api.New(api.Config{Socket: api.Socket{Path: socket}, Version: "v0.1.0"}, f, log)
	ln, err := srv.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return socket
}

func wellStatus() wire.Status {
	return wire.Status{Version: "v0.1.0", NodeName: "gw1", Ready: true, Synced: true, Sources: []wire.Source{}, Problems: []wire.Problem{}}
}

func TestHelp(t *testing.T) {
	b := newBench()
	if n := strings.Count(texts, "\n## "); n != len(b.verbNames())+1 {
		t.Errorf("help.txt has the texts of %d verbs, and there are %d with svcctl itself", n, len(b.verbNames())+1)
	}
	for _, name := range append(b.verbNames(), "") {
		args := []string{"help"}
		if name != "" {
			args = append(args, strings.Fields(name)...)
		}
		if code := b.run(args...); code != cli.ExitDone || b.err.Len() > 0 {
			t.Errorf("svcctl %v: exit %d, stderr %q", args, code, b.err.String())
		}
		text := b.out.String()
		golden(t, filepath.Join("help", "svcctl-"+strings.ReplaceAll(name, " ", "-")+".txt"), text)
		for _, flag := range []string{"--help", "-h"} {
			args := []string{flag}
			if name != "" {
				args = append(strings.Fields(name), flag)
			}
			if code := b.run(args...); code != cli.ExitDone || b.out.String() != text {
				t.Errorf("svcctl %v is not svcctl help %s: exit %d\n%s", args, name, code, b.out.String())
			}
		}
		// Command lines may be longer than the screen, prose may not.
		for line := range strings.Lines(text) {
			if utf8.RuneCountInString(line) > output.HelpWidth+1 && !commandLine.MatchString(line) {
				t.Errorf("help %s: line of %d characters: %s", name, utf8.RuneCountInString(line), line)
			}
		}
	}
}

// commandLine matches an example, which may be longer than the screen.
var commandLine = regexp.MustCompile(`^  (\S.*)?\bsvcctl [a-z]`)

func (b *bench) verbNames() []string {
	var names []string
	for _, v := range everyVerb() {
		if v.Name != completeName {
			names = append(names, v.Name)
		}
	}
	return names
}

// everyVerb returns all verbs, each before those below it.
func everyVerb() (all []*cli.Verb) {
	var walk func(verbs []*cli.Verb)
	walk = func(verbs []*cli.Verb) {
		for _, v := range verbs {
			all = append(all, v)
			walk(v.Verbs)
		}
	}
	walk(root().Verbs)
	return all
}

// TestUsage has command lines that are wrong, and the one line that each gets.
func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args string
		want string
	}{
		{"stats", "there is no verb \"stats\": run `svcctl top`"},
		{"frobnicate", "there is no verb \"frobnicate\": run `svcctl help`"},
		{"aply -f x", "there is no verb \"aply\": did you mean apply?"},
		{"help frobnicate", "there is no verb \"frobnicate\": run `svcctl help`"},
		{"--frobnicate", "svcctl has no flag --frobnicate: run `svcctl --help`"},
		{"serve --manifest x", "serve has no flag --manifest: did you mean --manifests?"},
		{"serve -x", "serve has no flag --x: run `svcctl serve --help`"},
		{"serve --zone", "serve: --zone needs a value: run `svcctl serve --help`"},
		{"serve x", "serve takes no argument, and \"x\" is one: run `svcctl serve --help`"},
		{"serve --listener :1", "serve has no flag --listener: did you mean --listen?"},
		{"plan", "plan of what? Give a file or a directory with -f"},
		{"plan x.yaml", "plan takes no argument, and \"x.yaml\" is one: run `svcctl plan --help`"},
		{"plan -f x --data-dir y", "plan has no flag --data-dir: run `svcctl plan --help`"},
		{"status -o tall", "-o \"tall\": want one of table, wide, json, yaml"},
		{"version -o table", "-o \"table\": want one of text, json, yaml"},
		{"wait --for applied", "--for \"applied\": want synced or ready; an object has more, see `svcctl wait --help`"},
		{"wait --timeout 30", "--timeout \"30\": want a duration as 500ms, 30s or 2m, at most 1h"},
		{"announce --vrid 256", "--vrid \"256\": want a number from 1 to 255"},
		{"announce --vrid 1 --priority 1", "--priority \"1\": want a number from 2 to 254"},
		{"announce --vrid 1 --interval 15ms", "--interval \"15ms\": want a duration as 100ms, from 10ms to 40.95s in steps of 10ms"},
		{"announce --asn 64512 --peer 64513@192.0.2.1 --graceful-restart 1500ms", "--graceful-restart \"1500ms\": want a duration as 120s, from 1s to 4095s in whole seconds"},
		{"announce drain --timeout 0s", "--timeout \"0s\": want a duration as 60s, more than 0"},
		{"admin kubeconfig --embed-token 1ms", "--embed-token \"1ms\": want a duration as 168h, at least 1s"},
		{"dashboard --port 65536", "--port \"65536\": want a number from 0 to 65535"},
		{"trace 10.96.0.10:80 --count 1001", "--count \"1001\": want a number from 1 to 1000"},
		{"trace 10.96.0.10:80 --for 61s", "--for \"61s\": want a duration as 30s, from 1s to 60s in whole seconds"},
		{"trace 10.96.0.10:80 --for 1500ms", "--for \"1500ms\": want a duration as 30s, from 1s to 60s in whole seconds"},
		{"journal --since 0s", "--since \"0s\": want a duration as 90m or 24h, from 1s to 87600h"},
		{"apply -f x.yaml --rollout 100% --bake -1s", "--bake \"-1s\": want a duration as 90s or 5m, at least 0s"},
		{"wait --timeout 2h", "--timeout \"2h\": want a duration as 500ms, 30s or 2m, at most 1h"},
		{"completion", "completion for which shell? Give one of bash, zsh, fish"},
		{"completion csh", "there is no completion for \"csh\": give one of bash, zsh, fish"},
		{"down", "down: this removes all that svcctl programmed: no Service is reachable through this box, and connections through it end; repeat it with --yes"},
		{"fleet boxes -o yaml", "-o \"yaml\": want one of table, json"},
		{"fleet status -o json", "fleet status has no flag --o: run `svcctl fleet status --help`"},
		{"fleet backup dir --from x", "fleet backup has no flag --from: run `svcctl fleet backup --help`"},
		{"fleet", "fleet does what? Give one of init, status, boxes, accept, source, rollout, backup, restore, upgrade, reseal, leave"},
		{"fleet sources list", "fleet has no word \"sources\": did you mean source?"},
		{"admin", "admin does what? Give one of export, restore, alloc, pin, kubeconfig, token, env"},
		{"announce stat", "announce has no word \"stat\": did you mean status?"},
		{"help announce drains", "announce has no word \"drains\": did you mean drain?"},
		{"help status now", "status has no words of its own, and \"now\" is one: run `svcctl status --help`"},
		{"confirm --start 5m --back", "confirm: --back and --start exclude each other: give one"},
		{"confirm --yes", "confirm: --yes is about --removals, which asks: leave it out"},
		{"confirm --start 5d", "--start \"5d\": want a duration as 90s or 5m, from 1s to 24h"},
		{"top --closing", "--closing is about connections: give --connections, too"},
		{"top --connections --by rate", "--by is about ports of Services, and --connections lists connections: leave one of them out"},
		{"top -o wide", "-o wide is for --connections: ports have the forms table and json"},
		{"validate --schema x.yaml", "validate: --schema prints the schema and checks no manifest: leave out the files, -o and --strict"},
		{"status --socket=", "--socket \"\": the API needs a socket: name a path, as /run/svcctl/svcctl.sock"},
	} {
		b := newBench()
		code := b.run(strings.Fields(tt.args)...)
		if want := "svcctl: " + tt.want + "\n"; code != cli.ExitUsage || b.err.String() != want || b.out.Len() > 0 {
			t.Errorf("svcctl %s: exit %d, stdout %q, stderr\n%swant\n%s", tt.args, code, b.out.String(), b.err.String(), want)
		}
	}
}

func TestBare(t *testing.T) {
	b := newBench()
	if code := b.run(); code != cli.ExitUsage || !strings.Contains(b.err.String(), "Usage: svcctl VERB") {
		t.Errorf("svcctl: exit %d, stderr %q", code, b.err.String())
	}
	if code := b.run("--version"); code != cli.ExitDone || b.out.String() != "svcctl v0.1.0\n" {
		t.Errorf("svcctl --version: exit %d, %q", code, b.out.String())
	}
}

func TestVersion(t *testing.T) {
	b := newBench()
	if code := b.run("version"); code != cli.ExitDone || !strings.HasPrefix(b.out.String(), "svcctl v0.1.0 (go1.") {
		t.Errorf("exit %d, %q", code, b.out.String())
	}
	if code := b.run("version", "-o", "json"); code != cli.ExitDone || !strings.Contains(b.out.String(), `"version": "v0.1.0"`) {
		t.Errorf("exit %d, %q", code, b.out.String())
	}
}

func TestExitCodes(t *testing.T) {
	well, behind, unready, troubled, warned := wellStatus(), wellStatus(), wellStatus(), wellStatus(), wellStatus()
	behind.Synced, behind.Revision = false, wire.Revision{Accepted: 9, Programmed: 7}
	unready.Ready, unready.Reason = false, "the manifests are not read yet"
	troubled.Problems = []wire.Problem{{Message: "m", Severity: wire.SeverityError}}
	warned.Problems = []wire.Problem{{Message: "m", Severity: wire.SeverityWarning}}
	for _, tt := range []struct {
		args string
		fake *fake // nil: nobody serves
		code int
		err  string
	}{
		{"status", &fake{status: well}, cli.ExitDone, ""},
		{"status", &fake{status: warned}, cli.ExitDone, ""},
		{"status", &fake{status: behind}, cli.ExitNo, "svcctl: not synced: revision 9 is accepted, 7 is programmed\n"},
		{"status", &fake{status: unready}, cli.ExitNo, "svcctl: not ready: the manifests are not read yet\n"},
		{"status", &fake{status: troubled}, cli.ExitNo, "svcctl: 1 error: part of the configuration is not active\n"},
		{"status -o json", &fake{status: behind}, cli.ExitNo, "svcctl: not synced: revision 9 is accepted, 7 is programmed\n"},
		{"status", nil, cli.ExitUnreachable, "svcctl: cannot reach the appliance at SOCKET: is `svcctl serve` running? Another place is given with --socket\nsvcctl: the kernel has none of its rules: no Service is reachable through this box\n"},
		{"fleet boxes", &fake{status: well}, cli.ExitNo, "svcctl: this box belongs to no fleet: it was started without --fleet\n"},
		{"fleet accept", &fake{status: well}, cli.ExitNo, "svcctl: this box belongs to no fleet: it was started without --fleet\n"},
		{"wait", &fake{status: well}, cli.ExitDone, ""},
		{"wait --for ready", &fake{status: well}, cli.ExitDone, ""},
		{"wait --timeout 50ms", &fake{status: well, behind: errors.New("the disk is full")}, cli.ExitNo, "svcctl: not synced after 50ms: the disk is full\n"},
		{"wait --timeout 150ms", nil, cli.ExitUnreachable, "svcctl: cannot reach the appliance at SOCKET: is `svcctl serve` running? Another place is given with --socket\n"},
		{"down --yes", &fake{status: well}, cli.ExitNo, "svcctl: an appliance serves on SOCKET and would bring everything back: stop it first, or give --force\n"},
		{"down --yes --force", &fake{status: well}, cli.ExitDone, ""},
		{"down --yes", nil, cli.ExitDone, ""},
	} {
		b := newBench()
		socket := filepath.Join(t.TempDir(), "none")
		if tt.fake != nil {
			socket = serveFake(t, tt.fake)
		}
		code := b.run(append(strings.Fields(tt.args), "--socket", socket)...)
		got := strings.ReplaceAll(b.err.String(), socket, "SOCKET")
		if code != tt.code || got != tt.err {
			t.Errorf("svcctl %s: exit %d, stderr %q, want exit %d, %q", tt.args, code, got, tt.code, tt.err)
		}
	}
}

// TestWaitForStart waits for an appliance that is started meanwhile.
func TestWaitForStart(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	b := newBench()
	done := make(chan int)
	go func() { done <- b.run("wait", "--socket", socket, "--timeout", "60s") }()
	select {
	case code := <-done:
		t.Fatalf("exit %d before anybody serves: %s", code, b.err.String())
	case <-time.After(150 * time.Millisecond): // real time: nobody serves meanwhile
	}
	if err := os.Symlink(serveFake(t, &fake{status: wellStatus()}), socket); err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != cli.ExitDone {
		t.Errorf("exit %d: %s", code, b.err.String())
	}
}

func TestSocketPermission(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may open every socket")
	}
	socket := serveFake(t, &fake{status: wellStatus()})
	if err := os.Chmod(socket, 0); err != nil {
		t.Fatal(err)
	}
	b := newBench()
	if code := b.run("status", "--socket", socket); code != cli.ExitUnreachable || !strings.Contains(b.err.String(), "permission denied: run as root") {
		t.Errorf("exit %d: %s", code, b.err.String())
	}
}

func TestDownAsks(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for answer, want := range map[string]int{"y\n": cli.ExitDone, "Yes\n": cli.ExitDone, "y": cli.ExitDone, "\n": cli.ExitNo, "n\n": cli.ExitNo, "": cli.ExitNo} {
		b := newBench()
		b.StdinTTY, b.In = true, strings.NewReader(answer)
		code := b.run("down", "--socket", none)
		if code != want || (b.downs == 1) != (want == cli.ExitDone) {
			t.Errorf("answer %q: exit %d, %d removals", answer, code, b.downs)
		}
		if !strings.Contains(b.err.String(), "[y/N]") {
			t.Errorf("it did not ask: %q", b.err.String())
		}
	}
}

func TestDownFails(t *testing.T) {
	b := newBench()
	b.Env.Down = func(context.Context) error { return errors.New("open nf_tables: not permitted: run as root") }
	code := b.run("down", "--yes", "--socket", filepath.Join(t.TempDir(), "none"))
	if code != cli.ExitNo || b.err.String() != "svcctl: open nf_tables: not permitted: run as root\n" {
		t.Errorf("exit %d: %s", code, b.err.String())
	}
}

func TestRelease(t *testing.T) {
	f := &fake{}
	socket := serveFake(t, f)
	b := newBench()
	for want, held := range map[string]wire.Released{
		"12 Services released.\n":                                                    {Services: 12, Files: 3},
		"Objects of 3 files released.\n":                                             {Files: 3},
		"90 addresses and ports released that no object declares.\n":                 {Frontends: 90},
		"1 Service released.\n1 address or port released that no object declares.\n": {Services: 1, Files: 1, Frontends: 1},
	} {
		f.held = held
		if code := b.run("confirm", "--removals", "--socket", socket); code != cli.ExitDone || b.out.String() != want {
			t.Errorf("exit %d: %s%s", code, b.out.String(), b.err.String())
		}
	}
	if code := b.run("confirm", "--removals", "--socket", socket); code != cli.ExitDone || b.out.String() != "Nothing is held.\n" {
		t.Errorf("exit %d: %s%s", code, b.out.String(), b.err.String())
	}
}

// The doctor knows what a serving appliance keeps in force.
func TestDoctorTellsWhatIsHeld(t *testing.T) {
	f := &fake{}
	f.status.Problems = []wire.Problem{{Reason: "UnknownServicesHeld", Severity: wire.SeverityError,
		Message: "data directory /d was new, but the kernel serves 3 addresses; they stay in force as they are: put it back"}}
	b := newBench()
	if code := b.run("doctor", "--socket", serveFake(t, f)); code != cli.ExitNo || !strings.Contains(b.out.String(), "/d was new") || !strings.Contains(b.out.String(), "-> put it back") {
		t.Errorf("exit %d: %s%s", code, b.out.String(), b.err.String())
	}
}

func TestDoctor(t *testing.T) {
	b := newBench()
	b.findings = []checkup.Finding{
		{Check: "kernel", Level: "ok", Message: "Linux 6.12 has all that is needed"},
		{Check: "rp_filter", Level: "warning", Message: "interfaces with a strict reverse path filter: eth0", Advice: strings.Repeat("loosen it ", 15)},
	}
	if code := b.run("doctor"); code != cli.ExitDone {
		t.Errorf("warnings alone: exit %d: %s", code, b.err.String())
	}
	b.findings = append(b.findings, checkup.Finding{Check: "forwarding", Level: "error", Message: "the box does not forward\nand says so twice", Advice: "run sysctl"})
	if code := b.run("doctor"); code != cli.ExitNo || b.err.String() != "svcctl: 1 thing wrong with this box\n" {
		t.Errorf("exit %d: %s", code, b.err.String())
	}
	golden(t, "doctor.txt", b.out.String())
	if code := b.run("doctor", "-o", "json"); code != cli.ExitNo {
		t.Errorf("exit %d: %s", code, b.err.String())
	}
	golden(t, "doctor.json", b.out.String())
}

func TestPlan(t *testing.T) {
	b := newBench()
	if code := b.run("plan", "-f", "a.yaml", "--filename", "b"); code != cli.ExitDone || b.out.String() != "table ip svcctl {\n}\n" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, b.out.String(), b.err.String())
	}
	if diff := cmp.Diff([]string{"a.yaml", "b"}, b.planned); diff != "" {
		t.Errorf("planned (-want +got):\n%s", diff)
	}
	if b.run("plan", "--manifests", "m"); len(b.planned) != 1 || b.planned[0] != "m" {
		t.Errorf("without -f it planned %q, want the manifests", b.planned)
	}
	warning := manifest.Problem{File: "a.yaml", Line: 3, Message: "kind Pod is not served here", Warning: true}
	refusal := manifest.Problem{File: "b.yaml", Line: 12, Column: 9, Field: "spec.ports[0].port", Message: "must be between 1 and 65535, inclusive"}
	var problems []manifest.Problem
	b.Env.Plan = func(_ config.Config, _ []string, _ io.Reader, w io.Writer) ([]string, []manifest.Problem, error) {
		_, err := io.WriteString(w, "table ip svcctl {\n}\n")
		return nil, problems, err
	}
	problems = []manifest.Problem{warning}
	if code := b.run("plan", "-f", "x"); code != cli.ExitDone || b.err.String() != warning.String()+"\n" {
		t.Errorf("a warning: exit %d, stderr %q", code, b.err.String())
	}
	problems = []manifest.Problem{warning, refusal}
	want := warning.String() + "\n" + refusal.String() + "\nsvcctl: 1 problem: the ruleset is without what was refused\n"
	if code := b.run("plan", "-f", "x"); code != cli.ExitNo || b.err.String() != want || b.out.Len() == 0 {
		t.Errorf("a refusal: exit %d, stdout %q, stderr %q", code, b.out.String(), b.err.String())
	}
}

// TestPlanAgainstWhat refuses flags that mean nothing for what a plan begins with.
func TestPlanAgainstWhat(t *testing.T) {
	b := newBench()
	for line, want := range map[string]string{
		"plan -f x --against kernel":                                       `--against "kernel": want one of nothing, running`,
		"plan -f x --against running --load-balancer-pool 198.51.100.0/28": "--load-balancer-pool: the running appliance has settings of its own",
		"plan -f x -o json":                                                "--output: that is for a plan --against running",
		"plan -f x --in-place-of /etc/svcctl/manifests":                    "--in-place-of: that is for a plan --against running",
		"plan --against running":                                           "plan of what?",
		"plan --against running -f x -o yaml":                              `-o "yaml": want one of text, json`,
		"plan --against running -f - --in-place-of /m":                     "--in-place-of takes one directory with -f",
		"plan --against running -f x --in-place-of /m -n shop":             "--namespace is about objects that are applied",
		"plan --against running -f x --in-place-of /m --prune":             "--prune is about objects that are applied",
		"plan --against running -f x --prune":                              "--prune of which set?",
		"plan -f x --prune --applyset shop":                                "--prune, --applyset: that is for a plan --against running",
		"plan --against running -f x --field-manager gitops":               "is planned with --in-place-of DIR",
	} {
		if code := b.run(strings.Fields(line)...); code != cli.ExitUsage || !strings.Contains(b.err.String(), want) || b.out.Len() > 0 {
			t.Errorf("%s: exit %d, stderr %q, want %q", line, code, b.err.String(), want)
		}
	}
	file := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(file, []byte("{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := b.run("plan", "--against", "running", "-f", file, "--socket", filepath.Join(t.TempDir(), "none")); code != cli.ExitUnreachable {
		t.Errorf("without an appliance: exit %d, stderr %q", code, b.err.String())
	}
}
