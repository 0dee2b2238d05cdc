package main

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/discover"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

func TestDiscoverFlags(t *testing.T) {
	b := newBench()
	var got discover.Config
	b.Env.Discover = func(_ context.Context, c discover.Config, _ *slog.Logger) error { got = c; return nil }
	for args, want := range map[string]string{
		"":                                              "dns=dns",
		"--from consul --from docker":                   "consul=consul docker=docker own",
		"--from eu=consul+http://eu:8500":               "eu=consul",
		"--from targets+file:///srv/a.json":             "targets=targets",
		"--from targets+http://cmdb/sd?a=b":             "targets=targets",
		"--from a=dns --from b=dns+dns://192.0.2.53":    "a=dns b=dns",
		"--server gw1:6443 --token x --from nomad":      "nomad=nomad",
		"--from cmdb=targets+https://cmdb/sd?site=ber1": "cmdb=targets",
	} {
		var all []string
		code := b.run(append([]string{"discover"}, strings.Fields(args)...)...)
		for _, p := range got.Providers {
			text := p.Name + "=" + p.Kind
			if p.Own {
				text += " own"
			}
			all = append(all, text)
		}
		if text := strings.Join(all, " "); code != cli.ExitDone || text != want || got.Client == nil {
			t.Errorf("%s: exit %d %s: %q, want %q", args, code, b.err.String(), text, want)
		}
	}
	for args, want := range map[string]string{
		"--from exec":                  `"exec" is no kind of provider: give one of consul, dns, docker, nomad, targets`,
		"--from Eu=consul":             `"Eu" is no name for a provider`,
		"--from a_b=dns":               `"a_b" is no name for a provider`,
		"--from consul --from consul":  `there are two providers "consul": give one another name, as consul2=consul`,
		"--from targets":               "--from targets: its URL must be file:///PATH",
		"--from consul+ftp://x":        "--from consul+ftp://x: ",
		"--socket s --server gw1:6443": "name two appliances",
	} {
		if code := b.run(append([]string{"discover"}, strings.Fields(args)...)...); code != cli.ExitUsage || !strings.Contains(b.err.String(), want) {
			t.Errorf("%s: exit %d, %q, want %q", args, code, b.err.String(), want)
		}
	}
}
