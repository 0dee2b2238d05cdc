package announcements

import (
	"context"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
)

// Registry has the planned and the published announcements of addresses, and the last report of the announcer. Its methods may be called
// concurrently.
type Registry struct {
	mu       sync.Mutex
	ranges   []nft.Range
	plan     Plan // nil: all addresses are announced as the announcer's flags specify
	config   wire.AnnounceConfig
	configs  int // number of changes of config or ranges
	services map[string]service
	addrs    map[netip.Addr]*address
	waiting  map[netip.Addr]struct{} // addresses to publish when their rules are in force
	complete bool                    // Programmed was called

	watchers  map[*watcher]struct{}
	announcer announcer
	conflicts int // number of addresses that another host has
	drained   bool
	changed   chan struct{}
}

// service has the addresses of a Service that may be announced.
type service struct {
	labels map[string]string
	addrs  map[netip.Addr]string // why the address is not announced; "" if it is
}

// address is the state of one address that is used by Services.
type address struct {
	services  map[string]string  // values of service.addrs, by Service
	published *wire.Announcement // without Places; nil if not published
	places    []wire.Place       // as last reported by the announcer
}

// Plan decides where addresses are announced; advertise.Plan implements it.
type Plan interface {
	Advertised(addr netip.Addr, labels map[string]string, ready bool) (flags bool, interfaces, via []string)
}

// watcher is one watch of the announcements, with the addresses that changed since its last event.
type watcher struct {
	changed    map[netip.Addr]struct{}
	configured bool // events include AnnounceConfig
	began      bool // the full list was sent
	configs    int  // Registry.configs when the full list was last sent
	drained    bool // Registry.drained as sent last
	wake       chan struct{}
}

// New returns a Registry for the addresses in the given ranges.
func New(ranges []nft.Range) *Registry {
	return &Registry{
		ranges: ranges, services: map[string]service{}, addrs: map[netip.Addr]*address{}, waiting: map[netip.Addr]struct{}{},
		watchers: map[*watcher]struct{}{}, announcer: newAnnouncer(), changed: make(chan struct{}, 1),
	}
}

// SetPlan replaces the ranges, and the plan by which their addresses are announced. Withdrawals are published at once, other changes by the next call
// of Programmed.
func (r *Registry) SetPlan(ranges []nft.Range, plan Plan, config wire.AnnounceConfig) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plan = plan
	if !slices.Equal(r.ranges, ranges) || !reflect.DeepEqual(r.config, config) {
		r.ranges, r.config = ranges, config
		r.configs++
	}
	for a := range r.addrs {
		r.replan(a)
	}
	r.wakeAll()
}

// Plan records the ports that a Service is about to have; without ports the Service is removed. Withdrawals are published at once, other
// changes by Programmed. It reports whether the addresses, the reasons to withhold them, or the labels of the Service changed.
func (r *Registry) Plan(name string, labels map[string]string, ports []nft.ServicePort) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wanted := wantedOf(ports, r.inRanges)
	before := r.services[name]
	if maps.Equal(before.addrs, wanted) && maps.Equal(before.labels, labels) {
		return false
	}
	if wanted == nil {
		delete(r.services, name)
	} else {
		r.services[name] = service{labels, wanted}
	}
	for a := range before.addrs {
		if _, still := wanted[a]; !still {
			delete(r.addrs[a].services, name)
			r.replan(a)
		}
	}
	for a, why := range wanted {
		if r.addrs[a] == nil {
			r.addrs[a] = &address{services: map[string]string{}}
		}
		r.addrs[a].services[name] = why
		r.replan(a)
	}
	return true
}

func (r *Registry) inRanges(a netip.Addr) bool {
	return slices.ContainsFunc(r.ranges, func(of nft.Range) bool { return of.Contains(a) })
}

// Reasons why an address is not announced.
const (
	noEndpoint      = "no ready endpoint"
	noLocalEndpoint = "no endpoint on this box, and the policy is Local"
	hostAddress     = "an address of this host, which answers for it itself"
	// notAdvertised is the reason for an address that no object announces.
	notAdvertised = "no L2Advertisement or BGPAdvertisement covers it"
)

// wantedOf returns the addresses of a Service's ports that may be announced (inRanges), except cluster IPs, each with the reason to withhold it. The
// reason is "" if at least one port serves external clients at the address, or if hosts leave the box with it (Egress).
func wantedOf(ports []nft.ServicePort, inRanges func(netip.Addr) bool) map[netip.Addr]string {
	var all map[netip.Addr]string
	for i := range ports {
		p := &ports[i]
		for j := range p.Frontends {
			fe := &p.Frontends[j]
			if !fe.Addr.IsValid() || fe.Kind == nft.ClusterIP || !inRanges(fe.Addr) {
				continue
			}
			why := noEndpoint
			switch {
			case fe.HostOwned:
				why = hostAddress
			case p.Takes(fe.External.Pool), slices.ContainsFunc(ports, func(o nft.ServicePort) bool { return len(o.Egress.Sources) > 0 && o.Egress.Addr == fe.Addr }):
				why = "" // hosts that leave with it get their replies by this box
			case p.Takes(nft.PoolCluster):
				why = noLocalEndpoint
			}
			if all == nil {
				all = map[netip.Addr]string{}
			}
			if before, has := all[fe.Addr]; !has || before != "" && (why == "" || before == noEndpoint) {
				all[fe.Addr] = why
			}
		}
	}
	return all
}

