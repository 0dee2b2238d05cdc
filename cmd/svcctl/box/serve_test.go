package box

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"svcctl.io/svcctl/appliance/handover"
)

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
