package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// errNoEndpoint means that a Port has no endpoint.
var errNoEndpoint = errors.New("there is no endpoint")

// attempt is one connection to an endpoint for a client.
type attempt struct {
	to   netip.AddrPort
	conn *net.TCPConn
	err  error
	took time.Duration
}

// connect connects to an endpoint for a client whose connection is near: to another one if that refuses or does not answer in time, and
// beside it if it has not answered after hedge.begin. The first that accepts wins. No endpoint is tried twice, and no more others than
// Port.Retries; those that refused or were overtaken are tried last for a while, or until they accept. The connection counts as open until end, or until the
// balancer is told that it is done.
func (t *tcpPort) connect(ctx context.Context, near *net.TCPConn, client, asked netip.AddrPort) (*net.TCPConn, netip.AddrPort, error) {
	how := t.current().Connect
	if how.Timeout <= 0 {
		how.Timeout = t.shared.limits.dial
	}
	hops, counted := hopsLeft(hopsOf(near))
	if !counted {
		hops = -1
	}
	results, over := make(chan attempt), make(chan struct{})
	defer close(over)
	// Attempts that are overtaken go on: one that is accepted after all shows that its endpoint, or this box, was only slow.
	dialing, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()

	var tried, waiting, beside []netip.AddrPort // in their order; those of beside were begun beside others
	begin := func() bool {
		if len(tried) > how.Retries {
			return false
		}
		to, is := t.endpoints.pick(client, asked, tried...)
		if !is {
			return false
		}
		tried, waiting = append(tried, to), append(waiting, to)
		go func() {
			a := t.attempt(dialing, how, client, to, hops)
			select {
			case results <- a:
			case <-over:
				if a.conn != nil {
					reset(a.conn)
					t.endpoints.trust(to)
				}
				t.endpoints.done(to)
			}
		}()
		return true
	}
	failed, pause := errNoEndpoint, t.hedge.begin(t.shared.limits.hedge)
	patience := time.NewTimer(pause)
	defer patience.Stop()
	for more := begin(); more; {
		select {
		case <-patience.C:
			if t.hedge.may() && begin() {
				beside = append(beside, tried[len(tried)-1])
				patience.Reset(pause)
			}
		case a := <-results:
			at := slices.Index(waiting, a.to)
			if a.err == nil {
				t.overtaken(waiting[:at])
				t.endpoints.accepted(client, a.to)
				later := tried[slices.Index(tried, a.to)+1:]
				t.hedge.took(a.took, countIn(beside, later))
				return a.conn, a.to, nil
			}
			t.endpoints.done(a.to)
			waiting = slices.Delete(waiting, at, at+1)
			if failed = a.err; ctx.Err() != nil {
				more = false // the client left, or the program is handed over: that says nothing about the endpoint
				continue
			}
			t.overtaken([]netip.AddrPort{a.to})
			if begin() {
				patience.Reset(pause)
			}
			more = len(waiting) > 0
		}
	}
	cancel(failed)
	return nil, netip.AddrPort{}, fmt.Errorf("%d endpoints tried: %w", len(tried), failed)
}

// attempt connects to one endpoint.
func (t *tcpPort) attempt(ctx context.Context, how Connect, client, to netip.AddrPort, hops int) attempt {
	var source netip.AddrPort
	transparent := how.Transparent && client.Addr() != to.Addr() && client.Addr().Is4() == to.Addr().Is4()
	if transparent {
		source = netip.AddrPortFrom(client.Addr(), 0)
	}
	prepare := func(network, address string, c syscall.RawConn) error {
		if hops >= 0 {
			if err := sendHops(network, c, hops); err != nil {
				return err
			}
		}
		if transparent {
			return asOthers(network, address, c)
		}
		return nil
	}
	began := time.Now()
	conn, err := dial(ctx, how.Timeout, prepare, source, to)
	return attempt{to, conn, err, time.Since(began)}
}

// overtaken notes endpoints that did not accept a connection, or not before another one did.
func (t *tcpPort) overtaken(endpoints []netip.AddrPort) {
	for _, e := range endpoints {
		t.endpoints.suspect(e, t.shared.limits.last)
		t.shared.failedConnects.Add(1)
		t.failedConnects.Add(1)
	}
}

// countIn counts the endpoints of a list that are in another one.
func countIn(list, other []netip.AddrPort) (n int) {
	for _, e := range list {
		if slices.Contains(other, e) {
			n++
		}
	}
	return n
}
