package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/rest"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/advertise"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/sockets"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/watch"
)

// life is one process of the appliance. It has more than 15 fields: the components of the process, and the channels into them.
type life struct {
	dead, broken atomic.Bool // killed; the disk failed for good
	ctx          context.Context
	end          context.CancelFunc
	done         sync.WaitGroup
	failed       atomic.Pointer[error] // of Run

	store    *store.Store
	board    *reconcile.Board
	handler  http.Handler
	notifier *notifier
	checks   *checks
	grants   *reconcile.Grants
	hosts    *control.HostAddresses
	facts    chan node.Facts
	changes  chan kernel.Change
	requests chan reconcile.Request
}

// kill ends the process in the middle of what it does: nothing outside obeys it any more.
func (l *life) kill() {
	l.dead.Store(true)
	l.end()
}

// start begins a process on the disk, the kernel, the files and the host as they are.
func (b *box) start() error {
	now := *b.config
	now.ObjectPools = &config.ObjectPools{} // those that this process has read
	b.config = &now
	cfg := b.config
	log := slog.New(slog.NewTextHandler(b.log(), nil))
	ctx, end := context.WithCancel(context.Background())
	l := &life{ctx: ctx, end: end, facts: make(chan node.Facts, 1), changes: make(chan kernel.Change, 64), requests: make(chan reconcile.Request), grants: reconcile.NewGrants(nil, nil), notifier: newNotifier(), checks: newChecks(b)}
	clock := func() time.Time { return time.Now().Add(b.skew) }
	settings := cfg.Store()
	settings.Clock, settings.Whole = clock, b.whole
	engine, err := b.disk.open(l)
	if err != nil {
		end()
		return fmt.Errorf("open the data file: %w", err)
	}
	objects, err := store.Open(engine, settings)
	if err != nil {
		end()
		return errors.Join(fmt.Errorf("open the store: %w", err), b.disk.close())
	}
	l.store = objects
	kernel := process{b.tables, l}
	b.tables.mu.Lock()
	b.tables.doubts += 4 // orphans, the early reading, VIPs of the host before, and the first plan
	b.tables.mu.Unlock()
	removals := reconcile.NewRemovalGuard(!b.guarded)
	l.board = reconcile.NewBoard(objects.Revisions, func(context.Context) error { return nil }, nil, removals, wire.Status{Reason: "starting"})
	orphans, err := reconcile.FindOrphans(objects, kernel.Read, cfg.Box(nil), false, log)
	if err != nil {
		end()
		return errors.Join(fmt.Errorf("read the kernel: %w", err), b.disk.close())
	}
	hosts := control.NewHostAddresses(cfg.IsSetAside, objects, control.NodeOwner)
	l.hosts = hosts
	watcher, err := watch.New(watch.Config{Dirs: cfg.ManifestDirs(), LastGood: objects.LastGood(), Log: log, Notifier: func() (watch.Notifier, error) { return l.notifier, nil }})
	if err != nil {
		end()
		return errors.Join(err, b.disk.close())
	}
	loop := reconcile.New(reconcile.Options{
		Accepted: reconcile.Accepted{Store: objects, Watching: true, Removals: removals, DataDir: cfg.DataDir},
		Target: reconcile.Target{
			Kernel: kernel, Orphans: orphans, Addresses: hosts,
			Host: func(facts *node.Facts) reconcile.Host {
				box := cfg.Box(facts)
				box.SettleFrom = b.settleFrom
				return reconcile.Host{Facts: facts, Box: box, Resolve: cfg.ResolveFacts(facts, hosts.IsVIP), Loopback: cfg.LoopbackAddresses(facts)}
			},
			HostProblems: func(facts *node.Facts) []manifest.Problem { return cfg.OverlapProblems(facts, hosts.IsVIP) },
			Listening: func(*sockets.Ports) (all []sockets.Socket, err error) {
				for _, p := range b.programs {
					all = append(all, sockets.Socket{Protocol: strings.ToLower(string(p.Protocol)), Local: p.At, BothFamilies: p.At.Addr() == netip.IPv6Unspecified()})
				}
				return all, nil
			},
			HoldSentinel: func() error { return nil },
		},
		Controllers: reconcile.Controllers{
			Cluster: control.NewClusterObjects(cfg.ClusterObjects(), objects, hosts), Endpoints: control.NewEndpoints(cfg.EndpointsFacts(), objects),
			Pools: control.NewPools(objects, advertise.Box{Pools: settings.Pools, ServiceRanges: cfg.Addresses.ClusterIPRanges, NodeName: cfg.NodeName}, func(plan *advertise.Plan) { cfg.ObjectPools.Set(plan.Pools) }),
		},
		Parts: []reconcile.Part{l.grants, l.checks}, Log: log, Clock: clock,
		Publisher: &reconcile.Publisher{
			Board: l.board, Metrics: metrics.New("simulation"), Dirs: cfg.Manifests, Status: wire.Status{Reason: "starting"},
			Reporter: reconcile.NewReporter(log, objects.Location, nil, nil),
		},
		Watchdog: reconcile.NewWatchdog(reconcile.WatchdogOptions{Calls: &reconcile.SlowCalls{}, Log: log}),
		OnReady: func() {
			if b.whole > 0 {
				objects.Pack()
			}
		},
	})
	server := rest.New(rest.Config{Objects: objects, Now: clock, Log: log, Conditions: l.board.Conditions()})
	admin := auth.User{Name: "root", Groups: []string{"system:masters"}, Role: auth.Admin}
	l.handler = http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
		server.Handler().ServeHTTP(to, r.WithContext(auth.With(r.Context(), admin)))
	})
	run := func(f func() error) {
		l.done.Go(func() {
			if err := f(); err != nil {
				l.failed.CompareAndSwap(nil, &err)
			}
		})
	}
	run(func() error { return watcher.Run(ctx) })
	run(func() error {
		return loop.Run(ctx, reconcile.Inputs{Snapshots: watcher.Snapshots(), Facts: l.facts, Changes: l.changes, Requests: l.requests})
	})
	b.life = l
	l.done.Go(func() { b.follow(ctx, l) })
	b.readHost()
	return nil
}

