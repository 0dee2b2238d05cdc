package soak

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

const (
	tcpConnections = 100
	udpFlows       = 50
	beat           = 200 * time.Millisecond // between two packets of a lasting connection
	repeat         = 5 * time.Second        // after which a datagram counts as lost, and is sent again
	resend         = time.Second            // after which a SYN is sent again (RFC 6298)
	// patience ends the wait for an answer. A connection fails by a refusal, a reset, the wrong server, or silence that lasts: on a busy
	// machine an answer takes its time, and that is none of these.
	patience = time.Minute
)

// load is traffic that goes on until it is stopped, and what became of it.
type load struct {
	b       *bench
	done    chan struct{}
	workers sync.WaitGroup
	began   time.Time

	asked, echoed, datagrams, lost atomic.Int64

	mu      sync.Mutex
	broken  []string  // lasting connections that ended or moved
	failed  []failure // new connections that failed
	windows []window  // in which new connections may fail
	open    *window   // the one that is not over
	slowest time.Duration
	slow    int // took longer than resend
}

type window struct{ from, to time.Time }

type failure struct {
	window
	what string
}

// start begins the load: lasting connections first, then new ones at the rate.
func (b *bench) start(t *testing.T) *load {
	t.Helper()
	l := &load{b: b, done: make(chan struct{}), began: time.Now()}
	t.Cleanup(l.end)
	hosts := []*netlab.Host{b.IN, b.EXT}
	for i := range tcpConnections {
		to := netip.AddrPortFrom(vip(1, i%lasting+1, i%2 == 1), 80)
		conn, err := hosts[i/2%2].Dial(to, netlab.Within(patience))
		if err != nil {
			t.Fatalf("lasting connection to %s: %v", to, err)
		}
		l.workers.Go(func() { l.echo(conn, to) })
	}
	for i := range udpFlows {
		to := netip.AddrPortFrom(vip(1, i%lasting+1, i%2 == 1), 80)
		var conn net.Conn
		err := hosts[i/2%2].Do(func() (err error) {
			conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
			return err
		})
		if err != nil {
			t.Fatalf("UDP flow to %s: %v", to, err)
		}
		l.workers.Go(func() { l.exchange(conn, to) })
	}
	l.pour(rate.value(t), hosts)
	return l
}

// pour opens new connections at a rate, spread over all fresh Services, families and
// clients.
func (l *load) pour(perSecond int, hosts []*netlab.Host) {
	tickets := make(chan int, perSecond)
	l.workers.Go(func() {
		defer close(tickets)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; {
			select {
			case <-l.done:
				return
			case <-tick.C:
			}
			due := int(time.Since(l.began).Seconds() * float64(perSecond))
			for ; n < due; n++ {
				select {
				case tickets <- n:
				default: // the machine is too slow for the rate; asked tells
				}
			}
		}
	})
	for range 64 {
		l.workers.Go(func() {
			for n := range tickets {
				l.ask(hosts[n%2], netip.AddrPortFrom(vip(2, n/4%fresh+1, n/2%2 == 1), 80))
			}
		})
	}
}

// ask makes one new connection.
func (l *load) ask(from *netlab.Host, to netip.AddrPort) {
	start := time.Now()
	_, err := from.Ask("tcp", to, netlab.Within(patience))
	end := time.Now()
	l.asked.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failed = append(l.failed, failure{window{start, end}, fmt.Sprintf("%s to %s after %s: %v", from.Name, to, end.Sub(start).Round(time.Millisecond), err)})
		return
	}
	l.slowest = max(l.slowest, end.Sub(start))
	if end.Sub(start) >= resend {
		l.slow++
	}
}

// echo keeps a TCP connection busy.
func (l *load) echo(conn *netlab.Conn, to netip.AddrPort) {
	defer conn.Close()
	for n := 0; l.wait(); n++ {
		if err := conn.Echo(fmt.Sprint("line ", n), netlab.Within(patience)); err != nil {
			l.fail("TCP connection to %s by %s, after %d lines: %v", to, conn.Reply.Server, n, err)
			return
		}
		l.echoed.Add(1)
	}
}

// exchange keeps a UDP flow busy: one socket, so one entry of conntrack, and always the
// same server.
func (l *load) exchange(conn net.Conn, to netip.AddrPort) {
	defer conn.Close()
	first := ""
	for l.wait() {
		server, err := "", error(nil)
		for asked, refusals := time.Now(), 0; refusals < 3 && time.Since(asked) < patience; l.lost.Add(1) { // datagrams may be lost
			if server, err = l.datagram(conn); err == nil {
				break
			}
			if !os.IsTimeout(err) {
				refusals++
			}
		}
		switch {
		case err != nil:
			l.fail("UDP flow to %s: %v", to, err)
			return
		case first == "":
			first = server
		case server != first:
			l.fail("UDP flow to %s moved from %s to %s", to, first, server)
			return
		}
		l.datagrams.Add(1)
	}
}

func (l *load) datagram(conn net.Conn) (server string, err error) {
	if err := conn.SetDeadline(time.Now().Add(repeat)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte("who?\n")); err != nil {
		return "", err
	}
	buf := make([]byte, 2048)
	n, err := conn.Read(buf)
	server, _, _ = strings.Cut(string(buf[:n]), " ")
	return server, err
}

// wait waits for the next beat; false: the load ends.
func (l *load) wait() bool {
	select {
	case <-l.done:
		return false
	case <-time.After(beat):
		return true
	}
}

func (l *load) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = append(l.broken, fmt.Sprintf(format, args...))
}

// mayFail allows new connections to fail from now on, until mustNotFail.
func (l *load) mayFail() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = &window{from: time.Now()}
}

func (l *load) mustNotFail() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open.to = time.Now()
	l.windows = append(l.windows, *l.open)
	l.open = nil
}

func (l *load) end() {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	l.workers.Wait()
}

// stop ends the load and judges what became of it.
func (l *load) stop(t *testing.T) {
	t.Helper()
	took := time.Since(l.began)
	l.end()
	excused := 0
	var bad []string
	for _, f := range l.failed {
		if l.isExcused(f) {
			excused++
		} else {
			bad = append(bad, f.what)
		}
	}
	t.Logf("%.0f s: %d new connections (%.0f a second), %d failed, %d more while the rules were away, slowest %s, %d of them longer than %s; "+
		"%d lasting TCP connections with %d lines, %d UDP flows with %d datagrams (%d lost): %d reset or moved",
		took.Seconds(), l.asked.Load(), float64(l.asked.Load())/took.Seconds(), len(bad), excused, l.slowest.Round(time.Millisecond), l.slow, resend,
		tcpConnections, l.echoed.Load(), udpFlows, l.datagrams.Load(), l.lost.Load(), len(l.broken))
	if len(bad) > 0 {
		t.Errorf("%d new connections failed, for example %s", len(bad), bad[0])
	}
	if len(l.broken) > 0 {
		t.Errorf("%d lasting connections broke:\n%s", len(l.broken), strings.Join(l.broken[:min(len(l.broken), 5)], "\n"))
	}
	if l.asked.Load() == 0 || l.echoed.Load() == 0 || l.datagrams.Load() == 0 {
		t.Error("there was no load")
	}
}

// isExcused reports whether a connection was begun while it was allowed to fail.
func (l *load) isExcused(f failure) bool {
	for _, w := range l.windows {
		if !f.to.Before(w.from) && !f.from.After(w.to) {
			return true
		}
	}
	return false
}
