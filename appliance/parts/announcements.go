package parts

import (
	"context"
	"fmt"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announcements"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/object"
)

// announcerPatience is how long an announcer may be away, as while it starts anew, before that is a problem.
const announcerPatience = 30 * time.Second

// Announcements keeps the Book of addresses that are to be announced up to date.
type Announcements struct {
	reconcile.NopPart
	book *announcements.Book
}

func NewAnnouncements(book *announcements.Book) *Announcements { return &Announcements{book: book} }

// Name implements reconcile.Part.
func (a *Announcements) Name() string { return "announcements" }

// Run implements reconcile.Part.
func (a *Announcements) Run(ctx context.Context, changed func()) error {
	var late <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.book.Changed():
		case <-late:
		}
		late = nil
		if since, missing := a.book.Missing(); missing && time.Since(since) < announcerPatience {
			late = time.After(announcerPatience - time.Since(since))
		}
		changed()
	}
}

// Planned implements reconcile.Part: what is not to be announced any more is withdrawn before its rules go.
func (a *Announcements) Planned(_ *reconcile.Host, services []reconcile.Service) {
	for _, svc := range services {
		a.book.Plan(svc.Key, svc.Ports)
	}
}

// Stepped implements reconcile.Part.
func (a *Announcements) Stepped(step reconcile.Step) {
	if step.Applied {
		a.book.Programmed(step.Synced)
	}
}

// Problems implements reconcile.Part.
func (a *Announcements) Problems() []resolve.Problem {
	var list []resolve.Problem
	for _, c := range a.book.Conflicts() {
		for _, service := range c.Services {
			namespace, name, _ := strings.Cut(service, "/")
			list = append(list, resolve.Problem{
				Object: object.Ref{Kind: object.KindService, Namespace: namespace, Name: name}, Reason: "AddressConflict",
				Message: fmt.Sprintf("%s is not announced (%s): the host with the Ethernet address %s answers for it; take the address from that host, or choose another one: it is asked for again every 10 s",
					c.Address, c.By, c.With),
			})
		}
	}
	for _, p := range a.book.PeersDown() {
		list = append(list, resolve.Problem{Reason: "PeerDown", Warning: true, Message: peerDown(&p)})
	}
	for _, text := range a.book.Problems() {
		list = append(list, resolve.Problem{Reason: "Announcer", Message: text, Warning: true})
	}
	if since, missing := a.book.Missing(); missing && time.Since(since) >= announcerPatience {
		list = append(list, resolve.Problem{Reason: "AnnouncerMissing", Warning: true, Message: fmt.Sprintf(
			"no announcer is connected since %s, and addresses of Services may not be found by their neighbors: look at `systemctl status svcctl-announce`, or start `svcctl announce`",
			since.UTC().Format(time.RFC3339))})
	}
	return list
}

// peerDown says why a router has no session with this box, and what to do.
func peerDown(p *wire.Peer) string {
	who := p.At
	if p.Name != p.At {
		who = fmt.Sprintf("%s (%s)", p.Name, p.At)
	}
	return fmt.Sprintf("no BGP session with %s, which gets no routes to addresses of Services: %s; compare the BGP settings of that router with the flags of `svcctl announce`: it is tried again every few seconds",
		who, p.LastDown)
}
