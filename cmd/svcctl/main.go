package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/appliance/announce"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/logqueue"
)

// version is set by the linker: -X main.version=v0.1.0.
var version string

// program is the command with everything it takes from its surroundings. It has more than 15 fields: one for
// each thing of the process (streams, environment, clock) or of the appliance that tests replace.
type program struct {
	version        string
	stdin          io.Reader
	stdout, stderr io.Writer
	log            *logqueue.Queue // in front of stderr while the appliance runs; nil before
	// The first three report which streams are terminals, color whether stdout takes colors.
	stdinTTY, stderrTTY, stdoutTTY, color bool
	packaged                              wire.Packaged
	settingsFile                          string // of the package, if that runs svcctl; "": none
	lookupEnv                             func(string) (string, bool)
	environ                               func() []string
	exec                                  func(path string, args, env []string) error // syscall.Exec
	now                                   func() time.Time

	serve func(ctx context.Context, cfg config.Config, log *slog.Logger) error
	plan  func(cfg config.Config, paths []string, stdin io.Reader, w io.Writer) (appliance.Planned, error)
	down  func(ctx context.Context) error
	// left looks for rules in the kernel, and for a process that holds them.
	left func() (frontends int, held bool, err error)

	announce func(ctx context.Context, cfg announce.Config, log *slog.Logger) error

	// edit has the user change a file with the command of an editor.
	edit func(ctx context.Context, editor, path string) error

	doctor func(ctx context.Context, cfg config.Config, serving bool) []appliance.Finding
}

func main() {
	if handover.Answer(os.Stdout) {
		return
	}
	_, noColor := os.LookupEnv("NO_COLOR") // no-color.org: whatever its value
	p := &program{
		version:   buildVersion(),
		stdin:     os.Stdin,
		stdout:    os.Stdout,
		stderr:    os.Stderr,
		stdinTTY:  isTerminal(os.Stdin),
		stderrTTY: isTerminal(os.Stderr),
		stdoutTTY: isTerminal(os.Stdout),
		color:     isTerminal(os.Stdout) && !noColor && os.Getenv("TERM") != "dumb",
		packaged:  appliance.Packaged(),
		lookupEnv: os.LookupEnv,
		environ:   os.Environ,
		exec:      syscall.Exec,
		now:       time.Now,
		serve:     appliance.Run,
		plan:      appliance.Plan,
		down:      appliance.Down,
		left:      appliance.Left,
		announce:  announce.Run,
		edit:      runEditor,
		doctor:    appliance.Doctor,
	}
	if p.packaged {
		p.settingsFile = "/etc/svcctl/svcctl.yaml"
	}
	os.Exit(p.main(context.Background(), os.Args[1:]))
}

// buildVersion is the version the linker was told, else the module's.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "v0.0.0-dev"
}
