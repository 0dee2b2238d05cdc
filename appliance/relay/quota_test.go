package relay

import (
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// Whatever others have, there is room for a port that has nothing, and for TCP beside UDP.
func TestQuotasAreFair(t *testing.T) {
	var l limits
	l.descriptors(20000)
	r := newRelay(slog.New(slog.DiscardHandler), nil, l)
	fill := func(q *quota) (n int64) {
		for q.acquire() {
			n++
		}
		return n
	}
	port := func(protocol string) *quota {
		return r.quotas.of(Port{Protocol: protocol, Frontends: []netip.AddrPort{}})
	}
	for _, protocol := range []string{UDP, TCP} {
		limit := l.tcp.redirected.total
		if protocol == UDP {
			limit = l.udp.redirected.total
		}
		left := limit
		for i := range 8 {
			got := fill(port(protocol))
			if want := (left + 1) / 2; got != want {
				t.Errorf("%s: port %d got %d of %d that were left, want %d", protocol, i, got, left, want)
			}
			left -= got
		}
		if left < 1 || limit < 3000 {
			t.Errorf("%s: %d of %d slots are left", protocol, left, limit)
		}
	}
	s := r.Stats()
	if used := s.TCP.Redirected; used <= 0 || used >= s.TCP.Limit {
		t.Errorf("%d of %d connections", used, s.TCP.Limit)
	}
	if s.TCP.Taken != s.TCP.Redirected || s.UDP.Taken != s.UDP.Redirected {
		t.Errorf("%+v: as many were taken as are there", s)
	}
}

// The descriptors of everything at its limit are fewer than the process may have.
func TestLimitsFollowDescriptors(t *testing.T) {
	for _, files := range []uint64{1024, 20000, 65536, 131072, 1 << 30, 1<<64 - 1} {
		var l limits
		l.descriptors(files)
		redirected := 2*l.tcp.redirected.total + l.udp.redirected.total + 2*l.pipes
		loopback := 2*l.tcp.loopback.total + l.udp.loopback.total
		if uint64(redirected) > files/3*2 || uint64(loopback) > files/6*2 || l.tcp.redirected.total < 1 || l.udp.redirected.total < 1 {
			t.Errorf("%d files: %d for redirected ports, %d for loopback: %+v", files, redirected, loopback, l)
		}
	}
	var l limits
	l.descriptors(131072)
	if l.tcp.redirected.total != MaxConnections || l.udp.redirected.total != MaxClients {
		t.Errorf("with the unit's limit of open files: %+v, want %d connections and %d clients", l, MaxConnections, MaxClients)
	}
}

// A port that turns clients away is named until it has not done so for a while; nothing happens before and after.
func TestOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logged{}
		l := defaults()
		r := newRelay(slog.New(slog.NewTextHandler(log, nil)), nil, l)
		p := Port{ID: "default/web/http", Protocol: TCP, Frontends: []netip.AddrPort{}}
		q := r.quotas.of(p)
		changed := func(when string, want bool, named int) {
			t.Helper()
			synctest.Wait()
			select {
			case <-r.OverloadedChanged():
				if !want {
					t.Errorf("%s: a change", when)
				}
			default:
				if want {
					t.Errorf("%s: no change", when)
				}
			}
			if got := r.Overloaded(); len(got) != named {
				t.Errorf("%s: %+v, want %d", when, got, named)
			}
		}
		changed("at first", false, 0)
		for range 10 {
			r.overload.turnAway(p, q, "refused")
		}
		changed("at the first one that is turned away", true, 1)
		time.Sleep(l.logInterval - 1)
		r.overload.turnAway(p, q, "refused")
		time.Sleep(time.Nanosecond)
		changed("after a while with others", false, 1)
		time.Sleep(l.logInterval)
		changed("after a while without", true, 0)
		if got := r.Stats().TCP.TurnedAway; got != 11 {
			t.Errorf("%d were turned away, want 11", got)
		}
		if n := log.count("refused: there are too many at once"); n != 1 {
			t.Errorf("%d lines in the log, want 1", n)
		}
		if r.overload.timer != nil {
			t.Error("a timer is left")
		}
	})
}
