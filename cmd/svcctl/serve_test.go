package main

import (
	"bytes"
	"context"
	"errors"
	stdlog "log"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/handover"
)

func TestServe(t *testing.T) {
	b := newBench()
	b.program.serve = func(ctx context.Context, cfg config.Config, log *slog.Logger) error {
		log.Debug("details")
		log.Info("programmed", "rev", 7)
		return errors.New("open nf_tables: operation not permitted: run as root")
	}
	code := b.run("serve", "--node-name", "gw1", "--manifests", "m", "--log-format", "json", "--log-level", "debug")
	if code != exitNo {
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
	b.program.serve = func(ctx context.Context, _ config.Config, _ *slog.Logger) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	if code := b.run("serve", "--node-name", "gw1"); code != exitDone || !strings.Contains(b.err.String(), "stopping; what is programmed stays in force") {
		t.Errorf("exit %d: %s", code, b.err.String())
	}
}

func TestSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		signals := make(chan os.Signal, 1)
		var exits []int
		ctx, stop := stopOnSignal(t.Context(), signals, slog.New(slog.NewTextHandler(&out, nil)), "what is programmed stays in force", func(code int) { exits = append(exits, code) })
		defer stop()

		signals <- syscall.SIGHUP
		synctest.Wait()
		if ctx.Err() != nil || len(exits) > 0 || !strings.Contains(out.String(), "SIGHUP is ignored") {
			t.Errorf("SIGHUP: %v, exits %v, log %s", ctx.Err(), exits, out.String())
		}
		signals <- syscall.SIGINT
		synctest.Wait()
		if ctx.Err() == nil || len(exits) > 0 {
			t.Errorf("the first signal: %v, exits %v", ctx.Err(), exits)
		}
		signals <- syscall.SIGTERM
		synctest.Wait()
		if len(exits) != 1 || exits[0] != 143 {
			t.Errorf("the second signal exits %v, want 143", exits)
		}
	})
}

// A hand-over may wait some seconds: who stops the program meanwhile means it.
func TestStoppedDuringAHandOver(t *testing.T) {
	var out bytes.Buffer
	program := filepath.Join(t.TempDir(), "svcctl")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho svcctl hand-over 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	before := os.Args[0]
	os.Args[0] = program // one that takes over
	defer func() { os.Args[0] = before }()
	signals, exits := make(chan os.Signal, 1), make(chan int, 1)
	ctx, stop := stopOnSignal(t.Context(), signals, slog.New(slog.NewTextHandler(&out, nil)), "what is programmed stays in force", func(code int) { exits <- code })
	defer stop()
	signals <- syscall.SIGUSR2
	<-ctx.Done()
	if !handover.IsRequested(ctx) {
		t.Fatal(context.Cause(ctx), out.String())
	}
	signals <- syscall.SIGTERM
	if code := <-exits; code != 0 || !strings.Contains(out.String(), "stopped instead of handing over") {
		t.Errorf("exit %d, log %s", code, out.String())
	}
}

// What an endpoint sends besides its answers, which net/http logs, does not come into the log; other lines of libraries do.
func TestEndpointsWriteNothingIntoTheLog(t *testing.T) {
	b := newBench()
	b.program.serve = func(context.Context, config.Config, *slog.Logger) error {
		stdlog.Printf("Unsolicited response received on idle HTTP channel starting with %q; err=%v", "forged", nil)
		stdlog.Print("of a library")
		return nil
	}
	b.run("serve", "--node-name", "gw1", "--manifests", "m")
	if got := b.err.String(); strings.Contains(got, "forged") || !strings.Contains(got, "of a library") {
		t.Errorf("log:\n%s", got)
	}
}
