package conntrack

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/nft"
)

// Connections that hosts begin themselves keep the address that they left with (nft.Egress): a flow of UDP would do so as long as its
// sender does not pause, and a connection of TCP as long as its ends like. When a source has another address, or none, its entries of
// UDP and SCTP are deleted, and those of TCP are reset after the drain timeout of the Service, if it has one.

// A leaver is a source, and the address that it leaves with.
type leaver struct{ source, addr netip.Addr }

// leavers calls each for the sources of Service ports.
func leavers(ports []Port, each func(of leaver, drain Drain)) {
	for i := range ports {
		for _, source := range ports[i].Egress.Sources {
			each(leaver{source, ports[i].Egress.Addr}, ports[i].Drain)
		}
	}
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

// leave notes the sources of Services that changed which have another address than before, or none, and those that came.
func (l *ChangeTracker) leave(was, changes map[string][]Port) {
	moved := map[leaver]Departed{}
	for _, ports := range was {
		leavers(ports, func(of leaver, drain Drain) { moved[of] = Departed{Drain: drain} })
	}
	for _, ports := range changes {
		leavers(ports, func(of leaver, _ Drain) {
			if _, stays := moved[of]; stays {
				delete(moved, of)
			} else {
				moved[of] = Departed{Back: true}
			}
		})
	}
	if l.left == nil && len(moved) > 0 {
		l.left = map[leaver]Departed{}
	}
	maps.Copy(l.left, moved)
}

// Departed is about a source that does not leave with an address any more, or does again.
type Departed struct {
	Drain Drain
	Back  bool
}

// A departure is what is left to do for a leaver.
type departure struct {
	drain Drain
	ends  time.Time   // of its connections of TCP, if they are drained
	looks []time.Time // still to come, in order
}

// depart takes the sources of a change.
func (a *schedule) depart(left map[leaver]Departed, now time.Time) {
	if a.departures == nil && len(left) > 0 {
		a.departures = map[leaver]*departure{}
	}
	for of, how := range left {
		d := &departure{how.Drain, now.Add(how.Drain.Timeout), []time.Time{now, now.Add(rescanDelay)}}
		if how.Drain.On {
			d.looks = append(d.looks, d.ends)
			slices.SortFunc(d.looks, time.Time.Compare)
		}
		if a.departures[of] = d; how.Back {
			delete(a.departures, of)
		}
	}
}

// departing returns the queries for the departures that are due, and the time of the next of the others (zero: none).
func (a *schedule) departing(now time.Time) (queries []query, next time.Time) {
	for of, d := range a.departures {
		switch at := d.looks[0]; {
		case !at.After(now):
			for _, protocol := range []nft.Protocol{nft.UDP, nft.SCTP, nft.TCP} {
				q := query{family: nft.FamilyOf(of.source), protocol: protocol}
				if !slices.Contains(queries, q) && (protocol != nft.TCP || d.drain.On && !d.ends.After(now)) {
					queries = append(queries, q)
				}
			}
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return queries, next
}

// departureOf is that of the source of an entry that has another address now; nil: there is none.
func (a *schedule) departureOf(e *entry) *departure {
	if len(a.departures) == 0 || e.to != e.replyFrom {
		return nil
	}
	return a.departures[leaver{e.from.Addr(), e.replyTo.Addr()}]
}

// judge returns the verdict about an entry of the source.
func (d *departure) judge(e *entry, now time.Time) verdict {
	switch {
	case e.isEnding():
		return leave
	case e.protocol != nft.TCP:
		return forget
	case !d.drain.On || d.ends.After(now):
		return leave
	case e.isEstablished():
		return reset
	}
	return forget
}

// departed notes that every entry of the departures that were due was judged at a time.
func (a *schedule) departed(at time.Time) {
	for of, d := range a.departures {
		d.looks = slices.DeleteFunc(d.looks, func(t time.Time) bool { return !t.After(at) })
		if len(d.looks) == 0 {
			delete(a.departures, of)
		}
	}
}
