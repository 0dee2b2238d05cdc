package main

import (
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/fleet"
)

// A server whose certificate is not trusted, as etcd's is without --etcd-cacert.
func Test665_fleet_without_etcd(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	b := newBench()
	code := b.run("fleet", "init", "--fleet", "pop1", "--etcd", server.URL)
	if said := b.err.String(); code != cli.ExitNo || !strings.Contains(said, "no etcd answers: "+server.URL+": its certificate is of no CA that this host trusts") || !strings.Contains(said, "--etcd-cacert") {
		t.Errorf("exit %d, %s", code, said)
	}
}

// TestFlagsOfFleetSettings: messages name the settings of a fleet by flags that there are.
func TestFlagsOfFleetSettings(t *testing.T) {
	known := map[string]bool{}
	for _, s := range settings.Settings() {
		known[s.Name] = true
	}
	flags := config.FleetFlags()
	for field, flag := range flags {
		if name, _, _ := strings.Cut(flag, " "); !known[name] {
			t.Errorf("%s is named --%s, and there is no such flag", field, flag)
		}
	}
	var cfg config.Config
	cfg.Addresses.Allocate = config.AllocateNever
	text, err := cfg.FleetSettings()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range fleet.SettingLines(text, flags) {
		if !strings.HasPrefix(line, "--") {
			t.Errorf("%s is no flag", line)
		}
	}
}
