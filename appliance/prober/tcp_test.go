package prober

import (
	"net"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/health"
)

// A check by TCP passes, and the server's program does not hear of it: of 40 checks, accept() sees
// next to none. Whoever completes the handshake is accepted each time. A busy host may be late to
// close one, by more than the 200 ms that the kernel holds an acknowledgment.
func TestHalfOpen(t *testing.T) {
	for _, host := range loopbacks {
		s := serve(t, net.JoinHostPort(host, "0"), hang)
		target := health.Target{Addr: s.addr, Check: checkOf(health.TCP)}
		target.Check.Interval = 40 * time.Millisecond
		p := New(Options{SourcePorts: DefaultPorts})
		p.Set("default/web", []Request{{Target: target}})
		run(t, p)
		const checks = 40
		eventually(t, "checks", func() bool { return p.Stats().Checks[health.TCP][health.Pass] >= checks })
		p.Set("default/web", nil)
		c, err := net.Dial("tcp", s.addr.String()) // behind all others in the queue of accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		eventually(t, "a connection of a client", func() bool { return s.accepted.Load() > 0 })
		if got := s.accepted.Load(); got > checks/4 {
			t.Errorf("%s: the server accepted %d connections beside %d checks, want 1", host, got, checks)
		}
		if v := p.Stats(); v.Checks[health.TCP][health.Refused]+v.Checks[health.TCP][health.Silent] > 0 {
			t.Errorf("%s: checks failed: %v", host, v.Checks[health.TCP])
		}
	}
}

func TestTCPRefused(t *testing.T) {
	for _, host := range loopbacks {
		r, _ := first(t, health.Target{Addr: closed(t, host), Check: checkOf(health.TCP)})
		if r.Outcome != health.Refused || r.Why != "connection refused" {
			t.Errorf("%s: %+v, want a refusal", host, r)
		}
	}
}
