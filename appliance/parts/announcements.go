package parts

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announcements"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// announcerPatience is the absence of an announcer, as during a restart, that is no problem yet.
const announcerPatience = 30 * time.Second

// differencePatience is the time for which boxes may have different addresses, as while a change arrives, before that is
// a problem.
const differencePatience = 10 * time.Second

// Announcements keeps the Book of addresses that are to be announced up to date, and writes Events when an
// address is announced or withdrawn.
type Announcements struct {
	reconcile.NopPart
	book   *announcements.Registry
	store  *store.Store
	node   object.Ref
	events EventRecorder

	// unanswered lists addresses that lie in a network of the box and that nothing answers for.
	unanswered func(most int) (list []wire.Unanswered, more int)
	planned    chan struct{}
	wasDrained bool // the last that the book was given

	mu      sync.Mutex
	since   map[object.Ref]time.Time // Services with an address that is announced nowhere
	lost    []resolve.Problem
	drained *resolve.Problem

	// problems returns the problems of the objects that say where addresses are announced.
	problems func() []resolve.Problem
}

// NewAnnouncements follows the drain of the Node of this box.
func NewAnnouncements(book *announcements.Registry, objects *store.Store, nodeName string, events EventRecorder, problems func() []resolve.Problem, unanswered func(most int) ([]wire.Unanswered, int)) *Announcements {
	return &Announcements{book: book, store: objects, node: object.Ref{Kind: object.KindNode, Name: nodeName}, events: events, problems: problems, unanswered: unanswered, planned: make(chan struct{}, 1)}
}

// Name implements reconcile.Part.
func (a *Announcements) Name() string { return "announcements" }

// Run implements reconcile.Part.
func (a *Announcements) Run(ctx context.Context) error {
	var late <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.book.Changed():
		case <-late:
		case <-a.planned:
			select { // others that come with it
			case <-ctx.Done():
				return nil
			case <-time.After(500 * time.Millisecond):
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
		a.Changed()
	}
}

// Planned implements reconcile.Part: an address without a Service is withdrawn before its rules are deleted.
func (a *Announcements) Planned(_ *reconcile.Host, services []reconcile.Service) {
	for _, svc := range services {
		var labels map[string]string
		if o, _, _ := a.store.InForce().Service(svc.Key); o != nil {
			labels = o.Metadata.Labels
		}
		a.book.Plan(svc.Key, labels, svc.Ports)
	}
	a.wake()
}

// wake makes Run check for addresses that are announced nowhere.
func (a *Announcements) wake() {
	select {
	case a.planned <- struct{}{}:
	default: // it will look
	}
}

// recordEvents makes Events of addresses that are announced from now on, or no more, with MetalLB's reasons.
func (a *Announcements) recordEvents() {
	for _, m := range a.book.Takeovers() {
		reason, verb := "nodeAssigned", "announcing"
		if !m.Announced {
			reason, verb = "nodeUnassigned", "no longer announcing"
		}
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
		a.wake()
	}
	if step.Applied {
		a.book.Programmed()
	}
}

// isDrained reports whether the Node of this box is not to get traffic from outside.
func (a *Announcements) isDrained() bool {
	o, _ := a.store.Get(a.node)
	if o == nil {
		return false
	}
	_, drained := o.GetMeta().Labels[annotation.ExcludeNode]
	return drained
}

// Problems implements reconcile.Part.
func (a *Announcements) Problems() []resolve.Problem {
	var list []resolve.Problem
	list = append(list, a.problems()...)
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

// groupDisagrees describes the addresses that only one of two boxes of a group has.
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

// peerDown describes why a router has no session with this box, and the next step.
func peerDown(p *wire.Peer) string {
	who := p.At
	if p.Name != p.At {
		who = fmt.Sprintf("%s (%s)", p.Name, p.At)
	}
	return fmt.Sprintf("no BGP session with %s, which gets no routes to addresses of Services: %s; compare the BGP settings of that router with the BGPPeer, or the flags of the announcer: it is tried again every few seconds",
		who, p.LastDown)
}
