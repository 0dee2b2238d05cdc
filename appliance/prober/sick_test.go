package prober

import (
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/health"
)

// many are addresses of this host, 127.1.0.0 and up, with a port.
func many(n int, port uint16) (all []netip.AddrPort) {
	for i := range n {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), port))
	}
	return all
}

// slowly answers HTTP after a while.
func slowly(after time.Duration) func(net.Conn) {
	return func(c net.Conn) {
		readHead(c)
		time.Sleep(after) // real time: the server is slow
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	}
}

// A host that has 64 descriptors for 150 endpoints judges none of those that it cannot ask, says
// so, and asks each in its turn.
func TestFewDescriptors(t *testing.T) {
	s := serve(t, "0.0.0.0:0", slowly(500*time.Millisecond))
	check := health.Check{Kind: health.HTTP, Interval: time.Second, Timeout: time.Minute, Rise: 1, Fall: 1}
	c := do(t, nil, errand{Addrs: many(150, s.addr.Port()), Checks: []health.Check{check}, Files: 64})
	eventually(t, "all are up, and some were not asked", func() bool {
		r := c.report()
		return r.Targets[health.Up] == 150 && r.count(health.Void) > 0
	})
	asked := c.report().count(health.Pass)
	eventually(t, "they are asked on", func() bool {
		r := c.report()
		return r.count(health.Pass) > asked+150 && r.NotMade > 0 && strings.Contains(r.NotMadeWhy, "too many open files")
	})
	if r := c.report(); r.Transitions[health.Down] > 0 || r.count(health.Refused)+r.count(health.Silent) > 0 {
		t.Errorf("endpoints were judged by this host's descriptors: %+v", r)
	}
}

// A process that is stopped for 4 s in the middle of its work flips nothing, though a single failure
// would: what fell silent meanwhile is asked again.
func TestStopped(t *testing.T) {
	s := serve(t, "0.0.0.0:0", slowly(500*time.Millisecond))
	// Beside other programs the server may take a while. Of the probes that are under way when the
	// process stops all would end in silence.
	check := health.Check{Kind: health.HTTP, Interval: time.Second, Timeout: 3500 * time.Millisecond, Rise: 1, Fall: 1}
	half := health.Check{Kind: health.TCP, Interval: time.Second, Timeout: time.Second, Rise: 1, Fall: 1}
	c := do(t, nil, errand{Addrs: many(100, s.addr.Port()), Checks: []health.Check{check, half}, Start: health.Up})
	before := c.report()
	eventually(t, "all were asked, and some are", func() bool {
		r := c.report()
		return r.count(health.Pass) > before.count(health.Pass)+300 && r.UnderWay > 20
	})
	// If all that was under way had its answer meanwhile, nothing fell silent, and it is stopped again.
	eventually(t, "what was under way is asked again", func() bool {
		if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second) // real time: longer than a check may take
		if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		stopped := c.report()
		eventually(t, "all were asked since", func() bool { return c.report().count(health.Pass) > stopped.count(health.Pass)+300 })
		return c.report().count(health.Void) > before.count(health.Void)
	})
	if r := c.report(); r.Transitions[health.Down] > 0 || r.Targets[health.Up] != 200 {
		t.Errorf("endpoints were judged by a process that was stopped: %+v", r)
	}
}
