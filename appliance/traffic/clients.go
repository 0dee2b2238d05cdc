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
	// watchFor is how long the clients of a Service are counted after somebody asked for them: longer than the pause between two
	// looks may be.
	watchFor = 2 * time.Minute
	// maxWatched bounds the Services whose clients are counted, and maxClients the clients of one.
	maxWatched = 16
	maxClients = 1 << 16
)

// clients are those of a Service at one look.
type clients map[netip.Addr]*Counts

// add adds a connection; not of a client that there is no room for.
func (s clients) add(c *conntrack.Connection) {
	n := s[c.Client.Addr()]
	if n == nil {
		if len(s) == maxClients {
			return
		}
		n = &Counts{}
		s[c.Client.Addr()] = n
	}
	n.add(c, false)
}

// watch notes that somebody asks for the clients of a Service, and reports whether they are counted: of too many Services, those of
// one more are not.
func (o *Observer) watch(service string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	maps.DeleteFunc(o.watched, func(_ string, asked time.Time) bool { return now.Sub(asked) > watchFor })
	if _, known := o.watched[service]; !known && len(o.watched) == maxWatched {
		return false
	}
	if o.watched == nil {
		o.watched = map[string]time.Time{}
	}
	o.watched[service] = now
	return true
}

// watching are the Services whose clients a look counts, without clients; nil: there are none.
func (o *Observer) watching(at time.Time) (of map[string]clients) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for service, asked := range o.watched {
		if at.Sub(asked) > watchFor {
			delete(o.watched, service)
			continue
		}
		if of == nil {
			of = map[string]clients{}
		}
		of[service] = clients{}
	}
	return of
}

// Clients are the clients of a Service, "namespace/name", at the newest look, the busiest first and at most so many. They are counted from
// the look on that follows the first question.
func (a *Answers) Clients(service string, most int) (told wire.ServiceClients, err error) {
	a.observer.watch(service)
	l, err := a.observer.Look()
	if err != nil {
		return told, err
	}
	return l.clientsOf(service, most), nil
}

// clientsOf are the clients of a Service, if the look has them.
func (l *Look) clientsOf(service string, most int) (told wire.ServiceClients) {
	told.Clients = []wire.ClientTraffic{}
	found := l.clients[service]
	if found == nil {
		return told
	}
	told.Counted = true
	for addr, n := range found {
		told.Clients = append(told.Clients, wire.ClientTraffic{Client: addr.String(), Open: n.Open, Unanswered: n.Unanswered})
	}
	slices.SortFunc(told.Clients, func(a, b wire.ClientTraffic) int {
		return cmp.Or(cmp.Compare(b.Open+b.Unanswered, a.Open+a.Unanswered), cmp.Compare(a.Client, b.Client))
	})
	if len(told.Clients) > most {
		told.Clients, told.More = told.Clients[:most], len(told.Clients)-most
	}
	return told
}
