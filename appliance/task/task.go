package task

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Task is work that runs as long as the program.
type Task struct {
	// Name names the Task in the log and in errors.
	Name string
	// Run does the work until ctx is done, and then returns nil. If it returns an error, all Tasks end.
	Run func(ctx context.Context) error
}

// overdue is the time after the end of the context at which Tasks that are still running are logged.
const overdue = 10 * time.Second

// Run runs all Tasks until ctx is done or one of them fails, and returns when all have
// returned. The error names the Task that failed first. A panic of a Task ends the process.
func Run(ctx context.Context, log *slog.Logger, tasks ...Task) error {
	group, ctx := errgroup.WithContext(ctx)
	var mu sync.Mutex
	running := make(map[string]bool, len(tasks))
	for _, t := range tasks { // all of them before the first one can end
		running[t.Name] = true
	}
	for _, t := range tasks {
		group.Go(func() error {
			err := t.Run(ctx)
			mu.Lock()
			delete(running, t.Name)
			mu.Unlock()
			if err != nil {
				return fmt.Errorf("%s: %w", t.Name, err)
			}
			return nil
		})
	}
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(overdue, func() {
			mu.Lock()
			defer mu.Unlock()
			for name := range running {
				log.Warn("the process waits for a task to end", "task", name)
			}
		})
	})
	defer stop()
	return group.Wait()
}

// Repeat calls do at once and after each receive from wake, until ctx is done. It also calls do at the time next that the last call returned, unless
// that is the zero Time.
func Repeat(ctx context.Context, wake <-chan struct{}, do func() (next time.Time)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
		}
		if next := do(); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}

// Sleep waits for d or until ctx is done. It returns true if d has passed.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Send sends a value to a channel. It returns false if ctx is done first.
func Send[T any](ctx context.Context, to chan<- T, v T) bool {
	select {
	case to <- v:
		return true
	case <-ctx.Done():
		return false
	}
}

// Wake sends to a channel of capacity 1 without blocking, so that the next receive succeeds. It does nothing if the channel is full.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // a value waits already
	}
}

// LastError holds the error of the last attempt of an operation that is retried. The zero value holds nil. Its methods may be called concurrently.
type LastError struct {
	mu  sync.Mutex
	err error
}

// Err returns the error of the last attempt, nil if it succeeded.
func (l *LastError) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// SetErr sets the error of an attempt, nil if it succeeded. It reports whether one of this attempt and the previous one failed, and the other did not.
func (l *LastError) SetErr(err error) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed = (err == nil) != (l.err == nil)
	l.err = err
	return changed
}

// Log sets the error of an attempt like SetErr, and logs the first one to fail, with further attributes, and the first one to succeed again.
func (l *LastError) Log(log *slog.Logger, err error, failing, again string, more ...any) (changed bool) {
	changed = l.SetErr(err)
	switch {
	case changed && err != nil:
		log.Warn(failing, append([]any{"err", err}, more...)...)
	case changed:
		log.Info(again)
	}
	return changed
}
