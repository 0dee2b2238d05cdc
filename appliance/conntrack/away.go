package conntrack

import (
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/nft"
)

// away is what is looked for after the rules were away for a while, be it that somebody
// flushed the ruleset: connections that were begun meanwhile. The kernel found nothing to
// translate at their first packet and does not ask again, so what a client sends once more
// leaves as it came, for as long as the client does not give up. Once their entry is
// gone, the next of these packets is a first one.
//
// Only what nobody has answered is concerned. Whatever is answered without a translation is
// somebody else's: a program of the box that listens there, or what the rules were told to
// spare.
type away struct {
	frontends map[Frontend]struct{} // all that are served
	ranges    Ranges                // those of them
	looks     []time.Time           // still to come, in order
}

// newAway looks at once, and once more for packets that were under way when the rules came
// back.
func newAway(frontends map[Frontend]struct{}, now time.Time) *away {
	return &away{frontends, rangesOf(frontends), []time.Time{now, now.Add(secondLook)}}
}

// next is when to look; zero: not any more.
func (w *away) next() time.Time {
	if w == nil || len(w.looks) == 0 {
		return time.Time{}
	}
	return w.looks[0]
}

// due reports whether it is time to look.
func (w *away) due(now time.Time) bool {
	next := w.next()
	return !next.IsZero() && !next.After(now)
}

// queries cover all that nobody has answered, of the protocols and families that are served.
func (w *away) queries() (queries []query) {
	for fe := range w.frontends {
		q := query{family: fe.Family, protocol: fe.Protocol, unanswered: true}
		if !slices.Contains(queries, q) {
			queries = append(queries, q)
		}
	}
	return queries
}

// concerns reports whether an entry is of a connection that was begun while the rules were
// away. nodePorts are the addresses on which node ports answer.
func (w *away) concerns(e *entry, nodePorts map[netip.Addr]bool) bool {
	if w == nil || e.answered || e.replyFrom != e.to || e.protocol == nft.TCP && e.state != tcpSynSent {
		return false
	}
	_, served := atFrontend(w.frontends, e, nodePorts, w.ranges)
	return served
}

// done notes that every entry was judged at a time. It gives what is left to look for.
func (w *away) done(at time.Time) *away {
	if w == nil {
		return nil
	}
	w.looks = slices.DeleteFunc(w.looks, func(t time.Time) bool { return !t.After(at) })
	if len(w.looks) == 0 {
		return nil
	}
	return w
}
