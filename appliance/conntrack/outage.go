package conntrack

import (
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/nft"
)

// outageCheck finds connections that began while the rules were missing, as after a flush of the
// ruleset. The kernel translates by the first packet alone, so retransmissions of such a connection
// keep leaving untranslated. Deleting its entry makes the next one a first packet.
//
// Only unanswered entries are concerned. An answer without translation came from a program of the
// box that listens there, or from a destination that the rules leave alone.
type outageCheck struct {
	frontends map[Frontend]struct{} // all that are served
	ranges    Ranges                // those of them
	looks     []time.Time           // still to come, in order
}

// next returns the time of the next look; zero: none is due.
func (w *outageCheck) next() time.Time {
	if w == nil || len(w.looks) == 0 {
		return time.Time{}
	}
	return w.looks[0]
}

// due reports whether it is time to look.
func (w *outageCheck) due(now time.Time) bool {
	next := w.next()
	return !next.IsZero() && !next.After(now)
}

// queries returns dumps of unanswered entries, one for each served family and protocol.
func (w *outageCheck) queries() (queries []query) {
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
func (w *outageCheck) concerns(e *entry, nodePorts map[netip.Addr]bool) bool {
	if w == nil || e.answered || e.replyFrom != e.to || e.protocol == nft.TCP && e.state != tcpSynSent {
		return false
	}
	_, served := atFrontend(w.frontends, e, nodePorts, w.ranges)
	return served
}

// done records that every entry was judged at a time. It returns nil when no scan is left.
func (w *outageCheck) done(at time.Time) *outageCheck {
	if w == nil {
		return nil
	}
	w.looks = slices.DeleteFunc(w.looks, func(t time.Time) bool { return !t.After(at) })
	if len(w.looks) == 0 {
		return nil
	}
	return w
}
