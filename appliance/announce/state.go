package announce

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/neighbor"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/task"
)

// stateName is the name of the state file in Config.StateDir.
const stateName = "announcements.json"

// trusted is the longest time after an orderly stop for which a restarted process announces its addresses without probing them.
const trusted = 10 * time.Second

// state is the content of the state file, from which a restarted process continues.
type state struct {
	// Ranges and Wanted are from the last message of serve.
	Ranges []string `json:"ranges,omitempty"`
	Wanted []string `json:"wanted,omitempty"`
	// Announced holds the addresses of Wanted that this box answered for.
	Announced []string `json:"announced,omitempty"`
	// Ads holds where the addresses of Wanted are announced, except those that only flags announce. Config is the configuration from objects.
	Ads    map[string]ad        `json:"ads,omitempty"`
	Config *wire.AnnounceConfig `json:"config,omitempty"`
	// Drained is set while this box is drained: it announces nothing.
	Drained bool `json:"drained,omitempty"`
	// Stopped is the time of an orderly stop; zero if the process was not stopped in order.
	Stopped time.Time `json:"stopped,omitzero"`
}

// step is a change of one address: a line of the state file after the first line, which holds a state.
type step struct {
	Address string `json:"address"`
	lastStatus
}

// lastStatus is the stored state of one address.
type lastStatus struct {
	ad
	Wanted    bool `json:"wanted,omitempty"`
	Announced bool `json:"announced,omitempty"`
}