// stop ends the process, orderly unless it was killed.
func (b *box) stop() {
	b.life.end()
	b.life.done.Wait()
	b.life.dead.Store(true)
	if err := b.disk.close(); err != nil {
		b.tables.violated("close the data file: %v", err)
	}
}

// readHost sends the facts of the host to the process.
func (b *box) readHost() {
	facts := b.host()
	select {
	case <-b.life.facts: // the loop has not received the ones before
	default:
	}
	b.life.facts <- facts
}

// Fates of requests of clients, the last argument of put and delete.
const (
	fateLost = "lost" // the answer is lost
	fateGone = "gone" // the client is gone once its request was read
	fateHalf = "half" // the client breaks off in the middle of its body
)

// request makes a request of a client. A status of 0 means that there was no answer.
func (b *box) request(method, path, body, fate string) (status int, text string) {
	if b.life.dead.Load() {
		return 0, ""
	}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	var reader io.Reader = strings.NewReader(body)
	switch {
	case body == "" && fate == fateGone:
		leave()
	case fate == fateGone:
		reader = leaving(body, leave)
	case fate == fateHalf:
		reader = halfOf(body)
	}
	r := httptest.NewRequestWithContext(ctx, method, path, reader)
	r.ContentLength = int64(len(body))
	if r.Header.Set("Content-Type", "application/json"); method == "PATCH" {
		r.Header.Set("Content-Type", "application/apply-patch+yaml")
	}
	answer := httptest.NewRecorder()
	b.life.handler.ServeHTTP(answer, r)
	if b.life.dead.Load() || fate == fateLost || fate == fateGone {
		return 0, "" // the process died before it could answer, or nobody reads the answer
	}
	return answer.Code, answer.Body.String()
}

// checks is a Part with the verdicts on endpoints, and source sets.
type checks struct {
	reconcile.NopPart
	changed func(...resolve.Need)

	mu       sync.Mutex
	down     map[netip.AddrPort]bool // of the box
	services map[string]bool
	sets     map[string]*nft.SourceSet
}

func newChecks(b *box) *checks {
	c := &checks{down: b.down}
	c.setSets(b.world.SourceSets, b.sets)
	return c
}

