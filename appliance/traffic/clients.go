package traffic

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
)

const (
	// watchFor is the time for which the clients of a Service are counted after a request for them: longer than a viewer waits
	// before the next one.
	watchFor = 2 * time.Minute
	// maxWatched bounds the Services whose clients are counted, and maxClients the clients of one.
	maxWatched = 16
	maxClients = 1 << 16
)

// clients counts the connections of a Service's clients at one look.
type clients map[netip.Addr]Counts

// add adds a connection, unless its client is new and there are maxClients.
func (s clients) add(c *conntrack.Connection) {
	addr := c.Client.Addr()
	n, known := s[addr]
	if !known && len(s) == maxClients {
		return
	}
	n.add(c, false, 0, 0)
	s[addr] = n
}

// watch notes a request for the clients of a Service, and reports whether they are counted: beyond maxWatched Services they are
// not.
func (o *Observer) watch(service string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	o.unwatch(now)
	if _, known := o.watched[service]; !known && len(o.watched) == maxWatched {
		return false
	}
	if o.watched == nil {
		o.watched = map[string]time.Time{}
	}
	o.watched[service] = now
	return true
}

// unwatch forgets the Services that were not asked for within watchFor. The caller holds mu.
func (o *Observer) unwatch(at time.Time) {
	maps.DeleteFunc(o.watched, func(_ string, asked time.Time) bool { return at.Sub(asked) > watchFor })
}

// watching are the Services whose clients a look counts, without clients; nil: there are none.
func (o *Observer) watching(at time.Time) (of map[string]clients) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unwatch(at)
	if len(o.watched) == 0 {
		return nil
	}
	of = make(map[string]clients, len(o.watched))
	for service := range o.watched {
		of[service] = clients{}
	}
	return of
}

// Clients are the clients of a Service, "namespace/name", at the newest look, the busiest first and at most so many. They are counted from
// the look on that follows the first question.
func (a *Queries) Clients(service string, most int) (told wire.ServiceClients, err error) {
	a.observer.watch(service)
	l, err := a.observer.Snapshot()
	if err != nil {
		return told, err
	}
	return l.clientsOf(service, most), nil
}

// clientsOf are the clients of a Service, if the look has them.
func (l *Snapshot) clientsOf(service string, most int) (told wire.ServiceClients) {
	told.Clients = []wire.ClientTraffic{}
	found := l.clients[service]
	if found == nil {
		return told
	}
	told.Counted = true
	type client struct {
		addr netip.Addr
		Counts
	}
	all := make([]client, 0, len(found))
	for addr, n := range found {
		all = append(all, client{addr, n})
	}
	slices.SortFunc(all, func(a, b client) int {
		return cmp.Or(cmp.Compare(b.Open+b.Unanswered, a.Open+a.Unanswered), a.addr.Compare(b.addr))
	})
	told.More = max(0, len(all)-most)
	for _, c := range all[:len(all)-told.More] { // the first of many clients are enough
		told.Clients = append(told.Clients, wire.ClientTraffic{Client: c.addr.String(), Open: c.Open, Unanswered: c.Unanswered})
	}
	return told
}
