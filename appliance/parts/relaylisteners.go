package parts

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
)

// Listens opens a listener before clients are redirected to it, for resolve.Facts.
func (r *Relay) Listens(service string, proto nft.Protocol, at netip.AddrPort) (why string) {
	l := listener{proto.String(), at}
	err := r.relay.Open(l.protocol, l.at)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.waiting[l], service)
		return ""
	}
	if r.waiting[l] == nil {
		r.waiting[l] = map[string]bool{}
	}
	r.waiting[l][service] = true
	r.late.Trigger()
	return err.Error()
}

// openInterval is between attempts to open listeners.
const openInterval = 5 * time.Second

// openLate tries to open the listeners that Services wait for, as long as there are such.
func (r *Relay) openLate(ctx context.Context, changed func()) error {
	r.late.Run(ctx, func() ([]string, bool) {
		opened, waiting := r.openWaiting()
		if opened {
			changed()
		}
		return nil, waiting
	})
	return nil
}

// openWaiting reports whether a listener that Services wait for could be opened, and whether others wait.
func (r *Relay) openWaiting() (opened, waiting bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l, services := range r.waiting {
		if len(services) > 0 && r.relay.Open(l.protocol, l.at) != nil {
			waiting = true
			continue
		}
		r.again = slices.AppendSeq(r.again, maps.Keys(services))
		opened = opened || len(services) > 0
		delete(r.waiting, l)
	}
	for family, services := range r.routeless {
		if len(services) == 0 {
			continue
		}
		if delivered, err := node.DeliversForOthers(family == nft.IPv6); err != nil || !delivered {
			waiting = true
			continue
		}
		r.again = slices.AppendSeq(r.again, maps.Keys(services))
		opened = true
		clear(services)
	}
	return opened, waiting
}

// Transparent returns why connections with clients' own addresses cannot be made, for resolve.Facts; "":
// they can.
func (r *Relay) Transparent(service string, f nft.Family) (why string) {
	delivered, err := node.DeliversForOthers(f == nft.IPv6)
	r.mu.Lock()
	defer r.mu.Unlock()
	if delivered {
		delete(r.routeless[f], service)
		return ""
	}
	r.routeless[f][service] = true
	r.late.Trigger()
	if err != nil {
		return err.Error()
	}
	ip := "ip"
	if f == nft.IPv6 {
		ip = "ip -6"
	}
	return annotation.Transparent + " has endpoints answer to the clients' own addresses, and no rule of routing delivers such answers here: " +
		"mark them by a rule of nft (`socket transparent 1 meta mark set 0x1`), and route them by `" + ip + " rule add fwmark 0x1 lookup 100` and `" + ip + " route add local default dev lo table 100`"
}

// waitNoMore forgets a Service that asks for no relay any more.
func (r *Relay) waitNoMore(service string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, services := range r.waiting {
		delete(services, service)
	}
	for _, services := range r.routeless {
		delete(services, service)
	}
}