// loadState reads the state file; without one it returns an empty state. It ignores an incomplete last line, of a process that was killed
// while it wrote.
func loadState(dir string) (s state, err error) {
	content, err := os.ReadFile(filepath.Join(dir, stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read what was announced last: %w", err)
	}
	first, steps, _ := bytes.Cut(content, []byte("\n"))
	if err := json.Unmarshal(first, &s); err != nil {
		return state{}, fmt.Errorf("read what was announced last: %w", err)
	}
	wanted, announced := map[string]ad{}, map[string]bool{}
	for _, addr := range s.Wanted {
		wanted[addr] = ad{Flags: true}
		if other, is := s.Ads[addr]; is {
			wanted[addr] = other
		}
	}
	for _, addr := range s.Announced {
		announced[addr] = true
	}
	for line := range bytes.Lines(steps) {
		var one step
		if json.Unmarshal(line, &one) != nil {
			break
		}
		if delete(wanted, one.Address); one.Wanted {
			wanted[one.Address] = one.ad
		}
		if delete(announced, one.Address); one.Announced {
			announced[one.Address] = true
		}
	}
	s.Wanted, s.Announced, s.Ads = slices.Collect(maps.Keys(wanted)), slices.Collect(maps.Keys(announced)), wanted
	return s, nil
}

// save replaces the state file. It need not survive a crash of the machine, so nothing is synced.
func (s state) save(dir string) error {
	content, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, stateName)
	if err := os.WriteFile(path+".new", append(content, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// stateWriter writes the state file at a cost proportional to the changes. Changes are appended; when more lines were appended than there
// are addresses, the file is replaced.
type stateWriter struct {
	dir   string
	dirty map[netip.Addr]struct{} // addresses that changed since the file was written
	whole bool                    // the file must be replaced
	steps int                     // number of lines appended
	due   <-chan time.Time        // fires when the file is to be written
}

func newStateWriter(dir string) *stateWriter {
	return &stateWriter{dir: dir, dirty: map[netip.Addr]struct{}{}, whole: true}
}

// add schedules a line for an address in the state file.
func (w *stateWriter) add(addr netip.Addr) {
	w.dirty[addr] = struct{}{}
	later(&w.due, savePause)
}

// everything schedules the replacement of the state file.
func (w *stateWriter) everything() {
	w.whole = true
	later(&w.due, savePause)
}

// fewSteps is the number of lines up to which changes are always appended, however few addresses there are.
const fewSteps = 1000

// save updates the state file. It appends a line for each changed address, with the status that `of` returns. If the file would have more lines than
// there are addresses (size), it replaces the file with the state that `all` returns; up to fewSteps lines it always appends.
func (w *stateWriter) save(size int, all func() state, of func(netip.Addr) lastStatus) error {
	if !w.whole && w.steps+len(w.dirty) <= max(size, fewSteps) {
		return w.append(of)
	}
	if err := all().save(w.dir); err != nil {
		return err
	}
	w.whole, w.steps = false, 0
	clear(w.dirty)
	return nil
}

// append appends a line for each changed address. After a failure the next save replaces the file.
func (w *stateWriter) append(of func(netip.Addr) lastStatus) error {
	if len(w.dirty) == 0 {
		return nil
	}
	var b bytes.Buffer
	lines := json.NewEncoder(&b)
	for addr := range w.dirty {
		if err := lines.Encode(step{addr.String(), of(addr)}); err != nil {
			return err
		}
	}
	w.whole = true
	f, err := os.OpenFile(filepath.Join(w.dir, stateName), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if _, err = f.Write(b.Bytes()); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	w.whole, w.steps = false, w.steps+len(w.dirty)
	clear(w.dirty)
	return nil
}

// reports sends the states of addresses to serve, one report at a time. A report holds the changes since the last one, or all addresses.
type reports struct {
	client *client.Client
	log    *slog.Logger
	tasks  *errgroup.Group

	connected bool // serve sent the full list on this connection
	dirty     map[netip.Addr]struct{}
	all       bool // the next report has all addresses
	due       <-chan time.Time
	busy      bool                   // a report is being sent
	made      chan error             // gets the error of the report being sent
	counted   wire.AnnouncerCounters // counters in the last report
}

func newReports(serve *client.Client, log *slog.Logger, tasks *errgroup.Group) *reports {
	return &reports{client: serve, log: log, tasks: tasks, dirty: map[netip.Addr]struct{}{}, made: make(chan error, 1)}
}

// soon schedules a report after reportPause.
func (r *reports) soon() { later(&r.due, reportPause) }

// add includes an address in the next report.
func (r *reports) add(addr netip.Addr) {
	r.dirty[addr] = struct{}{}
	r.soon()
}

// everything includes all addresses in the next report.
func (r *reports) everything() {
	r.all = true
	r.soon()
}

// send sends a report in the background; r.made gets its error.
func (r *reports) send(ctx context.Context, report wire.AnnouncerReport) {
	r.dirty, r.all, r.busy, r.counted = map[netip.Addr]struct{}{}, false, true, report.Counters
	r.tasks.Go(func() error {
		task.Send(ctx, r.made, r.client.ReportAnnouncements(ctx, report))
		return nil
	})
}

// sent handles the result of a report. After a failure the next report holds all addresses.
func (r *reports) sent(err error) {
	r.busy = false
	if err != nil {
		r.all = true // with the next connection
		if r.connected {
			r.log.Warn("svcctl serve does not take what became of its announcements", "err", err)
			later(&r.due, time.Second)
		}
		return
	}
	if r.all || len(r.dirty) > 0 {
		r.soon()
	}
}

// report starts a report to serve, if serve is connected and no report is in progress.
func (a *announcer) report(ctx context.Context) {
	if a.reports.busy || !a.reports.connected {
		return
	}
	election := a.election.problems()
	disputes := a.segments.disputes()
	if len(election) > 0 {
		disputes = nil // the election names the cause
	}
	r := wire.AnnouncerReport{
		All: a.reports.all, Items: []wire.AnnouncedAddress{},
		Problems: slices.Concat(missing(a.segments.links, a.l2()), a.segments.problems(), a.segments.silent(), disputes, election, a.segments.unanswered(a.master), a.gatewayProblems(), a.peers.problems()),
		Counters: a.segments.counters(), Peers: a.peers.states(), Group: a.election.group(),
	}
	for _, index := range slices.Sorted(maps.Keys(a.segments.ports)) {
		r.Segments = append(r.Segments, segmentText(&a.segments.ports[index].link))
	}
	addrs := maps.Keys(a.reports.dirty)
	if r.All {
		addrs = maps.Keys(a.wanted)
	}
	for addr := range addrs {
		r.Items = append(r.Items, wire.AnnouncedAddress{Address: addr.String(), Places: a.placesOf(addr)})
	}
	a.reports.send(ctx, r)
}

// segmentText returns a link with its networks, except link-local ones, as in "eth0 (192.0.2.1/24, 2001:db8::1/64)".
func segmentText(l *node.Link) string {
	var networks []string
	for _, p := range l.Addresses {
		if !p.IsSingleIP() && !p.Addr().IsLinkLocalUnicast() {
			networks = append(networks, p.String())
		}
	}
	return fmt.Sprintf("%s (%s)", l.Name, strings.Join(networks, ", "))
}

// placesOf returns each place (interface or BGP peer) where an address is or should be announced, with the state there.
func (a *announcer) placesOf(addr netip.Addr) []wire.Place {
	places := []wire.Place{}
	for _, index := range slices.Sorted(maps.Keys(a.segments.ports)) {
		p := a.segments.ports[index]
		by := "l2 " + p.link.Name
		if s, is := a.segments.states[addr][index]; is && p.addrs[addr] {
			place := wire.Place{By: by, State: s.State.String(), Since: s.Since.UTC()}
			if s.State == neighbor.Conflict {
				place.With = s.Rival.String()
			}
			if s.State == neighbor.Standby && a.master.IsValid() {
				place.With = a.master.String()
			}
			switch {
			case s.State == neighbor.Announced && !p.link.Carrier:
				place.State, place.Why = "down", "the interface has no carrier"
			case s.Contested:
				place.Why = "the host with the Ethernet address " + s.Rival.String() + " answers as well"
			}
			places = append(places, place)
		} else if a.isWanted(addr) && a.wanted[addr].on(p.link.Name, a.cfg.L2) && onLink(addr, &p.link) && hostAnswers(addr, &p.link, a.segments.links) {
			places = append(places, wire.Place{By: by, State: "host"})
		}
	}
	if a.isWanted(addr) {
		places = append(places, a.peers.statusesOf(addr)...)
	}
	return places
}

// The delay before reconnecting to serve starts at reconnectFirst, and doubles up to reconnectLast.
const (
	reconnectFirst = 50 * time.Millisecond
	reconnectLast  = time.Second
)

// feed watches the announcements through the API of serve and passes on the events, across reconnects. A nil event means that the
// connection ended.
type feed struct {
	client *client.Client
	log    *slog.Logger
	events chan *wire.AnnouncementsEvent
}

func (f *feed) run(ctx context.Context) error {
	wait, connected, warned := reconnectFirst, false, false
	for ctx.Err() == nil {
		err := f.client.WatchAnnouncements(ctx, func(e wire.AnnouncementsEvent) error {
			if !connected {
				connected, warned, wait = true, false, reconnectFirst
				f.log.Info("connected to svcctl serve", "socket", f.client.Place())
			}
			return f.give(ctx, &e)
		})
		if ctx.Err() != nil {
			break
		}
		if connected || !warned {
			f.log.Warn("svcctl serve does not answer: the addresses that it sent last stay announced", "err", err)
			warned = true
		}
		if connected {
			connected = false
			_ = f.give(ctx, nil)
		}
		task.Sleep(ctx, wait)
		wait = min(2*wait, reconnectLast)
	}
	return nil
}

func (f *feed) give(ctx context.Context, e *wire.AnnouncementsEvent) error {
	if !task.Send(ctx, f.events, e) {
		return ctx.Err()
	}
	return nil
}

// stale is the time without a connection to serve after which this box lowers its priority in the election, so that another box takes over.
const stale = 30 * time.Second

// absence is a period without a connection to serve.
type absence struct {
	since time.Time        // zero while connected, and before the first connection
	late  <-chan time.Time // fires when the absence becomes stale
}

// isStale reports whether the absence is so long that another box should take over.
func (s *absence) isStale() bool { return !s.since.IsZero() && time.Since(s.since) >= stale }
