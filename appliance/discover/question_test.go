package discover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/discover/ledger"
	"svcctl.io/svcctl/appliance/discover/provider"
)

// Addresses that no packet may be sent to are left out with a reason, and the others are used.
func Test978_bad_addresses_are_left_out(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	for _, c := range []struct {
		endpoint provider.Endpoint
		want     string // address of the endpoint that is used, or "" for none
		bad      string
	}{
		{provider.Endpoint{Address: "10.0.0.1", Port: 80, Node: "gw1", Zone: "a"}, "10.0.0.1", ""},
		{provider.Endpoint{Address: "2001:db8:0:0::1"}, "2001:db8::1", ""},
		{provider.Endpoint{Address: "::ffff:10.0.0.1"}, "10.0.0.1", ""},
		{provider.Endpoint{Address: "127.0.0.1"}, "", `"127.0.0.1" is a loopback address`},
		{provider.Endpoint{Address: "::1"}, "", "is a loopback address"},
		{provider.Endpoint{Address: "169.254.1.1"}, "", "is a link-local address"},
		{provider.Endpoint{Address: "fe80::1"}, "", "is a link-local address"},
		{provider.Endpoint{Address: "fe80::1%eth0"}, "", "is no IP address"},
		{provider.Endpoint{Address: "0.0.0.0"}, "", "is the unspecified address"},
		{provider.Endpoint{Address: "224.0.0.1"}, "", "is no address of one server"},
		{provider.Endpoint{Address: "255.255.255.255"}, "", "is no address of one server"},
		{provider.Endpoint{Address: "web.example.com"}, "", `"web.example.com" is no IP address`},
		{provider.Endpoint{Address: ""}, "", `"" is no IP address`},
		{provider.Endpoint{Address: long}, "", "is no IP address"},
		{provider.Endpoint{Address: "10.0.0.1", Node: long}, "10.0.0.1", "is no name of a Node"},
		{provider.Endpoint{Address: "10.0.0.1", Zone: long}, "10.0.0.1", "is no name of a zone"},
		{provider.Endpoint{Address: "10.0.0.1", Priority: 12}, "10.0.0.1", "the priority 12 of 10.0.0.1 is taken as 9"},
	} {
		good, bad := usable([]provider.Endpoint{c.endpoint, {Address: "10.9.9.9", Port: 80}})
		addr := ""
		if len(good) == 2 {
			addr = good[0].Address
		}
		if addr != c.want || good[len(good)-1].Address != "10.9.9.9" || len(bad) > 1 || (len(bad) == 1) != (c.bad != "") || !strings.Contains(strings.Join(bad, ""), c.bad) {
			t.Errorf("%.40q: %q, %.200v; want %q, %q", c.endpoint.Address, addr, bad, c.want, c.bad)
		}
		if len(strings.Join(bad, "")) > 300 || len(good) == 2 && len(good[0].Node)+len(good[0].Zone) > 100 {
			t.Errorf("%.40q: what is left out is long", c.endpoint.Address)
		}
	}
	var many []provider.Endpoint
	for i := range 100 {
		many = append(many, provider.Endpoint{Address: fmt.Sprintf("127.0.0.%d", i)})
	}
	if good, bad := usable(many); len(good) != 0 || len(bad) != 6 || bad[5] != "and 95 more" {
		t.Errorf("of many: %v", bad)
	}
}

// flaky answers, fails, or is silent.
type flaky struct {
	calls atomic.Int64
	do    func(n int64, ctx context.Context, take func(provider.Answer)) error
}

func (f *flaky) Follow(ctx context.Context, _ provider.Question, take func(provider.Answer)) error {
	return f.do(f.calls.Add(1), ctx, take)
}

// A question that fails is asked again, one that is in doubt at once, and an answer with too many endpoints is a failure.
func TestQuestion(t *testing.T) {
	box := newInbox()
	f := &flaky{do: func(n int64, ctx context.Context, take func(provider.Answer)) error {
		switch n {
		case 1:
			return errors.New("connection refused " + strings.Repeat("x", 1000))
		case 2:
			take(provider.Answer{Endpoints: make([]provider.Endpoint, mostEndpoints+1)})
		case 3:
			take(provider.Answer{})
		}
		<-ctx.Done()
		return ctx.Err()
	}}
	ctx, stop := context.WithCancel(t.Context())
	q := &question{of: ledger.Asked{Provider: "consul"}, to: box}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		q.run(ctx, f, &gate{})
	}()
	next := func() result {
		t.Helper()
		for {
			select {
			case <-box.wake:
			case <-time.After(time.Minute):
				t.Fatal("no result within a minute")
			}
			for q := range box.take() {
				if all := q.take(); len(all) > 0 {
					return all[len(all)-1]
				}
			}
		}
	}
	if r := next(); r.answer != nil || !strings.HasPrefix(r.why, "connection refused") || len(r.why) > longestWhy+3 {
		t.Errorf("%+v", r)
	}
	if r := next(); r.answer != nil || !strings.Contains(r.why, "10001 endpoints, and at most 10000 are taken") {
		t.Errorf("%+v", r)
	}
	q.ask()
	if r := next(); r.answer == nil || len(r.answer.Endpoints) != 0 {
		t.Errorf("%+v", r)
	}
	stop()
	<-ended
}
