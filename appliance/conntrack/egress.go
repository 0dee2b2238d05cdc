package conntrack

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"svcctl.io/svcctl/nft"
)

// Outgoing connections of egress sources keep the address with which they began (nft.Egress): a UDP flow until its sender pauses, a TCP
// connection until it ends. When the egress address of a source changes or is removed, its entries of UDP and SCTP are deleted, and those
// of TCP are reset after the drain timeout of the Service, if it has one. When a source gets an egress address, or other destinations, its
// entries of UDP and SCTP that began without it are deleted, too. At a start all entries of sources are scanned in this way, as only they
// show what changed before.

// A leaver is an egress source and the address that its outgoing connections get as source. The zero addr stands for all addresses, if the
// right one depends on the destination (Departed.now).
type leaver struct{ source, addr netip.Addr }

// leavers returns the egress sources of Services, each with the Service port that configures its address.
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

// egressOf returns the egress sources in a table of the kernel, as ports without frontends.
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

// leave records egress sources that lost their address, and those that are new or have other destinations. `was` holds the ports of the changed
// Services before the change, `changes` those after it.
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

// look schedules a scan for connections of an egress source that leave with the source's own address instead of the one that p sets.
func (l *ChangeTracker) look(of leaver, p *Port, drain Drain) {
	l.left[of], l.left[leaver{source: of.source}] = Departed{Back: true}, Departed{Drain: drain, now: p.Egress, inside: l.inside}
}

// Departed describes the change of a leaver: connections of the source may no longer leave with the address or, if Back is set, may leave
// with it again.
type Departed struct {
	Drain Drain
	Back  bool
	// for a leaver with the zero addr: the current Egress of the source. inside lists the destinations for which the source keeps its own
	// address.
	now    nft.Egress
	inside []netip.Prefix
}

// leaving is the part of a ChangeTracker for egress sources.
type leaving struct {
	left   map[leaver]Departed
	inside []netip.Prefix // destinations for which egress sources keep their own addresses
}

// flow identifies a UDP or SCTP entry: from is the source of its first packet, to the destination.
type flow struct{ from, to netip.AddrPort }

// departure is the remaining work for a leaver.
type departure struct {
	Departed
	ends  time.Time   // when its TCP connections must end, if the Service drains them
	looks []time.Time // the times of further scans, in order
}

// departing is the part of a schedule for egress sources with a changed address, to end connections with the previous address.
type departing struct {
	departures map[leaver]*departure
	forgotten  map[flow]leaver // deleted entries; cleared when no departure is left
}

// depart schedules scans for the egress sources in left.
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

// nextLook returns the time of the next scan for begun connections, or for departures that are not due yet; zero if none is scheduled.
func (a *schedule) nextLook(now time.Time) (next time.Time) {
	next = a.begun.next
	for _, d := range a.departures {
		if at := d.looks[0]; at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// dueQueries returns the queries for the egress sources that are due for a scan.
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

// judgeDeparture returns the verdict on an entry if its connection predates the rules, or if its egress source now has another address. judged is
// false for all other entries.
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

// leaves reports whether connections to a destination leave with the current address of an egress source. local are the addresses of the
// box.
func (how *Departed) leaves(to netip.Addr, local []netip.Addr) bool {
	if slices.Contains(local, to) || slices.ContainsFunc(how.inside, func(p netip.Prefix) bool { return p.Contains(to) }) {
		return false
	}
	sets := how.now.To
	return sets == nil || (&admission{allow: sets.Allow, deny: sets.Deny}).admit(to)
}

// describeLeft is like describe, but swaps the roles for an entry of an egress source, where only the source is translated: the remote
// server becomes the Client of the Connection.
func (e *entry) describeLeft(c *Connection) {
	if e.describe(c); e.left {
		c.Left, c.Client, c.To, c.Endpoint, c.As = true, e.replyFrom, e.replyTo, e.from, e.to
	}
}

// departed records that every entry of begun connections, and of the egress sources that were due, was judged at the given time.
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
