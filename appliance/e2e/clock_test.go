package e2e

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// setClock moves the clock of this machine. Everything else on the
// machine sees that, so it has to be a virtual one, which appliance/e2e/kernels boots.
func setClock(t *testing.T, by time.Duration) {
	t.Helper()
	now := unix.NsecToTimespec(time.Now().Add(by).UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
		t.Fatalf("set the clock: %v", err)
	}
}

// A clock that jumps by a day, forth and back, is no reason to judge anybody: a single failure would
// take an endpoint out. Checks go on in their time, and an endpoint that stops is noticed.
func Test174_clock_is_set(t *testing.T) {
	if os.Getenv("SVCCTL_VIRTUAL_MACHINE") == "" {
		t.Skip("SKIPPED: root may set the clock of a virtual machine alone: make kernels")
	}
	b := newBox(t, metered)
	server := healthAt(t, b.L1, 9000)
	b.write("web.yaml", func(f family) []string {
		return b.askedOften(f, "web", "http/healthz", 41, 9000, 1, "svcctl.io/health-check-interval: 300ms", "svcctl.io/health-check-timeout: 30s")
	})
	b.svcctl.Start()
	for _, by := range []time.Duration{24 * time.Hour, -48 * time.Hour, 24 * time.Hour} {
		b.goesOn(t, outcome("http", "pass"), 8)
		setClock(t, by)
		b.goesOn(t, outcome("http", "pass"), 8)
	}
	if n := b.metric(t, `svcctl_health_transitions_total{to="down"}`); n != 0 {
		t.Errorf("%d endpoints went down as the clock was set", n)
	}
	server.mode.Store(serves5)
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "web"), "EndpointDown", "500")
	}
}
