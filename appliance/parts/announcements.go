package parts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announcements"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// announcerPatience is how long the announcer may be absent, for example during a restart, before a problem is reported.
const announcerPatience = 30 * time.Second

// differencePatience is how long two boxes of a group may announce different addresses, for example while a change arrives, before a problem is
// reported.
const differencePatience = 10 * time.Second

// Announcements passes the addresses to announce to the Registry, and writes Events when an address is announced or withdrawn.
type Announcements struct {
	reconcile.NopPart
	book    *announcements.Registry
	store   *store.Store
	node    object.Ref
	events  EventRecorder
	history *history.Book // records announcements and withdrawals; nil records nothing

	inNetworks
	planned    chan struct{}
	wasDrained bool // the last argument of book.SetDrained

	mu      sync.Mutex
	since   map[object.Ref]time.Time // when a Service was first found to have an address that is announced nowhere
	lost    []resolve.Problem
	drained *resolve.Problem

	// problems returns the problems of the objects that configure where addresses are announced.
	problems func() []resolve.Problem
}

// inNetworks finds the addresses of Services that lie in directly connected networks of the box.
type inNetworks struct {
	// unanswered returns the addresses for which ARP and NDP requests get no answer. It returns no more of them than its argument, and the number of
	// the others.
	unanswered func(most int) (list []wire.Unanswered, more int)
	changes    func() uint64 // a count that rises when the result of unanswered may have changed
	seen       uint64        // the result of changes at the last plan
}

// NewAnnouncements returns an Announcements that passes addresses to the registry book. It withdraws all addresses while the Node of this box is
// drained.
func NewAnnouncements(book *announcements.Registry, objects *store.Store, nodeName string, events EventRecorder, past *history.Book, problems func() []resolve.Problem, unanswered func(most int) ([]wire.Unanswered, int), changes func() uint64) *Announcements {
	return &Announcements{book: book, store: objects, node: object.Ref{Kind: object.KindNode, Name: nodeName}, events: events, history: past, problems: problems, inNetworks: inNetworks{unanswered: unanswered, changes: changes}, planned: make(chan struct{}, 1)}
}

// Name implements reconcile.Part.
func (a *Announcements) Name() string { return "announcements" }

// Run implements reconcile.Part.
func (a *Announcements) Run(ctx context.Context) error {
	var late <-chan time.Time
	var known []resolve.Problem
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.book.Changed():
		case <-late:
		case <-a.planned:
			if !task.Sleep(ctx, 500*time.Millisecond) { // others come with it
				return nil
			}
		}
		late = nil
		wait := a.look(time.Now())
		sooner := func(d time.Duration) {
			if wait == 0 || d < wait {
				wait = d
			}
		}
		a.recordEvents()
		if g := a.book.Drift(); g != nil && time.Since(g.Differs.Since) < differencePatience {
			sooner(differencePatience - time.Since(g.Differs.Since))
		}
		if since, missing := a.book.Missing(); missing && time.Since(since) < announcerPatience {
			sooner(announcerPatience - time.Since(since))
		}
		if wait > 0 {
			late = time.After(wait)
		}
		if now := a.found(); !slices.Equal(known, now) {
			known = now
			a.Changed()
		}
	}
}

// Planned implements reconcile.Part: an address without a Service is withdrawn before its rules are deleted.
func (a *Announcements) Planned(host *reconcile.Host, services []reconcile.Service) {
	changes := a.changes()
	changed := host != nil || changes != a.seen
	a.seen = changes
	for _, svc := range services {
		var labels map[string]string
		if o, _, _ := a.store.InForce().Service(svc.Key); o != nil {
			labels = o.Metadata.Labels
		}
		changed = a.book.Plan(svc.Key, labels, svc.Ports) || changed
	}
	if changed {
		task.Wake(a.planned)
	}
}

// recordEvents writes an Event and a history transition for each address whose announcement began or ended since the last call. The reasons of the
// Events are MetalLB's.
func (a *Announcements) recordEvents() {
	for _, m := range a.book.Takeovers() {
		reason, verb, state := "nodeAssigned", "announcing", "announced"
		if !m.Announced {
			reason, verb, state = "nodeUnassigned", "no longer announcing", ""
		}
		a.history.Add(history.Transition{At: time.Now(), Key: history.Key{Kind: history.KindAnnouncement, Object: m.Address.String(), What: m.By}, State: state, Services: m.Services})
		for _, service := range m.Services {
			a.events.Record(object.ServiceRef(service), reason, fmt.Sprintf("%s %s from node %q by %s", verb, m.Address, a.node.Name, m.By), true)
		}
	}
}

// Stepped implements reconcile.Part.
func (a *Announcements) Stepped(step reconcile.Step) {
	if drained := a.isDrained(); drained != a.wasDrained {
		a.wasDrained = drained
		a.book.SetDrained(drained)
		task.Wake(a.planned)
	}
	if step.Applied {
		a.book.Programmed()
	}
}

// isDrained reports whether the Node of this box has the label node.kubernetes.io/exclude-from-external-load-balancers.
func (a *Announcements) isDrained() bool {
	o, _ := a.store.Get(a.node)
	if o == nil {
		return false
	}
	_, drained := o.GetMeta().Labels[annotation.ExcludeNode]
	return drained
}

// Problems implements reconcile.Part.
func (a *Announcements) Problems() []resolve.Problem { return slices.Concat(a.problems(), a.found()) }

