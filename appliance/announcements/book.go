package announcements

import (
	"context"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/nft"
)

// Book has what is planned and what is published. Its methods may be called concurrently.
type Book struct {
	mu        sync.Mutex
	ranges    []nft.Range
	plan      Plan // nil: everything is announced as flags say
	config    wire.AnnounceConfig
	configs   int                              // how often config and ranges were others
	labels    map[string]map[string]string     // of Services
	of        map[string]map[netip.Addr]string // by Service: its addresses, and why not
	holders   map[netip.Addr]map[string]string // the same by address
	waiting   map[netip.Addr]struct{}          // published when their rules are in force
	complete  bool                             // everything was programmed once
	published map[netip.Addr]wire.Announcement // without places
	watchers  map[*watcher]struct{}
	announcer announcer
	drained   bool
	changed   chan struct{}
}

// Plan decides where addresses are announced (advertise.Plan).
type Plan interface {
	Advertised(addr netip.Addr, labels map[string]string, ready bool) (flags bool, interfaces, via []string)
}

// SetPlan has addresses of other ranges announced, or elsewhere. What it changes is published when the next
// Programmed says that the rules are in force.
func (b *Book) SetPlan(ranges []nft.Range, plan Plan, config wire.AnnounceConfig) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.plan = plan
	if !slices.Equal(b.ranges, ranges) || !reflect.DeepEqual(b.config, config) {
		b.ranges, b.config = ranges, config
		b.configs++
	}
	for a := range b.holders {
		b.touched(a)
	}
	for w := range b.watchers {
		w.signal()
	}
}

// watcher is a watch with what it was not told yet.
type watcher struct {
	news       map[netip.Addr]struct{}
	configured bool // it is told AnnounceConfig
	configs    int  // Book.configs, as it was told last
	drained    bool // likewise
	wake       chan struct{}
}

// New is a Book for the addresses of some ranges.
func New(ranges []nft.Range) *Book {
	return &Book{
		ranges: ranges,
		labels: map[string]map[string]string{}, of: map[string]map[netip.Addr]string{}, holders: map[netip.Addr]map[string]string{},
		waiting: map[netip.Addr]struct{}{}, published: map[netip.Addr]wire.Announcement{},
		watchers: map[*watcher]struct{}{}, announcer: newAnnouncer(), changed: make(chan struct{}, 1),
	}
}

func (b *Book) inRanges(a netip.Addr) bool {
	return slices.ContainsFunc(b.ranges, func(r nft.Range) bool { return r.Contains(a) })
}

// Plan takes the ports that a Service is about to get; none: it goes. What is not to be announced any
// more is published at once, the rest by Programmed.
func (b *Book) Plan(service string, labels map[string]string, ports []nft.ServicePort) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wanted := Wanted(ports, b.inRanges)
	before := b.of[service]
	if maps.Equal(before, wanted) && maps.Equal(b.labels[service], labels) {
		return
	}
	if wanted == nil {
		delete(b.of, service)
		delete(b.labels, service)
	} else {
		b.of[service], b.labels[service] = wanted, labels
	}
	for a := range before {
		if _, still := wanted[a]; !still {
			delete(b.holders[a], service)
			b.touched(a)
		}
	}
	for a, why := range wanted {
		if b.holders[a] == nil {
			b.holders[a] = map[string]string{}
		}
		b.holders[a][service] = why
		b.touched(a)
	}
}

// touched publishes a withdrawal, and has everything else wait.
func (b *Book) touched(a netip.Addr) {
	b.waiting[a] = struct{}{}
	now, there := b.planned(a)
	if was, is := b.published[a]; is && was.Withheld == "" && (!there || now.Withheld != "" || !slices.Equal(was.L2, now.L2) || !slices.Equal(was.Via, now.Via)) {
		b.publish(a)
	}
}

// planned is the announcement to be published of an address; false: none.
func (b *Book) planned(a netip.Addr) (wire.Announcement, bool) {
	holders := b.holders[a]
	if len(holders) == 0 {
		return wire.Announcement{}, false
	}
	item := wire.Announcement{Address: a.String(), Services: slices.Sorted(maps.Keys(holders))}
	for i, service := range item.Services {
		if why := holders[service]; why == "" || i == 0 {
			item.Withheld = why
		}
		if item.Withheld == "" {
			break
		}
	}
	b.advertise(a, &item)
	return item, true
}

// withoutAdvertisement is the reason for an address that no object has announced.
const withoutAdvertisement = "no L2Advertisement or BGPAdvertisement covers it"

