package routes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/task"
)

// Follow calls send with the current announcements and then with each change, until ctx is done or send fails.
type Follow func(ctx context.Context, send func(wire.AnnouncementsEvent) error) error

// retry is the delay before the routes are written again after the kernel refused a change.
const retry = 10 * time.Second

// Run keeps a kernel routing table in sync with the announced addresses until ctx is done. It then leaves the routes in place, as svcctl does with
// its rules. The calling thread must be in the network namespace of the table.
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
		task.Sleep(ctx, retry)
	}
	return nil
}

// exporter maps announced addresses to routes, and counts the addresses behind each route.
type exporter struct {
	ctx     context.Context
	table   *Table
	lengths map[string][2]int // the prefix lengths of routes for IPv4 and IPv6, by the name of an advertisement
	of      map[netip.Addr][]netip.Prefix
	behind  map[netip.Prefix]int
	drained bool
}

// follow applies an event of announcements to the routing table.
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

// set replaces the routes of an announced address. It records each affected route in changes: true if an address still has it afterwards, false if it
// is to be removed.
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

// Protocol is the routing protocol number (rtm_protocol) of the routes of svcctl. 196 is avoided: FRR treats routes with that number as its own.
const Protocol = 118

// Change pauses for burstTime after every 100 changes (burst). BIRD loses changes that come faster than it reads them, and then keeps withdrawn
// routes until its next scan.
const (
	burst     = 100
	burstTime = 50 * time.Millisecond
)

// Table is the part of a kernel routing table that svcctl manages: the routes with Protocol.
type Table struct {
	number int
	have   map[netip.Prefix]bool
}

// Open reads the routes with Protocol from the routing table with this number.
func Open(number int) (*Table, error) {
	t := &Table{number: number, have: map[netip.Prefix]bool{}}
	routes, err := list(&netlink.Route{Table: number, Protocol: Protocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("read the routes of table %d: %w", number, err)
	}
	for i := range routes {
		if p, ok := prefixOf(&routes[i]); ok {
			t.have[p] = true
		}
	}
	return t, nil
}

// list returns the IPv4 and IPv6 routes that match a filter. by has the netlink.RT_FILTER flags of the fields to compare.
func list(filter *netlink.Route, by uint64) (all []netlink.Route, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := node.Try(func() ([]netlink.Route, error) { return netlink.RouteListFiltered(family, filter, by) })
		if err != nil {
			return nil, err
		}
		all = append(all, routes...)
	}
	return all, nil
}

// try applies change to a route, and retries after a transient error. change may thus take effect twice.
func try(change func(*netlink.Route) error, r *netlink.Route) error {
	_, err := node.Try(func() (struct{}, error) { return struct{}{}, change(r) })
	return err
}

func prefixOf(r *netlink.Route) (p netip.Prefix, ok bool) {
	if r.Dst == nil {
		return p, false
	}
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	if r.Family == unix.AF_INET {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, bits), ok
}

func (t *Table) route(p netip.Prefix) *netlink.Route {
	return &netlink.Route{
		Table: t.number, Protocol: Protocol, Type: unix.RTN_UNREACHABLE,
		Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
	}
}

// Set makes the routes in the table those in routes, which all have the value true. It removes all others.
func (t *Table) Set(ctx context.Context, routes map[netip.Prefix]bool) error {
	changes := map[netip.Prefix]bool{}
	for p := range t.have {
		if !routes[p] {
			changes[p] = false
		}
	}
	for p := range routes {
		changes[p] = true
	}
	return t.Change(ctx, changes)
}

// Change adds the routes with the value true and removes those with false.
func (t *Table) Change(ctx context.Context, changes map[netip.Prefix]bool) error {
	var errs []error
	n := 0
	for p, wanted := range changes {
		if wanted == t.have[p] {
			continue
		}
		if n++; n%burst == 0 {
			if !task.Sleep(ctx, burstTime) {
				return ctx.Err()
			}
		}
		if err := t.change(p, wanted); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (t *Table) change(p netip.Prefix, wanted bool) error {
	if wanted {
		if err := try(netlink.RouteReplace, t.route(p)); err != nil {
			return fmt.Errorf("add the route to %s to table %d: %w", p, t.number, err)
		}
		t.have[p] = true
		return nil
	}
	if err := try(netlink.RouteDel, t.route(p)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove the route to %s from table %d: %w", p, t.number, err)
	}
	delete(t.have, p)
	return nil
}

// Clear removes all routes of Protocol from all tables.
func Clear() error {
	routes, err := list(&netlink.Route{Table: unix.RT_TABLE_UNSPEC, Protocol: Protocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("read the routes of announced addresses: %w", err)
	}
	var errs []error
	for i := range routes {
		if err := try(netlink.RouteDel, &routes[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove %s: %w", routes[i].Dst, err))
		}
	}
	return errors.Join(errs...)
}