// found returns the problems of address conflicts, groups, BGP peers and the announcer, and of addresses that are announced nowhere.
func (a *Announcements) found() (list []resolve.Problem) {
	for _, c := range a.book.Conflicts() {
		for _, service := range c.Services {
			list = append(list, resolve.Problem{
				Object: object.ServiceRef(service), Reason: "AddressConflict",
				Message: fmt.Sprintf("%s is not announced (%s): the host with the Ethernet address %s answers for it; take the address from that host, or choose another one: it is asked for again every 10 s",
					c.Address, c.By, c.With),
			})
		}
	}
	if g := a.book.Drift(); g != nil && time.Since(g.Differs.Since) >= differencePatience {
		list = append(list, resolve.Problem{Reason: "GroupDisagrees", Warning: true, Message: groupDisagrees(g)})
	}
	for _, p := range a.book.PeersDown() {
		list = append(list, resolve.Problem{Reason: "PeerDown", Warning: true, Message: peerDown(&p)})
	}
	for _, text := range a.book.Problems() {
		list = append(list, resolve.Problem{Reason: "Announcer", Message: text, Warning: true})
	}
	lost := a.nowhereProblems()
	list = append(list, lost...)
	if since, missing := a.book.Missing(); missing && len(lost) == 0 && time.Since(since) >= announcerPatience {
		list = append(list, resolve.Problem{Reason: reasonAnnouncerMissing, Warning: true, Message: fmt.Sprintf(
			"no announcer is connected since %s, and addresses of Services may not be found by their neighbors",
			since.UTC().Format(time.RFC3339))})
	}
	return list
}

// groupDisagrees returns the text of the problem that two boxes of a group announce different addresses. It lists the addresses that only one of them
// announces.
func groupDisagrees(g *wire.Group) string {
	var words []string
	for _, part := range []struct {
		who   string
		addrs []string
	}{{"it alone announces ", g.Differs.Theirs}, {"this box alone would announce ", g.Differs.Ours}} {
		if len(part.addrs) > 0 {
			words = append(words, part.who+strings.Join(part.addrs, ", "))
		}
	}
	if len(words) == 0 {
		words = []string{"not among the lowest of them"}
	}
	return fmt.Sprintf("the addresses of virtual router %d are not those of the box that answers, %s: %s; after a takeover some would have no answer: compare the manifests, pools and ready endpoints of both boxes, and write loadBalancerIP into their Services",
		g.VRID, g.Differs.With, strings.Join(words, "; "))
}

// peerDown returns a text with the reason why a router has no BGP session with this box, and the next step.
func peerDown(p *wire.Peer) string {
	who := p.At
	if p.Name != p.At {
		who = fmt.Sprintf("%s (%s)", p.Name, p.At)
	}
	return fmt.Sprintf("no BGP session with %s, which gets no routes to addresses of Services: %s; compare the BGP settings of that router with the BGPPeer, or the flags of the announcer: it is tried again every few seconds",
		who, p.LastDown)
}

// Reasons of problems with addresses that have to be announced and are not.
const (
	reasonNotAnnounced     = "NotAnnounced"
	reasonNotAdvertised    = "NotAdvertised"
	reasonAnnouncerMissing = "AnnouncerMissing"
	reasonDrained          = "Drained"
)

// nowherePatience is how long an address may be announced nowhere, for example while the announcer restarts, before a problem is reported.
const nowherePatience = 5 * time.Second

// mostUnanswered is the largest number of addresses without an ARP or NDP answer that are examined.
const mostUnanswered = 1000

// nowhere returns a problem for each Service with an address that should be announced but is announced nowhere. That is an address of an advertised
// pool, or an address in a network of the box for which nothing answers ARP or NDP.
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

// isAlive reports whether a place prevents an address from counting as announced nowhere: the address is reachable there, soon will be, or has a
// problem that is reported separately.
func isAlive(p wire.Place) bool {
	return slices.Contains([]string{"announced", "standby", "host", "probing", "sending", "conflict"}, p.State)
}

// whyNowhere returns the reason why an address is announced nowhere although an announcer runs.
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

// awayElsewhere reports whether another box of the group is the master, and so announces the addresses of this drained box.
func awayElsewhere(all *wire.Announcements) bool {
	return all.Group != nil && all.Group.Master != ""
}

// drainedProblem returns the problem that this box is drained. lost is the number of addresses that are announced nowhere. The problem is a warning
// if lost is 0, and otherwise an error.
func drainedProblem(all *wire.Announcements, lost int) resolve.Problem {
	p := resolve.Problem{Reason: reasonDrained, Warning: lost == 0, Cause: "this box is drained",
		Message: "this box is drained: it announces no address; `svcctl announce undrain` ends that"}
	switch {
	case lost > 0:
		p.Message = "this box is drained, and no other box reports that it announces its addresses; `svcctl announce undrain` ends that"
	case awayElsewhere(all):
		p.Message = "this box is drained: " + all.Group.Master + " answers for its addresses; `svcctl announce undrain` ends that"
	}
	return p
}

// look updates the problems of addresses that are announced nowhere. It returns the time after which to call it again; 0 means after the
// next change.
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
			if left = max(left, time.Second); again == 0 || left < again {
				again = left
			}
			continue
		}
		a.lost = append(a.lost, p)
	}
	if a.since = since; again == 0 && len(found) > 0 {
		again = nowherePatience // a route or an address of the box may answer by then
	}
	a.drained = nil
	if all.Drained {
		a.drained = new(drainedProblem(&all, len(found)))
	}
	return again
}

// nowhereProblems returns the problems that the last call of look found.
func (a *Announcements) nowhereProblems() []resolve.Problem {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := slices.Clone(a.lost)
	if a.drained != nil {
		list = append(list, *a.drained)
	}
	return list
}
