package relay

import (
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Beside one dead and one silent endpoint of three every client is served by the third one, without the time that a connection may take
// and without many attempts in vain.
func TestSilentAndDeadEndpointsCostLittle(t *testing.T) {
	for _, by := range []Algorithm{Random, RoundRobin, LeastConnection} {
		r := start(t, quick())
		at, good, silent, dead := freePort(t, local), namedTCP(t, local, "good"), deaf(t), freePort(t, local)
		r.set(Port{
			ID: "default/web", Protocol: TCP, Listen: at, Endpoints: []netip.AddrPort{good, silent, dead},
			Pick: Pick{By: by}, Connect: Connect{Retries: 3, Timeout: patience},
		})
		const clients = 300
		var took [clients]time.Duration
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() {
				began := time.Now()
				c, err := tryTCP(at)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if name, err := tryLine(c); name != "good" {
					t.Errorf("%q answers (%v)", name, err)
				}
				took[i] = time.Since(began)
			})
			if i%10 == 9 {
				all.Wait()
			}
		}
		all.Wait()
		slices.Sort(took[:])
		t.Logf("median %s, worst %s, %d attempts failed or lost", took[clients/2], took[clients-1], r.Stats().FailedConnects)
		// Ten clients at once may each learn of both; after that they are tried last.
		if failed := r.Stats().FailedConnects; failed == 0 || failed > clients/2 {
			t.Errorf("%d of %d connections to endpoints failed", failed, clients)
		}
		if took[clients-1] > patience/2 {
			t.Errorf("a client waited for %s", took[clients-1])
		}
	}
}

// An endpoint that accepts an overtaken attempt after all was only slow, and gets its share of clients again at once.
func TestLateEndpointIsTrustedAgain(t *testing.T) {
	l := quick()
	l.last = time.Hour
	r := start(t, l)
	at, good := freePort(t, local), namedTCP(t, local, "good")
	late, fd := deafSocket(t)
	r.set(Port{
		ID: "default/web", Protocol: TCP, Listen: at, Endpoints: []netip.AddrPort{good, late},
		Pick: Pick{By: RoundRobin}, Connect: Connect{Retries: 1, Timeout: time.Minute},
	})
	for range 2 { // one of them has an attempt at the late one
		if name := named(t, at); name != "good" {
			t.Fatalf("%q answers while the other endpoint accepts nobody", name)
		}
	}
	var accepts sync.WaitGroup
	t.Cleanup(func() { // before the socket is closed: another test may get its number
		_ = syscall.Shutdown(fd, syscall.SHUT_RD)
		accepts.Wait()
	})
	accepts.Go(func() {
		for {
			c, _, err := syscall.Accept(fd)
			if err != nil {
				return
			}
			_, _ = syscall.Write(c, []byte("late\n"))
			_ = syscall.Close(c)
		}
	})
	for began := time.Now(); named(t, at) != "late"; time.Sleep(20 * time.Millisecond) { // a SYN is sent again after 1, 3, 7 s
		if time.Since(began) > time.Minute {
			t.Fatal("the endpoint is still tried last")
		}
	}
}

// The endpoint that a hash chose is tried first each time, and its silence costs no client the time that a connection may take.
func TestHashedEndpointIsTriedFirst(t *testing.T) {
	r := start(t, quick())
	at, good, silent := freePort(t, local), namedTCP(t, local, "good"), deaf(t)
	r.set(Port{
		ID: "default/web", Protocol: TCP, Listen: at, Endpoints: []netip.AddrPort{good, silent}, Connect: Connect{Retries: 3, Timeout: patience},
		Pick: Pick{Choose: func(_, _ netip.AddrPort) (netip.AddrPort, bool) { return silent, true }},
	})
	for i := range 3 {
		if name := named(t, at); name != "good" {
			t.Errorf("%q answers", name)
		}
		if failed := r.Stats().FailedConnects; failed != int64(i+1) {
			t.Errorf("%d connections failed after %d clients", failed, i+1)
		}
	}
}

// With one retry too few nobody is tried beside an endpoint.
func TestRetriesBoundAttempts(t *testing.T) {
	r := start(t, quick())
	at, good, silent := freePort(t, local), namedTCP(t, local, "good"), deaf(t)
	r.set(Port{
		ID: "default/web", Protocol: TCP, Listen: at, Endpoints: []netip.AddrPort{good, silent}, Connect: Connect{Timeout: 600 * time.Millisecond},
		Pick: Pick{Choose: func(_, _ netip.AddrPort) (netip.AddrPort, bool) { return silent, true }},
	})
	c := dialTCP(t, at)
	if name, err := tryLine(c); err == nil {
		t.Errorf("%q answers, though no other endpoint may be tried", name)
	}
}

// Endpoints that accept late get attempts beside them only as often as connections have earned that, and the mean of their connects is
// waited for.
func TestAttemptsInVainAreBounded(t *testing.T) {
	var h hedge
	vain := 0
	for range 1000 {
		h.begin(0)
		if h.may() {
			h.took(time.Second, 1)
			vain++
		}
	}
	if vain < 100 || vain > 1000*vainShare+2*vainBurst {
		t.Errorf("%d attempts in vain beside 1000 connections", vain)
	}
	if got := h.begin(250 * time.Millisecond); got != 2*time.Second {
		t.Errorf("the next attempt begins after %s, want twice the mean", got)
	}
	h = hedge{}
	if got := h.begin(250 * time.Millisecond); got != 250*time.Millisecond {
		t.Errorf("the first one begins after %s", got)
	}
}

// An endpoint that did not accept is tried last for a while, then by one connection, and like the others once it accepts.
func TestSuspectsAreTriedLast(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80")
	c := newBalancer(Port{ID: "x", Endpoints: []netip.AddrPort{a, b}, Pick: Pick{By: RoundRobin, Affinity: 0}}, 10, newOpenCounts())
	picks := func(n int) (of int) {
		for range n {
			if e, _ := c.pick(from(local), netip.AddrPort{}); e == a {
				of++
			}
		}
		return of
	}
	c.suspect(a, time.Hour)
	if n := picks(10); n != 0 {
		t.Errorf("a suspect is tried first by %d of 10", n)
	}
	if e, ok := c.pick(from(local), netip.AddrPort{}, b); !ok || e != a {
		t.Errorf("after all others %v is tried", e)
	}
	c.suspects[a] = suspicion{time.Now().Add(-time.Second), time.Hour}
	if n := picks(10); n != 1 {
		t.Errorf("a suspect is tried again by %d of 10, want one", n)
	}
	c.accepted(from(local), a)
	if n := picks(10); n != 5 {
		t.Errorf("an endpoint that accepts again has %d of 10", n)
	}
	c.suspect(a, time.Hour)
	c.set(Port{Endpoints: []netip.AddrPort{b}})
	if len(c.suspects) > 0 {
		t.Error("an endpoint that is gone is remembered")
	}
	// Affinity follows the endpoint that accepted.
	c.set(Port{Endpoints: []netip.AddrPort{a, b}, Pick: Pick{Affinity: time.Hour}})
	first, _ := c.pick(from(local), netip.AddrPort{})
	second, _ := c.pick(from(local), netip.AddrPort{}, first)
	c.accepted(from(local), first)
	if e, _ := c.pick(from(local), netip.AddrPort{}); e != first || second == first {
		t.Errorf("the client has %v, want the endpoint that accepted, %v", e, first)
	}
}
