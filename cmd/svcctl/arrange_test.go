package main

import (
	"slices"
	"strings"
	"testing"
)

func TestArrange(t *testing.T) {
	verbs := newBench().verbs()
	for line, want := range map[string]string{
		"get svc web -o yaml":             "get --output=yaml -- svc web",
		"get -o=yaml svc":                 "get --output=yaml -- svc",
		"get svc -oyaml -nshop -Aw":       "get --output=yaml --namespace=shop --all-namespaces --watch -- svc",
		"get svc --output yaml":           "get --output=yaml -- svc",
		"-n shop get svc":                 "get --namespace=shop -- svc",
		"--socket /s -n shop status":      "status --socket=/s --namespace=shop",
		"-nshop --server=gw:6443 get svc": "get --namespace=shop --server=gw:6443 -- svc",
		"get svc -l app=web -- -odd":      "get --selector=app=web -- svc -odd",
		"apply -f - --dry-run -f x":       "apply --filename=- --dry-run --filename=x",
		"apply --wait=5s -f x":            "apply --wait=5s --filename=x",
		"delete svc web --wait=false":     "delete --wait=false -- svc web",
		"env -n shop -- ls -l":            "env -n shop -- ls -l", // the command's flags are its own
		"env ls -l":                       "env ls -l",
		"serve -x":                        "serve -x",
		"serve --zone":                    "serve --zone",
		"get --frob svc":                  "get --frob -- svc",
		"get -h":                          "get -h",
		"--version":                       "--version",
		"frob -n x":                       "frob -n x",
		"":                                "",
	} {
		if got := strings.Join(arrange(verbs, strings.Fields(line)), " "); got != want {
			t.Errorf("%q\ngot  %q\nwant %q", line, got, want)
		}
	}
}

func TestConnect(t *testing.T) {
	for _, tt := range []struct {
		args []string
		env  map[string]string
		code int
		err  string
	}{
		{[]string{"status", "--socket", "/none", "--server", "gw:1"}, nil, exitUsage, "--socket and --server name two appliances"},
		{[]string{"status", "--socket", "/none"}, map[string]string{"SVCCTL_SERVER": "gw:1"}, exitUnreachable, "cannot reach the appliance at /none"},
		{[]string{"status", "--server", "http://gw:1"}, nil, exitUsage, "--server: \"http://gw:1\" is no address of an appliance: want https://HOST:PORT"},
		{[]string{"status"}, map[string]string{"SVCCTL_SERVER": "gw/path"}, exitUsage, "SVCCTL_SERVER: \"gw/path\" is no address"},
		{[]string{"status", "--server", "127.0.0.1:1", "--token", "t"}, nil, exitUnreachable, "is `svcctl serve --listen` running there?"},
		{[]string{"status", "--server", "gw:1", "--token-file", "/none/t"}, nil, exitUsage, "--token-file: open /none/t: no such file"},
		{[]string{"status", "--server", "gw:1", "--ca", "/none/ca"}, nil, exitUsage, "--ca: open /none/ca: no such file"},
		{[]string{"status", "--server", "gw:1", "--ca", "arrange_test.go"}, nil, exitUsage, "the CA has no certificate in PEM"},
	} {
		b := newBench()
		if tt.env != nil {
			b.env = tt.env
		}
		if code := b.run(tt.args...); code != tt.code || !strings.Contains(b.err.String(), tt.err) {
			t.Errorf("%v, %v: exit %d, %s", tt.args, tt.env, code, b.err.String())
		}
	}
}

func TestMergePatch(t *testing.T) {
	from := map[string]any{"a": "1", "b": map[string]any{"c": "2", "d": "3"}, "l": []any{"x"}, "gone": "y"}
	to := map[string]any{"a": "1", "b": map[string]any{"c": "5", "d": "3", "n": map[string]any{}}, "l": []any{"x", "y"}}
	got, err := encodeJSON(mergePatch(from, to), "")
	if err != nil {
		t.Fatal(err)
	}
	want := `{"b":{"c":"5","n":{}},"gone":null,"l":["x","y"]}`
	if strings.Join(strings.Fields(got), "") != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(mergePatch(from, from)) != 0 {
		t.Error("nothing is something")
	}
}

func TestPrunable(t *testing.T) {
	var names []string
	for _, k := range prunable() {
		names = append(names, k.Name)
	}
	if names[len(names)-1] != "Namespace" || slices.Contains(names, "Node") || slices.Contains(names, "Event") || !slices.Contains(names, "Service") {
		t.Errorf("%v", names)
	}
}
