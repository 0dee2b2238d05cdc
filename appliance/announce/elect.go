package announce

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/vrrp"
	"svcctl.io/svcctl/appliance/node"
)

// election is a virtual router on the links of the box: it is active on all of them or on none. A partner
// is alive when it is heard on any.
type election struct {
	cfg   vrrp.Config
	log   *slog.Logger
	wake  chan struct{}
	moved chan struct{} // the state is another one, or the box should announce itself anew

	mu     sync.Mutex
	m      *vrrp.Machine
	links  map[int]*heartbeat
	alone  bool            // no link carries frames
	macs   map[string]bool // of this box: its own adverts are not heard
	addrs  [2][]netip.Addr // that adverts list, by family
	assert bool
	others others
	rival  rival
	moves  uint64 // how often the state was another one
}

// rival is another box that advertises as the one that answers, while this one does, with a lower priority: it does not
// receive the adverts of this one. Two do so for a moment after a split.
type rival struct {
	at           netip.Addr
	priority     uint8
	link         string
	since, heard time.Time
	gap          time.Duration // without an advert, after which it is none
	told         bool
}

// rivalry is for how long a box is a rival before that is a problem, and the least rival.gap, which is three intervals of its adverts.
const rivalry = 3 * time.Second

func (r *rival) note(now time.Time, a *vrrp.Advert, link string) {
	if r.at != a.Source || now.Sub(r.heard) >= r.gap {
		*r = rival{since: now}
	}
	r.at, r.priority, r.link, r.heard, r.gap = a.Source, a.Priority, link, now, max(rivalry, 3*a.Interval)
}

// lasts reports whether there is a rival, and for how long there is one.
func (r *rival) lasts(now time.Time) bool {
	return r.at.IsValid() && now.Sub(r.heard) < r.gap && r.heard.Sub(r.since) >= rivalry
}

// others has the addresses in the adverts of the box that answers.
type others struct {
	at    netip.Addr
	addrs []netip.Addr
	since time.Time // since when that differs from ours; zero: it does not
}

func newElection(cfg vrrp.Config, log *slog.Logger) *election {
	return &election{
		cfg: cfg, log: log, wake: make(chan struct{}, 1), moved: make(chan struct{}, 1),
		m: vrrp.New(time.Now(), cfg), links: map[int]*heartbeat{}, alone: true,
	}
}

// changes signals that outcome has another result; never without an election.
func (e *election) changes() <-chan struct{} {
	if e == nil {
		return nil
	}
	return e.moved
}

// setLinks has adverts sent and heard on these links. A box that had no carrier at all joins as backup:
// what it believed meanwhile counts for nothing.
func (e *election) setLinks(ctx context.Context, links map[int]node.Link, macs map[string]bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.macs = macs
	for index, h := range e.links {
		l, still := links[index]
		if still && source(&l) == h.own && slices.Equal(l.MAC, h.link.MAC) {
			h.link = l
			continue
		}
		h.stop()
		delete(e.links, index)
	}
	alone := true
	for index, l := range links {
		alone = alone && !l.Carrier
		if e.links[index] != nil || !source(&l).IsValid() {
			continue
		}
		if err := e.open(ctx, l); errors.Is(err, fs.ErrPermission) {
			return err
		} else if err != nil {
			e.log.Warn("no election on an interface for now", "interface", l.Name, "err", err)
		}
	}
	if state, _ := e.m.State(); e.alone && !alone && (state == vrrp.Active || state == vrrp.Backup) {
		e.m.Join(time.Now())
		signal(e.moved)
	}
	e.alone = alone
	return nil
}

// do calls the machine, sends the adverts that it gives, and tells of what changed. Adverts that wait come first: a
// process that did not run for a while would take them for missing.
func (e *election) do(f func(now time.Time) []uint8) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, _ := e.m.State()
	master, at := e.m.Master(), time.Now()
	var adverts []uint8
	for _, h := range e.links {
		adverts = append(adverts, e.hear(at, h)...)
	}
	for _, priority := range slices.Compact(append(adverts, f(at)...)) { // one for all that were heard
		for _, h := range e.links {
			h.send(advert(h, vrrp.Advert{VRID: e.cfg.VRID, Priority: priority, Interval: e.m.Interval(), Addresses: e.addrs[familyOf(h.own)]}))
		}
	}
	now, _ := e.m.State()
	if now != before {
		e.rival = rival{}
		e.moves++
		e.others = others{} // it was of who answered before
		e.log.Info("the election has another outcome", "vrid", e.cfg.VRID, "state", now.String(), "master", e.m.Master())
	}
	told := e.rival.told
	e.rival.told = e.rival.lasts(at)
	if now != before || master != e.m.Master() || e.assert || told != e.rival.told {
		signal(e.moved)
	}
	signal(e.wake)
}

