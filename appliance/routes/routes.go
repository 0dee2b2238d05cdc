package routes

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// Follow calls send with all announcements, and then with changes, until ctx is done.
type Follow func(ctx context.Context, send func(wire.AnnouncementsEvent) error) error

// retry is the wait before a change that the kernel refused is tried again, with all others.
const retry = 10 * time.Second

// Run keeps a table equal to the routes of announced addresses until ctx is done. The routes stay then, as the rules do.
// The calling thread must be in the network namespace.
func Run(ctx context.Context, number int, follow Follow, log *slog.Logger) error {
	for ctx.Err() == nil {
		e := &exporter{ctx: ctx}
		var err error
		if e.table, err = Open(number); err == nil {
			err = follow(ctx, e.follow)
		}
		if ctx.Err() != nil {
			break
		}
		log.Error("routes to announced addresses are not as they should be", "table", number, "err", err, "retry", retry)
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
	return nil
}

// exporter counts the addresses behind each route.
type exporter struct {
	ctx     context.Context
	table   *Table
	lengths map[string][2]int // of the prefixes of advertisements, IPv4 and IPv6
	of      map[netip.Addr][]netip.Prefix
	behind  map[netip.Prefix]int
	drained bool
}

// follow processes an event of announcements.
func (e *exporter) follow(event wire.AnnouncementsEvent) error {
	if event.Config != nil {
		e.lengths = map[string][2]int{}
		for _, a := range event.Config.Advertisements {
			e.lengths[a.Name] = [2]int{a.Length4, a.Length6}
		}
	}
	changes := map[netip.Prefix]bool{}
	if event.All != nil {
		e.of, e.behind, e.drained = map[netip.Addr][]netip.Prefix{}, map[netip.Prefix]int{}, event.All.Drained
		for i := range event.All.Items {
			e.set(&event.All.Items[i], changes)
		}
	}
	for i := range event.Set {
		e.set(&event.Set[i], changes)
	}
	for _, text := range event.Gone {
		e.set(&wire.Announcement{Address: text, Withheld: "gone"}, changes)
	}
	whole := event.All != nil
	if event.Drained != nil {
		e.drained, whole = *event.Drained, true
	}
	switch {
	case e.drained:
		return e.table.Set(e.ctx, nil)
	case whole:
		all := map[netip.Prefix]bool{}
		for p := range e.behind {
			all[p] = true
		}
		return e.table.Set(e.ctx, all)
	}
	return e.table.Change(e.ctx, changes)
}

// set replaces the routes to an address, and adds those that appear or disappear by that to changes.
func (e *exporter) set(item *wire.Announcement, changes map[netip.Prefix]bool) {
	addr, err := netip.ParseAddr(item.Address)
	if err != nil {
		return
	}
	for _, p := range e.of[addr] {
		if e.behind[p]--; e.behind[p] == 0 {
			delete(e.behind, p)
		}
		changes[p] = e.behind[p] > 0
	}
	delete(e.of, addr)
	if item.Withheld != "" {
		return
	}
	var routes []netip.Prefix
	if item.Flags {
		routes = append(routes, netip.PrefixFrom(addr, addr.BitLen()))
	}
	for _, name := range item.Via {
		length := e.lengths[name][0]
		if addr.Is6() {
			length = e.lengths[name][1]
		}
		if length > 0 {
			routes = append(routes, netip.PrefixFrom(addr, length).Masked())
		}
	}
	for _, p := range routes {
		e.behind[p]++
		changes[p] = true
	}
	if len(routes) > 0 {
		e.of[addr] = routes
	}
}