// replan publishes the change of an address at once if the address was announced and the change withdraws the announcement, or alters where it is
// made (L2, Via). It leaves other changes to Programmed.
func (r *Registry) replan(a netip.Addr) {
	r.waiting[a] = struct{}{}
	now, was := r.planned(a), r.addrs[a].published
	if was != nil && was.Withheld == "" && (now == nil || now.Withheld != "" || !slices.Equal(was.L2, now.L2) || !slices.Equal(was.Via, now.Via)) {
		r.publish(a)
	}
}

// planned returns the announcement of an address according to the current plan; nil if the address has no Service.
func (r *Registry) planned(a netip.Addr) *wire.Announcement {
	of := r.addrs[a].services
	if len(of) == 0 {
		return nil
	}
	item := &wire.Announcement{Address: a.String(), Services: slices.Sorted(maps.Keys(of))}
	item.Withheld = of[item.Services[0]]
	for _, name := range item.Services {
		if of[name] == "" {
			item.Withheld = ""
		}
	}
	if r.plan == nil {
		item.Flags = true
		return item
	}
	for _, name := range item.Services {
		flags, interfaces, via := r.plan.Advertised(a, r.services[name].labels, of[name] == "")
		item.Flags = item.Flags || flags
		item.L2, item.Via = append(item.L2, interfaces...), append(item.Via, via...)
	}
	slices.Sort(item.L2)
	slices.Sort(item.Via)
	item.L2, item.Via = slices.Compact(item.L2), slices.Compact(item.Via)
	switch nowhere := !item.Flags && len(item.L2)+len(item.Via) == 0; {
	case nowhere && item.Withheld == "":
		item.Withheld, item.Uncovered = notAdvertised, true
	case !nowhere && item.Withheld != hostAddress:
		item.Withheld = "" // an advertisement may cover Services that are not served
	}
	return item
}

// publish sets the published announcement of an address to the planned one, and notifies watchers if it changed.
func (r *Registry) publish(a netip.Addr) {
	delete(r.waiting, a)
	e := r.addrs[a]
	if e == nil {
		return
	}
	now, was := r.planned(a), e.published
	if now == was || now != nil && was != nil && now.Withheld == was.Withheld && slices.Equal(now.Services, was.Services) &&
		now.Flags == was.Flags && slices.Equal(now.L2, was.L2) && slices.Equal(now.Via, was.Via) {
		r.tidy(a)
		return
	}
	e.published = now
	r.tidy(a)
	for w := range r.watchers {
		w.changed[a] = struct{}{}
		task.Wake(w.wake)
	}
}

// tidy removes an address that has no Service, announcement or places.
func (r *Registry) tidy(a netip.Addr) {
	if e := r.addrs[a]; len(e.services)+len(e.places) == 0 && e.published == nil {
		delete(r.addrs, a)
	}
}

// Programmed publishes the planned announcements, because their nftables rules are in force. Watches get nothing before the first call,
// since an announcer that got only some of the addresses would withdraw the rest.
func (r *Registry) Programmed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a := range r.waiting {
		r.publish(a)
	}
	if !r.complete {
		r.complete = true
		r.wakeAll()
	}
}

func (r *Registry) wakeAll() {
	for w := range r.watchers {
		task.Wake(w.wake)
	}
}

// Watch calls send with all announcements, after the first call of Programmed, and then with changes, until ctx is done or send fails. announces is
// set for the watch of the announcer, which counts as connected until Watch returns.
func (r *Registry) Watch(ctx context.Context, announces bool, send func(wire.AnnouncementsEvent) error) error {
	return r.watch(ctx, announces, announces, send)
}

// Follow is like Watch, for use inside this process: it does not count as a connected announcer. Its events include AnnounceConfig.
func (r *Registry) Follow(ctx context.Context, send func(wire.AnnouncementsEvent) error) error {
	return r.watch(ctx, false, true, send)
}

func (r *Registry) watch(ctx context.Context, announces, configured bool, send func(wire.AnnouncementsEvent) error) error {
	w := &watcher{changed: map[netip.Addr]struct{}{}, configured: configured, wake: make(chan struct{}, 1)}
	task.Wake(w.wake)
	count := func(by int) {
		if announces && r.announcer.count(by) {
			task.Wake(r.changed)
		}
	}
	r.mu.Lock()
	r.watchers[w] = struct{}{}
	count(1)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watchers, w)
		count(-1)
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
		}
		if event, ok := r.nextEvent(w); ok {
			if err := send(event); err != nil {
				return err
			}
		}
	}
}

// nextEvent returns an event with the changes that a watch has not sent yet; ok is false if there are none.
func (r *Registry) nextEvent(w *watcher) (event wire.AnnouncementsEvent, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.complete {
		return event, false
	}
	if !w.began || w.configs != r.configs {
		clear(w.changed)
		w.began, w.drained, w.configs = true, r.drained, r.configs
		event.All = new(r.list(false))
		if w.configured {
			config := r.config // it is read without the lock
			event.Config = &config
		}
		return event, true
	}
	for a := range w.changed {
		if e := r.addrs[a]; e != nil && e.published != nil {
			event.Set = append(event.Set, *e.published)
		} else {
			event.Gone = append(event.Gone, a.String())
		}
	}
	clear(w.changed)
	if w.drained != r.drained {
		w.drained = r.drained
		event.Drained = &w.drained
	}
	return event, len(event.Set)+len(event.Gone) > 0 || event.Drained != nil
}

// Changed returns a channel that gets a value when the result of Conflicts, Problems, PeersDown or Missing may have changed.
func (r *Registry) Changed() <-chan struct{} { return r.changed }

// SetDrained sets whether the announcer withdraws all addresses, whatever is published.
func (r *Registry) SetDrained(drained bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.drained == drained {
		return
	}
	r.drained = drained
	r.wakeAll()
	task.Wake(r.changed)
}
