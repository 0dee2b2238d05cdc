package conntrack

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"svcctl.io/svcctl/nft"
)

// Connections that hosts begin themselves keep the address that they left with (nft.Egress): a flow of UDP would do so as long as its
// sender does not pause, and a connection of TCP as long as its ends like. When a source has another address, or none, its entries of
// UDP and SCTP are deleted, and those of TCP are reset after the drain timeout of the Service, if it has one. When a source has an
// address, or other destinations, its entries of UDP and SCTP that began without it are deleted, too. At a start all entries of
// sources are looked at so: what changed before is seen by them alone.

// A leaver is an egress source and the address that its connections leave with; the zero Addr if that depends on their
// destination (Departed.now).
type leaver struct{ source, addr netip.Addr }

// leavers returns the egress sources of Services with their addresses, and for each the Service port that has it.
func leavers(services map[string][]Port) map[leaver]*Port {
	of := map[leaver]*Port{}
	for _, ports := range services {
		for i := range ports {
			for _, source := range ports[i].Egress.Sources {
				of[leaver{source, ports[i].Egress.Addr}] = &ports[i]
			}
		}
	}
	return of
}

// egressOf reads the sources of a table.
func egressOf(family nft.Family, table *nft.Table) (ports []Port) {
	if set := table.Sets["egress"]; set != nil {
		for key, data := range set.Elements {
			source, _ := netip.AddrFromSlice([]byte(key))
			addr, _ := netip.AddrFromSlice([]byte(data))
			ports = append(ports, Port{Family: family, Egress: nft.Egress{Addr: addr, Sources: []netip.Addr{source}}})
		}
	}
	return ports
}

// leave notes the sources of Services that changed which have another address than before, or none, and those that came or have other
// destinations.
func (l *ChangeTracker) leave(was, changes map[string][]Port) {
	before, now := leavers(was), leavers(changes)
	if l.left == nil {
		l.left = map[leaver]Departed{}
	}
	for of, p := range before {
		if now[of] == nil {
			l.left[of], l.left[leaver{source: of.source}] = Departed{Drain: p.Drain}, Departed{Back: true}
		}
	}
	for of, p := range now {
		if old := before[of]; l.adopting || old != nil && !reflect.DeepEqual(old.Egress.To, p.Egress.To) {
			l.look(of, p, p.Drain)
		} else if old == nil {
			l.look(of, p, Drain{})
		}
	}
}

// look schedules a scan of the entries of a source.
func (l *ChangeTracker) look(of leaver, p *Port, drain Drain) {
	l.left[of], l.left[leaver{source: of.source}] = Departed{Back: true}, Departed{Drain: drain, now: p.Egress, inside: l.inside}
}

// Departed is about a source that does not leave with an address any more, or does again.
type Departed struct {
	Drain Drain
	Back  bool
	// Of a leaver without an address: what its source leaves with now, and the destinations for which it keeps its own address.
	now    nft.Egress
	inside []netip.Prefix
}

// leaving is the part of a ChangeTracker that is about sources.
type leaving struct {
	left   map[leaver]Departed
	inside []netip.Prefix // destinations for which sources keep their addresses
}

// flow identifies an entry of UDP or SCTP: from has sent its first packet, and to has received it.
type flow struct{ from, to netip.AddrPort }

// A departure has the work that remains for a leaver.
type departure struct {
	Departed
	ends  time.Time   // of its connections of TCP, if they are drained
	looks []time.Time // still to come, in order
}

// departing is the part of a schedule that is about departures.
type departing struct {
	departures map[leaver]*departure
	forgotten  map[flow]leaver // entries that were deleted, until no departure is left
}

// depart takes the sources of a change.
func (a *schedule) depart(left map[leaver]Departed, now time.Time) {
	if a.departures == nil && len(left) > 0 {
		a.departures, a.forgotten = map[leaver]*departure{}, map[flow]leaver{}
	}
	for of, how := range left {
		d := &departure{how, now.Add(how.Drain.Timeout), []time.Time{now, now.Add(rescanDelay)}}
		if how.Drain.On {
			d.looks = append(d.looks, d.ends)
			slices.SortFunc(d.looks, time.Time.Compare)
		}
		if a.departures[of] = d; how.Back {
			delete(a.departures, of)
		}
	}
}

