package main

import (
	"context"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/appliance/announce"
	"svcctl.io/svcctl/appliance/discover"
	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/cmd/svcctl/change"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

// version is set by the linker: -X main.version=v0.1.0.
var version string

func main() {
	if handover.Answer(os.Stdout) {
		return
	}
	_, noColor := os.LookupEnv("NO_COLOR") // no-color.org: whatever its value
	env := &cli.Env{
		Version:   buildVersion(),
		In:        os.Stdin,
		Out:       os.Stdout,
		Err:       os.Stderr,
		StdinTTY:  cli.IsTerminal(os.Stdin),
		StderrTTY: cli.IsTerminal(os.Stderr),
		StdoutTTY: cli.IsTerminal(os.Stdout),
		Color:     cli.IsTerminal(os.Stdout) && !noColor && os.Getenv("TERM") != "dumb",
		Packaged:  appliance.Packaged(),
		LookupEnv: os.LookupEnv,
		Environ:   os.Environ,
		Exec:      syscall.Exec,
		Now:       time.Now,
		Serve:     appliance.Run,
		Plan:      appliance.Plan,
		Down:      appliance.Down,
		Left:      appliance.Left,
		Announce:  announce.Run,
		Discover:  discover.Run,
		Edit:      change.RunEditor,
		Doctor:    appliance.Doctor,
		Uplinks:   appliance.UplinkFinding,
	}
	if env.Packaged {
		env.SettingsFile = "/etc/svcctl/svcctl.yaml"
	}
	env.Client = func(v *cli.Verb) *client.Client { return settings.Client(env, v) }
	os.Exit(run(context.Background(), env, os.Args[1:]))
}

// buildVersion returns the version that the linker set (-X main.version), or else the version of the Go module.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "v0.0.0-dev"
}
