package main

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/look"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// richStatus has a value in every field.
func richStatus() wire.Status {
	return wire.Status{
		Version: "v0.1.0", NodeName: "gw1", Packaged: true,
		Started:  time.Date(2025, 11, 17, 6, 12, 3, 0, time.UTC),
		Ready:    true,
		Synced:   false,
		Reason:   "",
		Revision: wire.Revision{Accepted: 1846291, Programmed: 1846290},
		Sources: []wire.Source{
			{Dir: "/etc/svcctl/manifests", State: wire.SourceOK, Files: 12},
			{Dir: "/srv/git/edge", State: wire.SourceUnavailable, Files: 3, Error: "no such file or directory"},
		},
		Counts: wire.Counts{Services: 12, ServicePorts: 15, Frontends: 33, Endpoints: 60, VIPs: 1},
		LastTransaction: &wire.Transaction{
			At: time.Date(2025, 11, 20, 9, 28, 2, 0, time.UTC), Duration: wire.Duration(1234567), Operations: 2, Elements: 1, Generation: 77,
		},
		Problems: []wire.Problem{
			{Object: "Service default/web", File: "/etc/svcctl/manifests/web.yaml", Line: 12, Column: 9, Field: "spec.ports[0].port",
				Reason: "FieldValueInvalid", Message: "Invalid value: 0: must be between 1 and 65535, inclusive", Severity: wire.SeverityError},
			{Object: "Service default/api", File: "/etc/svcctl/manifests/api.yaml", Line: 3, Column: 1,
				Reason: "SourceRanges", Message: "IPv6 is closed: no range is given for it", Severity: wire.SeverityWarning},
			{File: "/etc/svcctl/manifests/broken.yaml", Line: 4, Reason: "Syntax", Message: "mapping values are not allowed here; the last good content stays in force",
				Severity: wire.SeverityError},
		},
		Kernel:         wire.Kernel{Release: "6.18.0", Features: []string{"destroy", "owner"}, Missing: []string{"persist"}},
		ForeignChanges: 1,
	}
}

func TestStatusPage(t *testing.T) {
	rich := richStatus()
	b := newBench()
	golden(t, "status/rich.txt", look.StatusPage(&rich, b.Now(), false, false))
	golden(t, "status/rich.color.txt", look.StatusPage(&rich, b.Now(), true, false))
	fresh := wire.Status{Version: "v0.1.0", NodeName: "gw1", Started: b.Now().Add(-1500 * time.Millisecond), Reason: "the manifests are not read yet",
		Synced: true, Kernel: wire.Kernel{Release: "6.1.0"}}
	golden(t, "status/fresh.txt", look.StatusPage(&fresh, b.Now(), false, false))
}

// TestStatusDocument proves that -o json and -o yaml are one document each, and that
// it is the status.
func TestStatusDocument(t *testing.T) {
	rich := richStatus()
	socket := serveFake(t, &fake{status: rich})
	b := newBench()
	b.run("status", "--socket", socket, "-o", "json")
	golden(t, "status/rich.json", b.out.String())
	var fromJSON wire.Status
	if err := json.Unmarshal(b.out.Bytes(), &fromJSON); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rich, fromJSON); diff != "" {
		t.Errorf("-o json (-want +got):\n%s", diff)
	}
	b.run("status", "--socket", socket, "-o", "yaml")
	golden(t, "status/rich.yaml", b.out.String())
	var tree any
	if err := yaml.Unmarshal(b.out.Bytes(), &tree); err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	var fromYAML wire.Status
	if err := json.Unmarshal(body, &fromYAML); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rich, fromYAML); diff != "" {
		t.Errorf("-o yaml (-want +got):\n%s", diff)
	}
}

// TestStatusDocumented proves that help names every field of the document.
func TestStatusDocumented(t *testing.T) {
	rich := richStatus()
	rich.Reason = "x" // so that no field is left out
	body, err := json.Marshal(rich)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(body, &tree); err != nil {
		t.Fatal(err)
	}
	status, _ := root().Find([]string{"status"})
	help := status.About
	var check func(v any)
	check = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				if !strings.Contains(help, key) {
					t.Errorf("help does not name the field %s", key)
				}
				check(value)
			}
		case []any:
			for _, item := range v {
				check(item)
			}
		}
	}
	check(tree)
}

