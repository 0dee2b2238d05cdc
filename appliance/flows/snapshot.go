package flows

import (
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/nft"
)

// Snapshot is a look through the connection tracking table. One at a time is under way.
//
// What ends during a look is added after it: it may have been found open. So a total may miss what
// ended before its turn in the table, until the next look, and counts nothing twice.
type Snapshot struct {
	b     *Totals
	began time.Time
}

// Snapshot begins one. It has to be ended.
func (b *Totals) Snapshot(now time.Time) *Snapshot {
	b.one.Lock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looking = true
	return &Snapshot{b, now}
}

// Counts reports whether a connection that the look found counts: it was not there before the kernel was listened to.
func (l *Snapshot) Counts(c *conntrack.Connection) bool {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	_, old := l.b.old[c.ID]
	return l.b.listening && !old
}

// Total adds what the look found open of a port, by endpoint, to what ended. It returns the totals of the
// endpoints that are remembered, and of all that the port ever had; none of these is less than at the look before.
func (l *Snapshot) Total(id string, family nft.Family, protocol nft.Protocol, open map[netip.AddrPort]Record) (endpoints map[netip.AddrPort]Record, all Record) {
	b := l.b
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.find(portID{id, family, protocol})
	if p == nil || len(p.endpoints) == 0 && len(open) == 0 {
		if p != nil {
			all = p.reported
		}
		return nil, all
	}
	for at := range open {
		p.record(at, l.began)
	}
	endpoints = make(map[netip.AddrPort]Record, len(p.endpoints))
	all = p.gone
	for at, r := range p.endpoints {
		total := r.ended
		total.Add(open[at])
		missing := r.reported.raise(total)
		if b.unsure {
			r.ended.Add(missing) // their ends were lost
		}
		endpoints[at] = r.reported
		all.Add(r.reported)
	}
	p.reported.raise(all)
	return endpoints, p.reported
}

func (b *Totals) find(id portID) *port {
	service, _ := nft.SplitID(id.id)
	if i := slices.IndexFunc(b.services[service], func(p *port) bool { return p.portID == id }); i >= 0 {
		return b.services[service][i]
	}
	return nil
}

// End ends the look. ids are those of all connections through Services that it found, sorted; nil: it failed.
func (l *Snapshot) End(ids []uint32) {
	b := l.b
	defer b.one.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looking = false
	for _, e := range b.late {
		e.port.record(e.at, l.began).ended.Add(e.Record)
	}
	b.late = b.late[:0]
	if cap(b.late) > 1024 {
		b.late = nil
	}
	if ids == nil {
		return
	}
	for id := range b.old {
		if _, found := slices.BinarySearch(ids, id); !found {
			delete(b.old, id)
		}
	}
	if b.unsure {
		b.unsure = false
		b.prune(ids, l.began)
	}
}

// Prune forgets when connections began whose end was lost. ids are those of all connections through Services at a time, sorted.
func (b *Totals) Prune(ids []uint32, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prune(ids, at)
}

func (b *Totals) prune(ids []uint32, at time.Time) {
	for id, begun := range b.begun {
		if _, found := slices.BinarySearch(ids, id); !found && begun.at.Before(at) {
			delete(b.begun, id)
		}
	}
}
