package task

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The first error ends all tasks, is named, and is returned only when all have returned.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		err := Run(t.Context(), slog.New(slog.DiscardHandler),
			Task{Name: "slow", Run: func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(time.Second)
				ended = true
				return nil
			}},
			Task{Name: "broken", Run: func(context.Context) error { return errors.New("no") }},
		)
		if err == nil || err.Error() != "broken: no" || !ended {
			t.Errorf("error %v, the other task has ended: %v", err, ended)
		}
	})
}

// Tasks that have nothing to do end while others begin.
func TestRunOfNothing(t *testing.T) {
	tasks := make([]Task, 200)
	for i := range tasks {
		tasks[i] = Task{Name: strconv.Itoa(i), Run: func(context.Context) error { return nil }}
	}
	for range 200 {
		if err := Run(t.Context(), slog.New(slog.DiscardHandler), tasks...); err != nil {
			t.Fatal(err)
		}
	}
}

// A task that does not end is named in the log.
func TestOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var logged strings.Builder
		done := make(chan error)
		release := make(chan struct{})
		go func() {
			done <- Run(ctx, slog.New(slog.NewTextHandler(&logged, nil)), Task{Name: "stubborn", Run: func(context.Context) error {
				<-release
				return nil
			}})
		}()
		cancel()
		time.Sleep(overdue + time.Second)
		close(release)
		if err := <-done; err != nil || !strings.Contains(logged.String(), "task=stubborn") {
			t.Errorf("error %v, logged %q", err, logged.String())
		}
	})
}
