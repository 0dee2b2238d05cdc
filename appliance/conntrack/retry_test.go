package conntrack

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/nft"
)

// retrying are the ports of a Service and the time after which its clients get another endpoint.
type retrying struct {
	after time.Duration
	ports []nft.ServicePort
}

func updateRetry(r *Retry, box *nft.Box, changes map[string]retrying) {
	ports, after := map[string][]nft.ServicePort{}, map[string]time.Duration{}
	for service, c := range changes {
		ports[service], after[service] = c.ports, c.after
	}
	r.Update(box, ports, after)
}

// retryAsked is a port of TCP on a cluster IP and a node port that asks for one second, and one
// of UDP.
func retryAsked() retrying {
	frontends := []nft.Frontend{{Addr: netip.MustParseAddr("172.30.0.41"), Port: 80}, {Port: 30080}}
	return retrying{after: time.Second, ports: []nft.ServicePort{
		{Family: nft.IPv4, Protocol: nft.TCP, Frontends: frontends}, {Family: nft.IPv4, Protocol: nft.UDP, Frontends: frontends},
	}}
}

// unansweredEntry is a SYN to the cluster IP whose endpoint is silent.
func unansweredEntry(change func(*entry)) entry {
	at := netip.MustParseAddrPort
	e := entry{
		family: nft.IPv4, protocol: nft.TCP, state: tcpSynSent, from: at("10.0.0.2:40000"), to: at("172.30.0.41:80"),
		replyFrom: at("10.180.0.1:80"), replyTo: at("10.0.0.2:40000"), id: []byte{0, 0, 0, 1},
	}
	if change != nil {
		change(&e)
	}
	return e
}

// What an endpoint of a Service that asks for it leaves unanswered is forgotten, when the time is
// over and not before; nothing else is.
func TestRetryForgets(t *testing.T) {
	at := netip.MustParseAddrPort
	for name, tt := range map[string]struct {
		change func(*entry)
		want   bool
	}{
		"cluster IP":       {nil, true},
		"node port":        {func(e *entry) { e.to = at("192.0.2.1:30080") }, true},
		"not ours":         {func(e *entry) { e.to = at("172.30.0.42:80") }, false},
		"another port":     {func(e *entry) { e.to = at("172.30.0.41:81") }, false},
		"a host's port":    {func(e *entry) { e.to = at("192.0.2.99:30080") }, false},
		"answered":         {func(e *entry) { e.answered, e.state = true, tcpSynReceived }, false},
		"established":      {func(e *entry) { e.answered, e.state = true, tcpEstablished }, false},
		"not translated":   {func(e *entry) { e.replyFrom = e.to }, false},
		"a dead end":       {func(e *entry) { e.state, e.replyFrom = tcpEstablished, at("192.0.2.1:0") }, false},
		"UDP":              {func(e *entry) { e.protocol, e.state = nft.UDP, 0 }, false},
		"of another state": {func(e *entry) { e.state = tcpClose }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &fakeTable{}
				r := newRetry(table, slog.New(slog.DiscardHandler))
				updateRetry(r, &nft.Box{NodePortAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, map[string]retrying{"default/web": retryAsked()})
				ctx, stop := context.WithCancel(t.Context())
				go func() { _ = r.Run(ctx) }()
				synctest.Wait()
				table.with(func() { table.entries = []entry{unansweredEntry(tt.change)} })
				time.Sleep(time.Second - time.Millisecond)
				synctest.Wait()
				if table.left() == 0 {
					t.Error("forgotten before its time")
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if forgotten := table.left() == 0; forgotten != tt.want || r.Retried() > 1 || (r.Retried() == 1) != tt.want {
					t.Errorf("forgotten %t, counted %d, want %t", forgotten, r.Retried(), tt.want)
				}
				stop()
				synctest.Wait()
			})
		})
	}
}

// The table is looked through while a Service asks for it and not otherwise; a failed look is
// repeated, and told until one succeeds.
func TestRetryLooksOnlyWhileAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &fakeTable{}
		r := newRetry(table, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = r.Run(ctx) }()
		pass := func(d time.Duration, least, most int) {
			t.Helper()
			before := table.asked()
			time.Sleep(d)
			synctest.Wait()
			if n := table.asked() - before; n < least || n > most {
				t.Errorf("%d looks in %s, want %d to %d", n, d, least, most)
			}
		}
		updateRetry(r, &nft.Box{}, map[string]retrying{"default/plain": {ports: retryAsked().ports}})
		pass(time.Minute, 0, 0)
		updateRetry(r, nil, map[string]retrying{"default/web": retryAsked()})
		pass(10*time.Second, 40, 42)                                // two queries each
		table.with(func() { table.takes = 100 * time.Millisecond }) // a busy machine
		pass(7*time.Second, 18, 22)
		table.with(func() { table.takes, table.uses = 40*time.Millisecond, 40*time.Millisecond }) // a large table: a twentieth of the time
		pass(8*time.Second, 8, 12)
		table.with(func() { table.takes, table.uses, table.fails = 0, 0, 1 })
		pass(4*time.Second, 1, 4)
		if r.Err() == nil {
			t.Error("a failure is not told")
		}
		pass(10*time.Second, 1, 42)
		if r.Err() != nil {
			t.Errorf("after a look that succeeded: %v", r.Err())
		}
		updateRetry(r, nil, map[string]retrying{"default/web": {ports: retryAsked().ports}})
		time.Sleep(10 * time.Second)
		pass(time.Minute, 0, 0)
		// The frontends go from one Service to another at once.
		updateRetry(r, nil, map[string]retrying{"default/web": retryAsked()})
		updateRetry(r, nil, map[string]retrying{"default/web": {}, "default/other": retryAsked()})
		pass(10*time.Second, 38, 44)
		stop()
		synctest.Wait()
	})
}

// Many ports are asked for as a whole.
func TestRetryQueries(t *testing.T) {
	r := newRetry(&fakeTable{}, slog.New(slog.DiscardHandler))
	updateRetry(r, nil, map[string]retrying{"default/web": retryAsked()})
	queries, pause := r.queries()
	slices.SortFunc(queries, func(a, b query) int { return int(a.port) - int(b.port) })
	one := query{family: nft.IPv4, protocol: nft.TCP, port: 80, unanswered: true}
	other := one
	other.port = 30080
	if !slices.Equal(queries, []query{one, other}) || pause != 500*time.Millisecond {
		t.Errorf("%+v, %s", queries, pause)
	}
	many := retrying{after: 30 * time.Second, ports: []nft.ServicePort{{Family: nft.IPv4, Protocol: nft.TCP}}}
	for port := range uint16(10) {
		many.ports[0].Frontends = append(many.ports[0].Frontends, nft.Frontend{Port: 31000 + port})
	}
	updateRetry(r, nil, map[string]retrying{"default/web": {}, "default/many": many})
	queries, pause = r.queries()
	if !slices.Equal(queries, []query{{family: nft.IPv4, protocol: nft.TCP, unanswered: true}}) || pause != longestPause {
		t.Errorf("%+v, %s", queries, pause)
	}
}
