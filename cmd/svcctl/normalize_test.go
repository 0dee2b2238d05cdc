package main

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

func TestNormalizeArgs(t *testing.T) {
	root := root()
	for line, want := range map[string]string{
		"get svc web -o yaml":                  "get --output=yaml -- svc web",
		"get -o=yaml svc":                      "get --output=yaml -- svc",
		"get svc -oyaml -nshop -Aw":            "get --output=yaml --namespace=shop --all-namespaces --watch -- svc",
		"get svc --output yaml":                "get --output=yaml -- svc",
		"-n shop get svc":                      "get --namespace=shop -- svc",
		"--socket /s -n shop status":           "status --socket=/s --namespace=shop",
		"-nshop --server=gw:6443 get svc":      "get --namespace=shop --server=gw:6443 -- svc",
		"get svc -l app=web -- -odd":           "get --selector=app=web -- svc -odd",
		"apply -f - --dry-run -f x":            "apply --filename=- --dry-run --filename=x",
		"apply --wait=5s -f x":                 "apply --wait=5s --filename=x",
		"delete svc web --wait=false":          "delete --wait=false -- svc web",
		"admin env -n shop -- ls -l":           "admin env -n shop -- ls -l", // the command's flags are its own
		"admin env ls -l":                      "admin env ls -l",
		"serve -x":                             "serve -x",
		"serve --zone":                         "serve --zone",
		"get --frob svc":                       "get --frob -- svc",
		"get -h":                               "get -h",
		"--version":                            "--version",
		"frob -n x":                            "frob -n x",
		"-n x frob":                            "frob",
		"announce drain --wait":                "announce drain --wait",
		"announce --socket /s drain -y":        "announce drain --socket=/s --yes",
		"--socket /s announce drain":           "announce drain --socket=/s",
		"announce --peer 1@192.0.2.1":          "announce --peer=1@192.0.2.1",
		"announce --vrid drain":                "announce --vrid=drain", // the value of a flag is no word
		"fleet --etcd x rollout --wait status": "fleet rollout status --etcd=x --wait",
		"fleet rollout status -o json":         "fleet rollout status --output=json",
		"fleet source take lb --box b":         "fleet source take --box=b -- lb",
		"admin --socket /s env -- ls -l":       "admin env --socket=/s -- ls -l",
		"admin alloc check --repair":           "admin alloc check --repair",
		"":                                     "",
	} {
		if got := strings.Join(cli.NormalizeArgs(root, append(settings.ConnectOptions(), settings.NamespaceOption()), strings.Fields(line)), " "); got != want {
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
		{[]string{"status", "--socket", "/none", "--server", "gw:1"}, nil, cli.ExitUsage, "--socket and --server name two appliances"},
		{[]string{"status", "--socket", "/none"}, map[string]string{"SVCCTL_SERVER": "gw:1"}, cli.ExitUnreachable, "cannot reach the appliance at /none"},
		{[]string{"status", "--server", "http://gw:1"}, nil, cli.ExitUsage, "--server: \"http://gw:1\" is no address of an appliance: want https://HOST:PORT"},
		{[]string{"status"}, map[string]string{"SVCCTL_SERVER": "gw/path"}, cli.ExitUsage, "SVCCTL_SERVER: \"gw/path\" is no address"},
		{[]string{"status", "--server", "127.0.0.1:1", "--token", "t"}, nil, cli.ExitUnreachable, "is `svcctl serve --listen` running there?"},
		{[]string{"status", "--server", "gw:1", "--token-file", "/none/t"}, nil, cli.ExitUsage, "--token-file: open /none/t: no such file"},
		{[]string{"status", "--server", "gw:1", "--ca", "/none/ca"}, nil, cli.ExitUsage, "--ca: open /none/ca: no such file"},
		{[]string{"status", "--server", "gw:1", "--ca", "normalize_test.go"}, nil, cli.ExitUsage, "the CA has no certificate in PEM"},
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