func TestProblemLine(t *testing.T) {
	for want, p := range map[string]wire.Problem{
		"a.yaml:3:1: Service default/web: spec.type: no": {File: "a.yaml", Line: 3, Column: 1, Object: "Service default/web", Field: "spec.type", Message: "no"},
		"a.yaml: no":                            {File: "a.yaml", Message: "no"},
		"Service default/web: no":               {Object: "Service default/web", Message: "no"},
		"a.yaml:3: warning: no":                 {File: "a.yaml", Line: 3, Message: "no", Severity: wire.SeverityWarning},
		`a.yaml: unknown field "spec.x"`:        {File: "a.yaml", Field: "spec.x", Message: `unknown field "spec.x"`},
		"a.yaml: spec.x: Invalid":               {File: "a.yaml", Field: "spec.x", Message: "spec.x: Invalid"},
		`a.yaml: name "x\n\x1b[31m" is no name`: {File: "a.yaml", Message: "name \"x\n\x1b[31m\" is no name"},
	} {
		if got := p.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0s": -time.Second, "59s": 59900 * time.Millisecond, "1m0s": time.Minute, "2h3m": 2*time.Hour + 3*time.Minute + time.Second, "3d4h": 76*time.Hour + 59*time.Minute,
	} {
		if got := output.Span(d); got != want {
			t.Errorf("span(%s) is %s, want %s", d, got, want)
		}
	}
	for want, d := range map[string]time.Duration{"0s": 0, "412ns": 412, "1.23µs": 1234, "1.23ms": 1234567, "2.35s": 2345678901} {
		if got := output.Shortest(d); got != want {
			t.Errorf("shortest(%d) is %s, want %s", d, got, want)
		}
	}
}

func TestStdoutFails(t *testing.T) {
	b := newBench()
	b.Out = failingWriter{}
	if code := b.run("version"); code != cli.ExitNo || b.err.String() != "svcctl: write to stdout: disk full\n" {
		t.Errorf("exit %d: %q", code, b.err.String())
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// A stopped appliance: status has the next step as it is installed, and what the kernel still serves.
func TestStatusWithoutAppliance(t *testing.T) {
	b := newBench()
	b.env["SVCCTL_SOCKET"] = filepath.Join(t.TempDir(), "s")
	b.frontends = 3
	for _, tt := range []struct {
		packaged wire.Packaged
		args     []string
		held     bool
		err      error
		want     []string // in stderr
		not      string
	}{
		{false, []string{"status"}, false, nil, []string{"is `svcctl serve` running?", "the kernel serves 3 frontends of Services"}, "systemctl"},
		{true, []string{"status"}, false, nil, []string{"svcctl is not running", "its rules stay in force. Start it: `systemctl start svcctl`", "3 frontends"}, "svcctl serve"},
		{true, []string{"get", "svc"}, false, nil, []string{"svcctl is not running", "`systemctl start svcctl`"}, "frontends"},
		{true, []string{"status", "--socket", b.env["SVCCTL_SOCKET"]}, true, nil, []string{"is `svcctl serve` running?", "another svcctl serves in this network namespace"}, "systemctl"},
		{true, []string{"status"}, false, errors.New("permission denied"), []string{"svcctl is not running"}, "permission"},
	} {
		b.Packaged, b.held, b.leftErr = tt.packaged, tt.held, tt.err
		if code := b.run(tt.args...); code != cli.ExitUnreachable {
			t.Errorf("%v: exit %d", tt.args, code)
		}
		for _, want := range tt.want {
			if !strings.Contains(b.err.String(), want) {
				t.Errorf("%v: no %q in %q", tt.args, want, b.err.String())
			}
		}
		if strings.Contains(b.err.String(), tt.not) {
			t.Errorf("%v: %q in %q", tt.args, tt.not, b.err.String())
		}
	}
}
