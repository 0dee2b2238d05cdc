package main

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/report"
)

const (
	goodManifest = "apiVersion: v1\nkind: Service\nmetadata: {name: good}\nspec: {ports: [{port: 80}]}\n"
	oddManifest  = "apiVersion: v1\nkind: Service\nmetadata:\n  name: odd\n  annotations: {svcctl.io/connect-timeout: 2s}\nspec: {ports: [{port: 80}]}\n"
	badManifest  = "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec:\n  ports:\n  - port: 0\n    targetPort: 80\n---\n" +
		"apiVersion: v1\nkind: Service\nmetadata: {name: worse}\nspec:\n  bogus: <1>\n  ports: [{port: 80}]\n"
)

// validator is a bench in a directory of manifests, with the real plan.
func validator(t *testing.T, files map[string]string) *bench {
	t.Chdir(t.TempDir())
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b := newBench()
	b.Env.Plan = appliance.Plan
	return b
}

// TestValidate: every problem with its place, and an exit code for hooks.
func TestValidate(t *testing.T) {
	b := validator(t, map[string]string{"m/good.yaml": goodManifest, "m/odd.yaml": oddManifest, "m/sub/b ad.yaml": badManifest})
	const (
		odd   = `m/odd.yaml:5:17: warning: Service default/odd: metadata.annotations[svcctl.io/connect-timeout]: has no effect`
		bad   = `m/sub/b ad.yaml:6:5: Service default/bad: spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive`
		worse = `m/sub/b ad.yaml:13:3: Service default/worse: unknown field "spec.bogus"`
	)
	for _, tt := range []struct {
		args string
		code int
		want []string
		sum  string
	}{
		{"m/good.yaml", cli.ExitDone, nil, ""},
		{"m/odd.yaml", cli.ExitDone, []string{odd}, ""},
		{"--strict m/odd.yaml", cli.ExitNo, []string{odd}, "svcctl: 0 errors and 1 warning in 1 file\n"},
		{"m", cli.ExitNo, []string{odd, bad, worse}, "svcctl: 2 errors and 1 warning in 3 files\n"},
		{"-f m/sub --filename m/odd.yaml", cli.ExitNo, []string{odd, bad, worse}, "svcctl: 2 errors and 1 warning in 2 files\n"},
		{"m/sub m/odd.yaml", cli.ExitNo, []string{odd, bad, worse}, "svcctl: 2 errors and 1 warning in 2 files\n"},
		{"--manifests m/sub", cli.ExitNo, []string{bad, worse}, "svcctl: 2 errors and 0 warnings in 1 file\n"},
		{"m/none.yaml", cli.ExitNo, nil, "svcctl: read manifests: open m/none.yaml: no such file or directory\n"},
		{"", cli.ExitUsage, nil, "svcctl: validate what? Give files or directories, or - for stdin\n"},
		{"- -", cli.ExitUsage, nil, "svcctl: stdin can be read once, and - is given twice\n"},
		{"-o xml m", cli.ExitUsage, nil, "svcctl: -o \"xml\": want one of text, json, junit, sarif\n"},
	} {
		code := b.run(append([]string{"validate"}, strings.Fields(tt.args)...)...)
		got := strings.Split(strings.TrimSuffix(b.out.String(), "\n"), "\n")
		if b.out.Len() == 0 {
			got = nil
		}
		same := len(got) == len(tt.want)
		for i := range got {
			same = same && strings.HasPrefix(got[i], tt.want[i])
		}
		if code != tt.code || !same || b.err.String() != tt.sum {
			t.Errorf("validate %s: exit %d, stdout\n%s\nstderr %q", tt.args, code, b.out.String(), b.err.String())
		}
	}
	b.In = strings.NewReader(badManifest)
	if code := b.run("validate", "-"); code != cli.ExitNo || !strings.HasPrefix(b.out.String(), "stdin:6:5: ") || !strings.HasSuffix(b.err.String(), "in 1 file\n") {
		t.Errorf("of stdin: exit %d, %q %q", code, b.out.String(), b.err.String())
	}
}