func (c *checks) Name() string                         { return "checks" }
func (c *checks) Attach(changed func(...resolve.Need)) { c.changed = changed }

func (c *checks) Planned(_ *reconcile.Host, services []reconcile.Service) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.services == nil {
		c.services = map[string]bool{}
	}
	for _, s := range services {
		c.services[s.Key] = true
		if slices.ContainsFunc(s.Dead, func(d resolve.Dead) bool { return d.Assumed }) { // each server accepts the connection by which it is asked
			c.changed(resolve.Plans(s.Key)...)
		}
	}
}

func (c *checks) Meet(_ string, d *resolve.Demand, o *resolve.Observed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range d.Targets {
		state := health.Up
		if c.down[t.Addr] {
			state = health.Down
		}
		o.Judge(resolve.Verdict{Target: t, Verdict: health.Verdict{State: state}, Known: true})
	}
	for _, n := range d.Needs {
		if n.Kind == resolve.NeedSourceSet {
			o.Answer(n, resolve.State{Set: c.sets[n.Name]})
		}
	}
}

// setSets gives source sets other contents.
func (c *checks) setSets(contents map[string][]netip.Prefix, version uint64) {
	c.mu.Lock()
	c.sets = map[string]*nft.SourceSet{}
	var needs []resolve.Need
	for name, prefixes := range contents {
		c.sets[name] = nft.NewSourceSet(name, version, prefixes)
		needs = append(needs, resolve.Need{Kind: resolve.NeedSourceSet, Name: name})
	}
	changed := c.changed
	c.mu.Unlock()
	if changed != nil { // nil: the process has not begun
		changed(needs...)
	}
}

// set changes the verdict on a server.
func (c *checks) set(server netip.AddrPort, down bool) {
	c.mu.Lock()
	var needs []resolve.Need
	for key := range c.services {
		needs = append(needs, resolve.Need{Kind: resolve.NeedPlan, Name: key})
	}
	c.down[server] = down
	c.mu.Unlock()
	c.changed(needs...)
}

// notifier sends the events that the script makes.
type notifier struct {
	events chan fsnotify.Event
	errors chan error

	mu   sync.Mutex
	dirs map[string]bool
}

func newNotifier() *notifier {
	return &notifier{events: make(chan fsnotify.Event, 1024), errors: make(chan error, 1), dirs: map[string]bool{}}
}

func (n *notifier) Events() <-chan fsnotify.Event { return n.events }
func (n *notifier) Errors() <-chan error          { return n.errors }
func (n *notifier) Complete() bool                { return true }
func (n *notifier) Close() error                  { return nil }

func (n *notifier) Add(dir string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dirs[dir] = true
	return nil
}

func (n *notifier) Remove(dir string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.dirs, dir)
	return nil
}

func (n *notifier) WatchList() (dirs []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for dir := range n.dirs {
		dirs = append(dirs, dir)
	}
	return dirs
}

// send sends an event of a file or directory, or an overflow if the queue is full.
func (n *notifier) send(path string, op fsnotify.Op) {
	select {
	case n.events <- fsnotify.Event{Name: path, Op: op}:
	default:
		select {
		case n.errors <- fsnotify.ErrEventOverflow:
		default:
		}
	}
}

// writeFile renames a file into place, or writes it in two parts.
func (b *box) writeFile(name, text string, slowly bool) error {
	path := filepath.Join(b.manifests, name)
	if !slowly {
		if err := os.WriteFile(path+".tmp", []byte(text), 0o600); err != nil {
			return err
		}
		if err := os.Rename(path+".tmp", path); err != nil {
			return err
		}
		b.life.notifier.send(path, fsnotify.Create)
		return nil
	}
	for _, part := range []string{text[:len(text)/2], text} {
		if err := os.WriteFile(path, []byte(part), 0o600); err != nil {
			return err
		}
		b.life.notifier.send(path, fsnotify.Create|fsnotify.Write)
		time.Sleep(30 * time.Millisecond)
	}
	return nil
}

// log returns where the log goes.
func (b *box) log() io.Writer {
	if b.logTo == nil {
		return io.Discard
	}
	return b.logTo
}

var _ reconcile.Answerer = (*checks)(nil)
