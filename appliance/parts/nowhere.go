package parts

import (
	"fmt"
	"slices"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/object"
)

// Reasons of problems with addresses that have to be announced and are not.
const (
	reasonNotAnnounced     = "NotAnnounced"
	reasonNotAdvertised    = "NotAdvertised"
	reasonAnnouncerMissing = "AnnouncerMissing"
	reasonDrained          = "Drained"
)

// nowherePatience is the time for which an address may be announced nowhere, as while the announcer restarts.
const nowherePatience = 5 * time.Second

// mostUnanswered bounds the addresses without an answer to neighbors that are looked at.
const mostUnanswered = 1000

// nowhere are the problems of Services with an address that has to be announced, since it lies in an advertised pool or
// in a network of the box where nothing answers for it, and is announced nowhere.
func nowhere(all *wire.Announcements, unanswered []wire.Unanswered) (problems []resolve.Problem) {
	silent := map[string]*wire.Unanswered{}
	for i := range unanswered {
		silent[unanswered[i].Address] = &unanswered[i]
	}
	add := func(services []string, reason, address, why string) {
		for _, service := range services {
			problems = append(problems, resolve.Problem{Object: object.ServiceRef(service), Reason: reason, Cause: why,
				Message: fmt.Sprintf("%s is announced nowhere: %s", address, why)})
		}
	}
	away := awayElsewhere(all)
	for i := range all.Items {
		item := &all.Items[i]
		u := silent[item.Address]
		delete(silent, item.Address)
		advertised := len(item.L2)+len(item.Via) > 0
		uncovered := item.Withheld != "" && !advertised && !all.Drained && u != nil && item.Uncovered
		switch {
		case item.Withheld != "" && !uncovered, slices.ContainsFunc(item.Places, isAlive), !advertised && u == nil:
		case all.Drained && away:
		case all.Drained:
			add(item.Services, reasonDrained, item.Address, "this box is drained")
		case uncovered:
			add(item.Services, reasonNotAdvertised, item.Address, "no L2Advertisement or BGPAdvertisement covers it, and it lies in the network "+u.Network+" of "+u.Interface)
		case all.Announcer == nil && !advertised:
			add(item.Services, reasonNotAdvertised, item.Address, "it lies in the network "+u.Network+" of "+u.Interface+", and no announcer runs")
		case all.Announcer == nil:
			add(item.Services, reasonAnnouncerMissing, item.Address, "the announcer is not running")
		default:
			add(item.Services, reasonNotAnnounced, item.Address, whyNowhere(item))
		}
	}
	for _, u := range unanswered {
		if silent[u.Address] != nil && !all.Drained {
			add(u.Services, reasonNotAdvertised, u.Address, "it lies in the network "+u.Network+" of "+u.Interface+", and nothing answers for it there")
		}
	}
	return problems
}

// isAlive reports whether clients reach an address by a place, or will in a moment, or whether the place has a problem of
// its own.
func isAlive(p wire.Place) bool {
	return slices.Contains([]string{"announced", "standby", "host", "probing", "sending", "conflict"}, p.State)
}

// whyNowhere is why an address is announced nowhere though an announcer runs.
func whyNowhere(item *wire.Announcement) string {
	if len(item.Places) == 0 {
		return item.Nowhere
	}
	p := item.Places[0]
	if p.Why != "" {
		return p.By + ": " + p.Why
	}
	return p.By + " is " + p.State
}

// awayElsewhere reports whether another box is known to announce the addresses of a drained one.
func awayElsewhere(all *wire.Announcements) bool {
	return all.Group != nil && all.Group.Master != ""
}

// drainedProblem is the problem of a drained box.
func drainedProblem(all *wire.Announcements, lost int) resolve.Problem {
	p := resolve.Problem{Reason: reasonDrained, Warning: lost == 0, Cause: "this box is drained",
		Message: "this box is drained: it announces no address; `svcctl announce undrain` ends that"}
	switch {
	case lost > 0:
		p.Message = "this box is drained, and no other box is known to announce its addresses; `svcctl announce undrain` ends that"
	case awayElsewhere(all):
		p.Message = "this box is drained: " + all.Group.Master + " answers for its addresses; `svcctl announce undrain` ends that"
	}
	return p
}

// look brings the problems of addresses that are announced nowhere up to date, and gives the time after which to look
// again; 0: only after a change.
func (a *Announcements) look(now time.Time) (again time.Duration) {
	all := a.book.List()
	unanswered, _ := a.unanswered(mostUnanswered)
	found := nowhere(&all, unanswered)
	a.mu.Lock()
	defer a.mu.Unlock()
	since := make(map[object.Ref]time.Time, len(found))
	a.lost = a.lost[:0:0]
	for _, p := range found {
		at, known := a.since[p.Object]
		if !known {
			at = now
		}
		since[p.Object] = at
		if left := nowherePatience - now.Sub(at); left > 0 && p.Reason != reasonDrained {
			again = max(left, time.Second)
			continue
		}
		a.lost = append(a.lost, p)
	}
	if a.since = since; again == 0 && len(found) > 0 {
		again = nowherePatience // a route or an address of the box may answer by then
	}
	a.drained = nil
	if all.Drained {
		p := drainedProblem(&all, len(found))
		a.drained = &p
	}
	return again
}

// nowhereProblems are the problems that the last look found.
func (a *Announcements) nowhereProblems() []resolve.Problem {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := slices.Clone(a.lost)
	if a.drained != nil {
		list = append(list, *a.drained)
	}
	return list
}
