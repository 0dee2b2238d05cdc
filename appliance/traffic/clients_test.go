package traffic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/nft"
)

// Clients are counted of Services that requests name, from the next look on, for as long as requests come.
func TestClients(t *testing.T) {
	of := func(id uint32, client string, answered, open bool) conntrack.Connection {
		c := connection(id, "10.96.0.0:80", "10.1.2.11:443", answered, open)
		c.Client = at(client)
		return c
	}
	table := &table{entries: []conntrack.Connection{
		of(1, "203.0.113.7:1", true, true), of(2, "203.0.113.7:2", true, true), of(3, "203.0.113.7:3", true, false), of(4, "203.0.113.8:1", false, false),
		connection(5, "10.96.0.1:80", "10.1.2.11:443", true, true), // of another Service
	}}
	a := answersOf(2, table)
	ask := func(after time.Duration, most int) wire.ServiceClients {
		t.Helper()
		a.observer.cost = 0
		table.now = table.now.Add(after)
		told, err := a.Clients("shop/s0", most)
		if err != nil {
			t.Fatal(err)
		}
		return told
	}
	if _, err := a.Traffic(wire.TrafficQuery{Sort: "open", Limit: 1}); err != nil {
		t.Fatal(err)
	}
	if told := ask(0, 9); told.Counted || len(told.Clients) > 0 {
		t.Errorf("before a look that counts them there are %+v", told)
	}
	both := []wire.ClientTraffic{{Client: "203.0.113.7", Open: 2}, {Client: "203.0.113.8", Unanswered: 1}}
	if diff := cmp.Diff(wire.ServiceClients{Counted: true, Clients: both}, ask(time.Second, 9)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wire.ServiceClients{Counted: true, Clients: both[:1], More: 1}, ask(time.Second, 1)); diff != "" {
		t.Errorf("at most one (-want +got):\n%s", diff)
	}
	q := wire.TrafficQuery{Namespace: "shop", Service: "s0", Sort: "open", Limit: 1, Clients: true}
	if seen, err := a.Traffic(q); err != nil || len(seen.Ports) != 1 || !cmp.Equal(seen.Clients, &wire.ServiceClients{Counted: true, Clients: both[:1], More: 1}) {
		t.Errorf("traffic with clients is %+v, %v", seen, err)
	}
	q.Service = "s1"
	if seen, err := a.Traffic(q); err != nil || seen.Clients == nil || seen.Clients.Counted {
		t.Errorf("traffic of a Service that was not watched is %+v, %v", seen, err)
	}
	table.now = table.now.Add(watchFor + time.Second)
	if _, err := a.Traffic(wire.TrafficQuery{Sort: "open", Limit: 1}); err != nil || len(a.observer.watched) > 0 {
		t.Errorf("nobody asks, and clients of %v are counted, %v", a.observer.watched, err)
	}
	for i := range 2 * maxWatched {
		a.observer.watch(fmt.Sprint("shop/s", i))
	}
	if len(a.observer.watched) != maxWatched {
		t.Errorf("%d Services are watched, want %d", len(a.observer.watched), maxWatched)
	}
	q.Service = "one-more"
	if _, err := a.Traffic(q); err == nil || !strings.Contains(err.Error(), "16 other Services") {
		t.Errorf("of one Service more: %v", err)
	}
	table.now = table.now.Add(watchFor + time.Second)
	if _, err := a.Traffic(q); err != nil {
		t.Errorf("nobody asks for others any more: %v", err)
	}
	crowd := clients{}
	for i := range maxClients + 10 {
		c := connection(1, "10.96.0.0:80", "10.1.2.11:443", true, true)
		c.Client = at(fmt.Sprintf("[fd00::%x:%x]:1", i>>16, i&0xffff))
		c.Family = nft.IPv6
		crowd.add(&c)
	}
	if len(crowd) != maxClients {
		t.Errorf("%d clients of a Service are held, want %d", len(crowd), maxClients)
	}
}