// run keeps the time until ctx is done.
func (e *election) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, h := range e.links {
				h.stop()
			}
			return nil
		case <-timer.C:
			e.do(func(now time.Time) []uint8 { return e.m.Tick(now) })
		case <-e.wake:
		}
		e.mu.Lock()
		next := e.m.Next()
		e.mu.Unlock()
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// outcome reports whether this box answers, which box is master otherwise, and whether this one should announce
// its addresses anew.
func (e *election) outcome() (answers bool, master netip.Addr, assert bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	state, _ := e.m.State()
	assert, e.assert = e.assert, false
	return state.Answers(), e.m.Master(), assert
}

// set passes the election its inputs: whether this box should give way, and the addresses to list in adverts by family.
func (e *election) set(unwell bool, addrs [2][]netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.m.Priority()
	if e.m.SetPriority(unwell); e.m.Priority() != before {
		e.log.Warn("the priority in the election is another one", "vrid", e.cfg.VRID, "priority", e.m.Priority(), "unwell", unwell)
	}
	e.addrs = addrs
	e.judgeOthers(time.Now())
}

// compare notes what another box lists, unless this one answers: that one has to be as this one is, and
// falls silent.
func (e *election) compare(now time.Time, a *vrrp.Advert) {
	if state, _ := e.m.State(); state.Answers() {
		return
	}
	if a.VRID != e.cfg.VRID || a.Priority == 0 || e.others.at == a.Source && slices.Equal(e.others.addrs, a.Addresses) {
		return
	}
	e.others.at, e.others.addrs = a.Source, a.Addresses
	e.judgeOthers(now)
}

// judgeOthers notes since when the others list other addresses than this box.
func (e *election) judgeOthers(now time.Time) {
	if !e.others.at.IsValid() {
		return
	}
	before := e.others.since
	switch {
	case slices.Equal(e.others.addrs, e.addrs[familyOf(e.others.at)]):
		e.others.since = time.Time{}
	case before.IsZero():
		e.others.since = now
	}
	if before.IsZero() != e.others.since.IsZero() {
		signal(e.moved)
	}
}

// group is the election, to be told.
func (e *election) group() *wire.Group {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	state, since := e.m.State()
	g := &wire.Group{VRID: e.cfg.VRID, State: state.String(), Since: since.UTC(), Priority: e.m.Priority(), Interval: e.m.Interval().String(), Transitions: e.moves}
	if m := e.m.Master(); m.IsValid() {
		g.Master = m.String()
	}
	if !e.others.since.IsZero() {
		ours := e.addrs[familyOf(e.others.at)]
		g.Differs = &wire.GroupDifference{With: e.others.at.String(), Since: e.others.since.UTC(), Theirs: without(e.others.addrs, ours), Ours: without(ours, e.others.addrs)}
	}
	return g
}

// problems lists what is wrong with what others advertise; never with what they list, which group has.
func (e *election) problems() (all []string) {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := &e.rival; r.lasts(time.Now()) {
		all = append(all, fmt.Sprintf("the box %s answers too, with priority %d: it does not receive the adverts of this one, which has %d; look for what drops VRRP (IP protocol 112) on the way to it: `tcpdump -n -i %s vrrp` there, and on this box",
			r.at, r.priority, e.m.Priority(), r.link))
	}
	if asked, most := e.m.Longer(); asked > 0 {
		all = append(all, fmt.Sprintf("the active box %s advertises an interval of %s, and this one waits for adverts as if it were %s, five times its own: give all boxes of --vrid %d the same --interval; if it is none of them, it forges adverts",
			e.m.Master(), asked, most, e.cfg.VRID))
	}
	return all
}

// without are the addresses that others do not have.
func without(addrs, others []netip.Addr) (texts []string) {
	for _, a := range addrs {
		if !isDigest(a) && !slices.Contains(others, a) {
			texts = append(texts, a.String())
		}
	}
	return texts
}

// mayAnswer reports whether this box answers now. Neighbors' questions wait in sockets, as adverts do: a process that was
// stopped answers none before it knows whether another box took over.
func (e *election) mayAnswer() bool {
	e.mu.Lock()
	silent := e.m.Silent(time.Now())
	e.mu.Unlock()
	if silent {
		e.do(e.m.Tick)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	state, _ := e.m.State()
	return state.Answers()
}

// join takes part again after leave.
func (e *election) join() {
	e.do(func(now time.Time) []uint8 {
		e.m.Join(now)
		return nil
	})
}

// leave hands over to another box, if there is one, within a time.
func (e *election) leave(patience time.Duration) {
	e.do(func(now time.Time) []uint8 { return e.m.Leave(now, patience) })
}
