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

// Repeat calls at once, at the time that was asked for, and on request; never when neither comes.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		wake, start := make(chan struct{}, 1), time.Now()
		var calls []time.Duration
		done := make(chan struct{})
		go func() {
			defer close(done)
			Repeat(ctx, wake, func() (next time.Time) {
				if calls = append(calls, time.Since(start)); len(calls) == 1 {
					next = start.Add(time.Minute)
				}
				return next
			})
		}()
		time.Sleep(time.Hour)
		Wake(wake)
		time.Sleep(time.Hour)
		cancel()
		<-done
		if len(calls) != 3 || calls[0] != 0 || calls[1] != time.Minute || calls[2] != time.Hour {
			t.Errorf("called after %v, want at once, after a minute and after an hour", calls)
		}
	})
}

// Sleep ends early with its context alone.
func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if !Sleep(ctx, time.Second/2) || time.Since(start) != time.Second/2 {
			t.Error("half a second is not over, or more than that")
		}
		if Sleep(ctx, time.Hour) || time.Since(start) != time.Second {
			t.Error("the end of the context is not noticed")
		}
	})
}
