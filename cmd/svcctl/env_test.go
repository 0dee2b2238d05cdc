package main

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// serveEnv serves an appliance with one Service in the namespace shop.
func serveEnv(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	srv := api.New(api.Config{Socket: api.Socket{Path: socket}, Endpoints: []api.Endpoint{api.Answer(wire.GetEnvironment, func(_ *http.Request, q wire.EnvironmentQuery) (e wire.Environment, err error) {
		if q.Namespace == "shop" {
			e.Variables = []wire.Variable{
				{Name: "DB_SERVICE_HOST", Value: "fd00::1"}, {Name: "DB_PORT", Value: "tcp://[fd00::1]:5432"}, {Name: "1A_SERVICE_HOST", Value: "10.0.0.1"},
			}
		}
		return e, nil
	})}}, &fake{}, slog.New(slog.DiscardHandler))
	ln, err := srv.Listen()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- srv.Serve(t.Context(), ln) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

func TestEnvForms(t *testing.T) {
	b, socket := newBench(), serveEnv(t)
	const lines = "DB_SERVICE_HOST=fd00::1\nDB_PORT=tcp://[fd00::1]:5432\n"
	for _, tc := range []struct {
		form, want string
		said       bool
	}{
		{"shell", lines + "export DB_SERVICE_HOST DB_PORT\n", true},
		{"dotenv", lines, true},
	} {
		if code := b.run("admin", "env", "-n", "shop", "-o", tc.form, "--socket", socket); code != cli.ExitDone {
			t.Fatalf("%s: exit code %d: %s", tc.form, code, &b.err)
		}
		if b.out.String() != tc.want || strings.Contains(b.err.String(), "1A_SERVICE_HOST is left out") != tc.said {
			t.Errorf("%s: got\n%s\n%s", tc.form, &b.out, &b.err)
		}
	}
	var all map[string]string
	if code := b.run("admin", "env", "-n", "shop", "-o", "json", "--socket", socket); code != cli.ExitDone || json.Unmarshal(b.out.Bytes(), &all) != nil || len(all) != 3 || all["DB_SERVICE_HOST"] != "fd00::1" {
		t.Errorf("json: exit code %d: %s", code, &b.out)
	}
	if code := b.run("admin", "env", "--socket", socket); code != cli.ExitDone || b.out.String() != "" {
		t.Errorf("a namespace without Services: exit code %d: %q", code, &b.out)
	}
}

// The output means to a shell what it says.
func TestEnvInAShell(t *testing.T) {
	b, socket := newBench(), serveEnv(t)
	if code := b.run("admin", "env", "-n", "shop", "--socket", socket); code != cli.ExitDone {
		t.Fatal(code)
	}
	out, err := exec.Command("sh", "-c", `eval "$1"; sh -c 'echo $DB_PORT $DB_SERVICE_HOST'`, "sh", b.out.String()).CombinedOutput()
	if err != nil || string(out) != "tcp://[fd00::1]:5432 fd00::1\n" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestEnvRunsACommand(t *testing.T) {
	b, socket := newBench(), serveEnv(t)
	var ran []string
	b.Environ = func() []string { return []string{"PATH=/bin:/usr/bin", "DB_PORT=old", "HOME=/x"} }
	b.Exec = func(path string, args, env []string) error {
		ran = slices.Concat([]string{filepath.Base(path)}, args[1:], env)
		return nil
	}
	if code := b.run("admin", "env", "-n", "shop", "--socket", socket, "--", "sh", "-c", "exit 3"); code != cli.ExitDone || b.out.Len() > 0 {
		t.Fatalf("exit code %d: %s%s", code, &b.out, &b.err)
	}
	want := []string{"sh", "-c", "exit 3", "DB_SERVICE_HOST=fd00::1", "DB_PORT=tcp://[fd00::1]:5432", "1A_SERVICE_HOST=10.0.0.1", "PATH=/bin:/usr/bin", "HOME=/x"}
	if !slices.Equal(ran, want) {
		t.Errorf("ran %q, want %q", ran, want)
	}
	b.Exec = func(string, []string, []string) error { return errors.New("exec format error") }
	if code := b.run("admin", "env", "-n", "shop", "--socket", socket, "sh"); code != cli.ExitNo || !strings.Contains(b.err.String(), "exec format error") {
		t.Errorf("a command that does not run: exit code %d: %s", code, &b.err)
	}
	if code := b.run("admin", "env", "-n", "shop", "--socket", socket, "--", "there-is-no-such-program"); code != cli.ExitNo || !strings.Contains(b.err.String(), "there-is-no-such-program") {
		t.Errorf("a command that is not there: exit code %d: %s", code, &b.err)
	}
}

func TestEnvRefuses(t *testing.T) {
	b, socket := newBench(), serveEnv(t)
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-o", "toml"}, cli.ExitUsage, `-o "toml": want one of shell, dotenv, json`},
		{[]string{"-o", "json", "--", "sh"}, cli.ExitUsage, "with a command nothing is"},
		{[]string{"-n", "Shop"}, cli.ExitNo, `namespace="Shop": want lower case letters`},
		{[]string{"--socket", socket + "x"}, cli.ExitUnreachable, "is `svcctl serve` running?"},
	} {
		args := append([]string{"admin", "env"}, tc.args...)
		if tc.args[0] != "--socket" {
			args = append([]string{"admin", "env", "--socket", socket}, tc.args...)
		}
		if code := b.run(args...); code != tc.code || !strings.Contains(b.err.String(), tc.want) {
			t.Errorf("%v: exit code %d, want %d: %s", tc.args, code, tc.code, &b.err)
		}
	}
}
