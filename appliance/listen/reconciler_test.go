package listen

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// Reconcile runs at once, after a Trigger and, while it asks for it, after the interval.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := NewReconciler[string](time.Minute)
		var runs atomic.Int32
		var failing atomic.Bool
		go r.Run(ctx, func() ([]string, bool) {
			runs.Add(1)
			if failing.Load() {
				return []string{"in use"}, true
			}
			return nil, false
		})
		expect := func(what string, want int32, changed bool) {
			t.Helper()
			synctest.Wait()
			if runs.Load() != want || r.Pending() {
				t.Errorf("%s: %d runs, want %d; pending %t", what, runs.Load(), want, r.Pending())
			}
			if got := len(r.Changed()) > 0; got != changed {
				t.Errorf("%s: changed %t, want %t", what, got, changed)
			}
		}
		expect("at the start", 1, false)
		time.Sleep(time.Hour)
		expect("with nothing to do", 1, false)
		failing.Store(true)
		r.Trigger()
		expect("after a change", 2, true)
		if problems := r.Problems(); len(problems) != 1 || problems[0] != "in use" {
			t.Errorf("problems %q", problems)
		}
		time.Sleep(time.Minute)
		expect("after the interval", 3, true)
		<-r.Changed()
		time.Sleep(time.Minute)
		expect("with the same problems", 4, false)
		failing.Store(false)
		r.Trigger()
		expect("after the cure", 5, true)
		<-r.Changed()
		time.Sleep(time.Hour)
		expect("with nothing to do again", 5, false)
	})
}

func TestAdvice(t *testing.T) {
	for errno, want := range map[syscall.Errno]string{
		syscall.EADDRINUSE:    "stop the program that has it (`ss -tlnp sport = :80` names it), or give the Service another port",
		syscall.EADDRNOTAVAIL: "give this host the address, or leave it out of --nodeport-addresses",
		syscall.EMFILE:        "raise the limit of open files (LimitNOFILE)",
		syscall.EACCES:        "let the program bind low ports (CAP_NET_BIND_SERVICE), or give the Service another port",
		syscall.EIO:           "it is tried again every few seconds",
	} {
		if got := Advice(fmt.Errorf("listen: %w", os.NewSyscallError("bind", errno)), 80, "t", "another port"); got != want {
			t.Errorf("%v: %s, want %s", errno, got, want)
		}
	}
}
