package main

import (
	"context"
	"errors"
	stdlog "log"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

func TestServe(t *testing.T) {
	b := newBench()
	b.Env.Serve = func(ctx context.Context, cfg config.Config, log *slog.Logger) error {
		log.Debug("details")
		log.Info("programmed", "rev", 7)
		return errors.New("open nf_tables: operation not permitted: run as root")
	}
	code := b.run("serve", "--node-name", "gw1", "--manifests", "m", "--log-format", "json", "--log-level", "debug")
	if code != cli.ExitNo {
		t.Errorf("exit %d", code)
	}
	lines := strings.Split(strings.TrimSpace(b.err.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], `"level":"DEBUG"`) || !strings.Contains(lines[1], `"msg":"programmed","rev":7`) ||
		lines[2] != "svcctl: open nf_tables: operation not permitted: run as root" {
		t.Errorf("stderr:\n%s", b.err.String())
	}
	b.run("serve", "--node-name", "gw1")
	if err := b.err.String(); !strings.Contains(err, "level=INFO msg=programmed rev=7") || strings.Contains(err, "details") ||
		!strings.Contains(err, "level=WARN") || !strings.Contains(err, "see --manifests") {
		t.Errorf("stderr:\n%s", err)
	}
}

// TestServeStops sends a real signal to the program that serves.
func TestServeStops(t *testing.T) {
	b := newBench()
	b.Env.Serve = func(ctx context.Context, _ config.Config, _ *slog.Logger) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	if code := b.run("serve", "--node-name", "gw1"); code != cli.ExitDone || !strings.Contains(b.err.String(), "stopping; what is programmed stays in force") {
		t.Errorf("exit %d: %s", code, b.err.String())
	}
}

// What an endpoint sends besides its answers, which net/http logs, does not come into the log; other lines of libraries do.
func TestEndpointsWriteNothingIntoTheLog(t *testing.T) {
	b := newBench()
	b.Env.Serve = func(context.Context, config.Config, *slog.Logger) error {
		stdlog.Printf("Unsolicited response received on idle HTTP channel starting with %q; err=%v", "forged", nil)
		stdlog.Print("of a library")
		return nil
	}
	b.run("serve", "--node-name", "gw1", "--manifests", "m")
	if got := b.err.String(); strings.Contains(got, "forged") || !strings.Contains(got, "of a library") {
		t.Errorf("log:\n%s", got)
	}
}
