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

// An endpoint is full at its limit and has room again when a tenth is closed; what is not open, and not of the
// Service, does not count.
func TestFullnessHasHysteresis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := netip.MustParseAddrPort
		var told []string
		table := &fakeTable{}
		x := newConnLimiter(table, slog.New(slog.DiscardHandler), func(service string) { told = append(told, service) })
		endpoint := at("10.180.0.1:80")
		web := EndpointLimit{Limit: 20, Ports: []nft.ServicePort{{Family: nft.IPv4, Protocol: nft.TCP, Frontends: []nft.Frontend{{Addr: netip.MustParseAddr("172.30.0.41"), Port: 80}}}}}
		x.Update(&nft.Box{}, map[string]EndpointLimit{"default/web": web, "default/other": {}})
		if full, known := x.Full("default/web", nft.TCP, endpoint); full || known {
			t.Errorf("before it was looked: full %t, known %t", full, known)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- x.Run(ctx) }()
		synctest.Wait() // the first look
		open := func(n int) {
			table.mu.Lock()
			table.entries = nil
			for i := range n {
				e := unansweredEntry(func(e *entry) { e.answered, e.state, e.id = true, tcpEstablished, []byte{0, 0, 1, byte(i)} })
				table.entries = append(table.entries, e)
			}
			for _, change := range []func(*entry){
				func(e *entry) {}, // unanswered
				func(e *entry) { e.answered, e.state = true, tcpClose },
				func(e *entry) { e.answered, e.state, e.to = true, tcpEstablished, at("172.30.0.42:80") },
				func(e *entry) { e.answered, e.state, e.replyFrom = true, tcpEstablished, e.to },
			} {
				table.entries = append(table.entries, unansweredEntry(change))
			}
			table.mu.Unlock()
			time.Sleep(2 * scanInterval)
			synctest.Wait()
		}
		for _, step := range []struct {
			open int
			want bool
		}{{19, false}, {20, true}, {19, true}, {18, false}, {19, false}, {25, true}, {0, false}} {
			told = nil
			before, _ := x.Full("default/web", nft.TCP, endpoint)
			open(step.open)
			full, known := x.Full("default/web", nft.TCP, endpoint)
			if full != step.want || !known {
				t.Errorf("%d open connections of 20: full %t, want %t", step.open, full, step.want)
			}
			if changed := full != before; step.open != 19 && changed != slices.Contains(told, "default/web") {
				t.Errorf("%d open connections: told of %v, changed %t", step.open, told, changed)
			}
		}
		// Without a request there is no look.
		x.Update(nil, map[string]EndpointLimit{"default/web": {}})
		synctest.Wait()
		looks := table.queries
		time.Sleep(10 * scanInterval)
		synctest.Wait()
		if table.queries != looks {
			t.Errorf("%d looks while no Service asks for any", table.queries-looks)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A connection counts once, also where the kernel gives all entries to each of the queries for two ports.
func TestFullnessCountsAConnectionOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := netip.MustParseAddrPort
		table := &fakeTable{}
		for i := range byte(10) {
			for _, to := range []string{"172.30.0.41:80", "172.30.0.41:443", "172.30.0.41:12000"} {
				table.entries = append(table.entries, unansweredEntry(func(e *entry) {
					e.answered, e.state, e.id, e.to = true, tcpEstablished, []byte{0, 0, 1, i}, at(to)
					e.replyFrom = netip.AddrPortFrom(e.replyFrom.Addr(), e.to.Port())
				}))
			}
		}
		x := newConnLimiter(table, slog.New(slog.DiscardHandler), func(string) {})
		vip := netip.MustParseAddr("172.30.0.41")
		for _, tt := range []struct {
			limit     uint32
			frontends []nft.Frontend
			endpoint  string
			want      bool
		}{
			{11, []nft.Frontend{{Addr: vip, Port: 80}, {Addr: vip, Port: 443}}, "10.180.0.1:80", false},
			{10, []nft.Frontend{{Addr: vip, Port: 80}, {Addr: vip, Port: 443}}, "10.180.0.1:80", true},
			{31, []nft.Frontend{{Addr: vip, Port: 80}, {Addr: vip, Port: 443}, {Addr: vip, Port: 10000, Last: 20000}}, "10.180.0.1:0", false},
			{30, []nft.Frontend{{Addr: vip, Port: 80}, {Addr: vip, Port: 443}, {Addr: vip, Port: 10000, Last: 20000}}, "10.180.0.1:0", true},
		} {
			c := EndpointLimit{Limit: tt.limit}
			for _, fe := range tt.frontends {
				c.Ports = append(c.Ports, nft.ServicePort{Family: nft.IPv4, Protocol: nft.TCP, Frontends: []nft.Frontend{fe}})
			}
			x.Update(nil, map[string]EndpointLimit{"default/web": {}})
			x.Update(nil, map[string]EndpointLimit{"default/web": c})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- x.Run(ctx) }()
			time.Sleep(2 * scanInterval)
			synctest.Wait()
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if full, known := x.Full("default/web", nft.TCP, at(tt.endpoint)); full != tt.want || !known {
				t.Errorf("of %d frontends %s is full at %d: %t, known %t, want %t", len(tt.frontends), tt.endpoint, tt.limit, full, known, tt.want)
			}
		}
	})
}

// When the Services are planned again whose full endpoints a look found, the error of the look before is gone.
func TestFullnessChangesAfterItsError(t *testing.T) {
	table := &fakeTable{fails: 1, entries: []entry{unansweredEntry(func(e *entry) { e.answered, e.state = true, tcpEstablished })}}
	var x *ConnLimiter
	var seen []error
	x = newConnLimiter(table, slog.New(slog.DiscardHandler), func(string) { seen = append(seen, x.Err()) })
	frontends := []nft.Frontend{{Addr: netip.MustParseAddr("172.30.0.41"), Port: 80}}
	x.Update(&nft.Box{}, map[string]EndpointLimit{"default/web": {Limit: 1, Ports: []nft.ServicePort{{Family: nft.IPv4, Protocol: nft.TCP, Frontends: frontends}}}})
	if err := x.scan(t.Context(), x.asking()); err == nil || x.Err() == nil || len(seen) > 0 {
		t.Fatalf("a look that fails: %v, %v, changed %d times", err, x.Err(), len(seen))
	}
	if err := x.scan(t.Context(), x.asking()); err != nil || !slices.Equal(seen, []error{nil}) {
		t.Errorf("the next one: %v, and the errors at changes are %v", err, seen)
	}
}
