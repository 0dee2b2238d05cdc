package prober

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/appliance/test/providertest"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// run runs a Prober until the test ends.
func run(t *testing.T, p *Prober) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		p.Run(ctx, func() {})
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Error("Run does not end")
		}
	})
}

// checkOf is a check that one answer decides.
func checkOf(kind health.Kind) health.Check {
	return health.Check{Kind: kind, Interval: 10 * time.Minute, Timeout: 30 * time.Second, Rise: 1, Fall: 1}
}

// first asks a target, and returns what came of the first probe that was made; and of none, what
// kept it from being made. A probe during which this host stood still is made again.
func first(t *testing.T, target health.Target) (health.Result, Stats) {
	t.Helper()
	p := New(Options{SourcePorts: DefaultPorts})
	p.Set("default/web", []Request{{Target: target}})
	run(t, p)
	var v health.Verdict
	var s Stats
	eventually(t, "an answer", func() bool {
		v, _ = p.Verdict(target)
		s = p.Stats()
		return v.Passes+v.Failures > 0 || s.NotMade > 0 && s.NotMadeWhy != stoodStill
	})
	if v.Passes+v.Failures == 0 {
		return health.Result{Outcome: health.Void, Why: s.NotMadeWhy}, s
	}
	return v.Last, s
}

// server serves connections by a script. It counts those that were accepted.
type server struct {
	addr     netip.AddrPort
	accepted atomic.Int64
}

// serve listens on an address, and closes each connection when its script ends.
func serve(t *testing.T, at string, script func(net.Conn)) *server {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := &server{addr: l.Addr().(*net.TCPAddr).AddrPort()}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.accepted.Add(1)
			go func() {
				defer c.Close()
				script(c)
			}()
		}
	}()
	return s
}

// hang reads until the other side ends.
func hang(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// say reads the head of a request, and answers.
func say(text string) func(net.Conn) {
	return func(c net.Conn) {
		readHead(c)
		_, _ = io.WriteString(c, text)
		hang(c)
	}
}

// readHead reads to the empty line that ends the head of a request, and returns it.
func readHead(c net.Conn) string {
	head := make([]byte, 0, 4096)
	for len(head) < cap(head) {
		n, err := c.Read(head[len(head):cap(head)])
		head = head[:len(head)+n]
		if err != nil || len(head) >= 4 && string(head[len(head)-4:]) == "\r\n\r\n" {
			break
		}
	}
	return string(head)
}

// closed is an address without a listener.
func closed(t *testing.T, host string) netip.AddrPort {
	t.Helper()
	return netip.AddrPortFrom(netip.MustParseAddr(host), uint16(providertest.FreePort(t)))
}

var loopbacks = []string{"127.0.0.1", "::1"}