// advertise sets in item where an address is announced.
func (b *Book) advertise(a netip.Addr, item *wire.Announcement) {
	if b.plan == nil {
		item.Flags = true
		return
	}
	for _, service := range item.Services {
		flags, interfaces, via := b.plan.Advertised(a, b.labels[service], b.holders[a][service] == "")
		item.Flags = item.Flags || flags
		item.L2, item.Via = append(item.L2, interfaces...), append(item.Via, via...)
	}
	slices.Sort(item.L2)
	slices.Sort(item.Via)
	item.L2, item.Via = slices.Compact(item.L2), slices.Compact(item.Via)
	switch nowhere := !item.Flags && len(item.L2)+len(item.Via) == 0; {
	case nowhere && item.Withheld == "":
		item.Withheld, item.Uncovered = withoutAdvertisement, true
	case !nowhere && item.Withheld != hostAddress:
		item.Withheld = "" // also while no Service is served, where an advertisement says so
	}
}

// publish makes known what is planned of an address.
func (b *Book) publish(a netip.Addr) {
	delete(b.waiting, a)
	item, there := b.planned(a)
	if !there {
		delete(b.holders, a)
	}
	was, is := b.published[a]
	switch {
	case there == is && item.Withheld == was.Withheld && slices.Equal(item.Services, was.Services) &&
		item.Flags == was.Flags && slices.Equal(item.L2, was.L2) && slices.Equal(item.Via, was.Via):
		return
	case there:
		b.published[a] = item
	default:
		delete(b.published, a)
	}
	for w := range b.watchers {
		w.tell(a)
	}
}

func (w *watcher) tell(a netip.Addr) {
	w.news[a] = struct{}{}
	w.signal()
}

func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Programmed records that the rules of everything planned are in force. The first call opens the watches: an
// announcer that got a part of the addresses would withdraw the rest.
func (b *Book) Programmed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for a := range b.waiting {
		b.publish(a)
	}
	if !b.complete {
		b.complete = true
		for w := range b.watchers {
			w.signal()
		}
	}
}

// List returns all published announcements, sorted by address.
func (b *Book) List() wire.Announcements {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.list(true)
}

func (b *Book) list(places bool) wire.Announcements {
	all := wire.Announcements{Drained: b.drained, Ranges: make([]string, len(b.ranges)), Items: make([]wire.Announcement, 0, len(b.published))}
	for i, r := range b.ranges {
		all.Ranges[i] = r.First.String() + "-" + r.Last.String()
	}
	for _, a := range slices.SortedFunc(maps.Keys(b.published), netip.Addr.Compare) {
		item := b.published[a]
		if places {
			item = b.told(a)
		}
		all.Items = append(all.Items, item)
	}
	if b.announcer.isHere() {
		all.Announcer = &wire.Announcer{Since: b.announcer.since}
		all.Peers, all.Group = b.announcer.last.Peers, b.announcer.last.Group
	}
	return all
}

// Watch calls send with everything, once it is complete, and then with what changes, until ctx is done
// or send fails. announces says that the watcher is the announcer.
func (b *Book) Watch(ctx context.Context, announces bool, send func(wire.AnnouncementsEvent) error) error {
	return b.tellOf(ctx, &watcher{configured: announces}, announces, send)
}

// Follow is Watch for a part of this process, with what is for the announcer alone.
func (b *Book) Follow(ctx context.Context, send func(wire.AnnouncementsEvent) error) error {
	return b.tellOf(ctx, &watcher{configured: true}, false, send)
}

func (b *Book) tellOf(ctx context.Context, w *watcher, announces bool, send func(wire.AnnouncementsEvent) error) error {
	w.news, w.wake = map[netip.Addr]struct{}{}, make(chan struct{}, 1)
	b.mu.Lock()
	b.watchers[w] = struct{}{}
	if announces {
		b.came(1)
	}
	w.signal()
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watchers, w)
		if announces {
			b.came(-1)
		}
	}()
	for told := false; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
		}
		event, ok := b.news(w, &told)
		if !ok {
			continue
		}
		if err := send(event); err != nil {
			return err
		}
	}
}

// news takes what a watch was not told yet.
func (b *Book) news(w *watcher, told *bool) (event wire.AnnouncementsEvent, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.complete {
		return event, false
	}
	if !*told || w.configs != b.configs {
		*told = true
		clear(w.news)
		all := b.list(false)
		w.drained, w.configs = b.drained, b.configs
		event = wire.AnnouncementsEvent{All: &all}
		if w.configured {
			config := b.config // it is read without the lock
			event.Config = &config
		}
		return event, true
	}
	for a := range w.news {
		if item, is := b.published[a]; is {
			event.Set = append(event.Set, item)
		} else {
			event.Gone = append(event.Gone, a.String())
		}
	}
	clear(w.news)
	if w.drained != b.drained {
		w.drained = b.drained
		event.Drained = &w.drained
	}
	return event, len(event.Set)+len(event.Gone) > 0 || event.Drained != nil
}

// came counts an announcer that came, or went.
func (b *Book) came(by int) {
	if b.announcer.came(by) {
		b.signal()
	}
}

// Changed signals that Conflicts, Problems, PeersDown or Missing have other results.
func (b *Book) Changed() <-chan struct{} { return b.changed }

func (b *Book) signal() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}