// TestValidateForms: the reports of machines have what the text has.
func TestValidateForms(t *testing.T) {
	b := validator(t, map[string]string{"m/good.yaml": goodManifest, "m/odd.yaml": oddManifest, "m/sub/b ad.yaml": badManifest})
	forms := map[string]string{}
	for _, form := range []string{"json", "junit", "sarif"} {
		if code := b.run("validate", "m", "-o", form); code != cli.ExitNo {
			t.Errorf("-o %s: exit %d, %s", form, code, b.err.String())
		}
		forms[form] = b.out.String()
	}
	var found report.Report
	if err := json.Unmarshal([]byte(forms["json"]), &found); err != nil || len(found.Files) != 3 || found.Errors != 2 || found.Warnings != 1 || len(found.Problems) != 3 {
		t.Errorf("json: %v\n%s", err, forms["json"])
	}
	var suites struct {
		Suites []struct {
			Tests    int `xml:"tests,attr"`
			Failures int `xml:"failures,attr"`
			Cases    []struct {
				Name    string `xml:"name,attr"`
				Out     string `xml:"system-out"`
				Failure *struct {
					Text string `xml:",chardata"`
				} `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal([]byte(forms["junit"]), &suites); err != nil {
		t.Fatal(err)
	}
	suite := suites.Suites[0]
	if suite.Tests != 3 || suite.Failures != 1 || len(suite.Cases) != 3 {
		t.Fatalf("junit: %+v", suite)
	}
	if suite.Cases[0].Failure != nil || !strings.Contains(suite.Cases[1].Out, "has no effect") || suite.Cases[1].Failure != nil ||
		suite.Cases[2].Name != "m/sub/b ad.yaml" || strings.Count(suite.Cases[2].Failure.Text, "\n") != 2 {
		t.Errorf("junit:\n%s", forms["junit"])
	}
	type region struct{ StartLine, StartColumn int }
	var log struct {
		Version string
		Runs    []struct {
			Tool    struct{ Driver struct{ Rules []any } }
			Results []struct {
				Level     string
				Message   struct{ Text string }
				Locations []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
						Region           *region
					}
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(forms["sarif"]), &log); err != nil {
		t.Fatal(err)
	}
	results := log.Runs[0].Results
	if log.Version != "2.1.0" || len(results) != 3 || len(log.Runs[0].Tool.Driver.Rules) != 3 {
		t.Fatalf("sarif:\n%s", forms["sarif"])
	}
	place := results[1].Locations[0].PhysicalLocation
	if results[0].Level != "warning" || results[1].Level != "error" || place.ArtifactLocation.URI != "m/sub/b%20ad.yaml" ||
		place.Region == nil || *place.Region != (region{6, 5}) || !strings.HasPrefix(results[1].Message.Text, "Service default/bad: ") {
		t.Errorf("sarif:\n%s", forms["sarif"])
	}
}

// TestValidateWithoutSettings: what only the settings of a box decide is left out and counted, and judged as soon as there
// are some: given ones, or those of the package where it runs svcctl.
func TestValidateWithoutSettings(t *testing.T) {
	const manifest = "apiVersion: v1\nkind: Service\nmetadata: {name: lb}\nspec: {type: LoadBalancer, loadBalancerIP: 192.0.2.7, ports: [{port: 80}]}\n---\n" +
		"apiVersion: v1\nkind: Service\nmetadata: {name: np, annotations: {svcctl.io/source-sets: office}}\nspec: {type: NodePort, ports: [{port: 80}]}\n"
	b := validator(t, map[string]string{"m/a.yaml": manifest, "box.yaml": "loadBalancerPool: [198.18.0.0/24]\nmanifests: [m]\n", "none.yaml": "# nothing\n"})
	const left = "svcctl: 2 problems were left out, about pools and source sets, which are settings of the box: give --config FILE\n"
	for _, tt := range []struct {
		args, settings string
		code           int
		out, err       []string
	}{
		{"m", "", cli.ExitDone, nil, []string{left}},
		{"--manifests m", "", cli.ExitDone, nil, []string{left}},
		{"m", "gone.yaml", cli.ExitDone, nil, []string{left}},
		{"m --config box.yaml", "", cli.ExitNo, []string{"192.0.2.7 lies in no load balancer pool (198.18.0.1-198.18.0.254)", "there is no --source-set office"}, []string{"1 error and 1 warning in 1 file"}},
		{"m --config none.yaml", "box.yaml", cli.ExitNo, []string{"in no load balancer pool (there is none)", "there is no --source-set office"}, nil},
		{"", "box.yaml", cli.ExitNo, []string{"in no load balancer pool (198.18.0.1", "there is no --source-set office"}, []string{"svcctl: with the settings of box.yaml: --config names others\n"}},
		{"m --load-balancer-pool 192.0.2.0/24", "box.yaml", cli.ExitNo, []string{"there is no --source-set office"}, []string{"1 error and 0 warnings"}},
	} {
		b.Env.SettingsFile = tt.settings
		code := b.run(append([]string{"validate"}, strings.Fields(tt.args)...)...)
		if code != tt.code || strings.Count(b.out.String(), "\n") != len(tt.out) {
			t.Errorf("validate %s, %q: exit %d\n%s%s", tt.args, tt.settings, code, b.out.String(), b.err.String())
		}
		for _, want := range tt.out {
			if !strings.Contains(b.out.String(), want) {
				t.Errorf("validate %s, %q: %s, want %q", tt.args, tt.settings, b.out.String(), want)
			}
		}
		for _, want := range tt.err {
			if !strings.Contains(b.err.String(), want) {
				t.Errorf("validate %s, %q: stderr %s, want %q", tt.args, tt.settings, b.err.String(), want)
			}
		}
	}
}