// nextLook is the latest time for the next look for an outage or a departure that is not due (zero: none).
func (a *schedule) nextLook(now time.Time) (next time.Time) {
	next = a.begun.next
	for _, d := range a.departures {
		if at := d.looks[0]; at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// dueQueries returns the queries for the departures that are due.
func (a *departing) dueQueries(now time.Time) (queries []query) {
	for of, d := range a.departures {
		if !d.looks[0].After(now) {
			for _, protocol := range []nft.Protocol{nft.UDP, nft.SCTP, nft.TCP} {
				q := query{family: nft.FamilyOf(of.source), protocol: protocol}
				if !slices.Contains(queries, q) && (protocol != nft.TCP || d.Drain.On && !d.ends.After(now)) {
					queries = append(queries, q)
				}
			}
		}
	}
	return queries
}

// judgeDeparture returns the verdict about an entry that was begun before rules led it to a Service, or whose source has another address now; it
// reports whether it is one.
func (a *schedule) judgeDeparture(e *entry, now time.Time) (v verdict, judged bool) {
	if a.begun.concerns(e, a.nodePorts) {
		return forget, true
	}
	if len(a.departures) == 0 || e.to != e.replyFrom {
		return leave, false // mostly
	}
	of := leaver{e.from.Addr(), e.replyTo.Addr()}
	if a.departures[of] == nil {
		of.addr = netip.Addr{}
	}
	d, gains := a.departures[of], false
	if d != nil && d.now.Addr.IsValid() {
		leaves := d.leaves(e.to.Addr(), a.addresses[1])
		if gains = leaves; leaves == (e.replyTo.Addr() == d.now.Addr) {
			d = nil
		}
	}
	switch again := a.departures[a.forgotten[flow{e.to, e.from}]]; {
	case again != nil && e.protocol != nft.TCP: // an answer that was on its way began the flow again, from the other end
		if at := now.Add(rescanDelay); !slices.ContainsFunc(again.looks, func(t time.Time) bool { return t.After(now) && !t.After(at) }) {
			again.looks = append(again.looks, at)
			slices.SortFunc(again.looks, time.Time.Compare)
		}
		return forget, true
	case d == nil:
		return leave, false
	case e.isEnding():
		return leave, true
	case e.protocol != nft.TCP:
		a.forgotten[flow{e.from, e.to}] = of
		return forget, true
	case gains || !d.Drain.On || d.ends.After(now):
		return leave, true
	case e.isEstablished():
		return reset, true
	}
	return forget, true
}

// leaves reports whether connections to a destination leave with the address that a source has now. local are the addresses of the box.
func (how *Departed) leaves(to netip.Addr, local []netip.Addr) bool {
	if slices.Contains(local, to) || slices.ContainsFunc(how.inside, func(p netip.Prefix) bool { return p.Contains(to) }) {
		return false
	}
	sets := how.now.To
	return sets == nil || (&admission{allow: sets.Allow, deny: sets.Deny}).admit(to)
}

// describeLeft is describe, with the roles of an entry whose source alone is translated: the server that it leads to is the client.
func (e *entry) describeLeft(c *Connection) {
	if e.describe(c); e.left {
		c.Left, c.Client, c.To, c.Endpoint, c.As = true, e.replyFrom, e.replyTo, e.from, e.to
	}
}

// departed notes that every entry of the outage and of the departures that were due was judged at a time.
func (a *schedule) departed(at time.Time) {
	a.begun.done(at)
	for of, d := range a.departures {
		d.looks = slices.DeleteFunc(d.looks, func(t time.Time) bool { return !t.After(at) })
		if len(d.looks) == 0 {
			delete(a.departures, of)
		}
	}
	if len(a.departures) == 0 {
		clear(a.forgotten)
	}
}
