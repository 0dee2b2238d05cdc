package appliance

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/flows"
	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/parts"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/routes"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/object"
)

// Run runs the appliance until ctx is done and returns nil then. The rules stay in the kernel: see Down. The error has the reason why it
// could not start, or had to stop. When the cause of ctx is handover.ErrRequested, Run executes the program again in place of this process,
// and passes it the relayed connections.
func Run(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	relay, endRelay, err := run(ctx, &cfg, log)
	if endRelay == nil { // it has not served
		return err
	}
	endRelay()
	if err != nil || !handover.IsRequested(ctx) {
		return err
	}
	return handOver(relay, &cfg, log)
}

// run opens, builds, runs and closes everything except for the relay, which runs until endRelay is called; nil: it does not run.
func run(ctx context.Context, cfg *config.Config, log *slog.Logger) (relay *parts.Relay, endRelay func(), err error) {
	if err := cfg.Validate(); err != nil {
		return nil, nil, err
	}
	state, err := handover.State()
	if err != nil {
		log.Error("what the program before has handed over is lost", "err", err)
	}
	// The relay comes first and ends last: connections of the program before go on at once, and those that are
	// handed over pause only for the rest of the start.
	var a *assembly // built before the relay gets a Service
	secret := func(key string) *object.Secret { return a.shown().InForce().Secret(key) }
	relay = parts.NewRelay(log, secret, state, handover.Kept())
	ctx, release := drainFirst(ctx, relay)
	defer release()
	collectLater()
	joinWakeUps()
	var closers closers
	defer func() { err = errors.Join(err, closers.close()) }()

	o, err := open(ctx, cfg, &closers, log)
	if err != nil || o == nil {
		return nil, nil, err
	}
	at, err := claim(o)
	if err != nil {
		return nil, nil, err
	}
	if a, err = build(o, at, relay); err != nil {
		return nil, nil, err
	}
	listening, err := a.listen(&closers)
	if err != nil {
		return nil, nil, err
	}
	defer a.leaveTotals()
	endRelay, err = a.serve(ctx, listening)
	return relay, endRelay, err
}

// opened has the exclusive resources of the box: its data directory, its tables in the kernel, and its objects.
type opened struct {
	cfg     *config.Config
	log     *slog.Logger
	calls   *reconcile.SlowCalls
	fleet   *fleet.Engine // nil: the box is in no fleet
	kernel  *kernel.Conn
	store   *store.Store
	history *history.Book
	before  totals // of the previous process
	// providers are those that svcctl discover asks.
	providers *parts.Providers
	// readsFlows is set when connections are reported as they end.
	readsFlows bool
	fast       fastPath
	// monitor has watched the tables since before they were read, as the reading of large ones takes seconds.
	monitor *monitor
	early   reconcile.Early
}

// open opens the exclusive resources, and waits for the objects of a fleet; nil: ctx was done first.
func open(ctx context.Context, cfg *config.Config, closers *closers, log *slog.Logger) (*opened, error) {
	// The data directory comes first: its lock keeps out a second instance before anything is touched.
	calls := &reconcile.SlowCalls{}
	engine, shared, err := openEngine(cfg, calls, log)
	if err != nil {
		return nil, err
	}
	closers.add(engine.Close)
	k, err := kernel.Open(kernel.Options{})
	if err != nil {
		return nil, err
	}
	closers.add(k.Close)
	before := takeTotals(cfg.DataDir, log)
	k.Tally().Restore(before.Counters)
	if err := k.HoldSentinel(); errors.Is(err, kernel.ErrPermission) {
		return nil, fmt.Errorf("another svcctl serves in this network namespace: stop it first: %w", err)
	} else if err != nil {
		log.Warn("established connections are not protected from a foreign flush of the ruleset", "err", err)
	}
	if shared != nil {
		if err := awaitFleet(ctx, cfg, shared, firstStatus(cfg, k.Probe()), log); ctx.Err() != nil {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
	}
	readsFlows := cfg.Services.ReadsFlows()
	if cfg.Services.Traffic != config.TrafficOff && !k.Probe().Counters {
		log.Warn("connections and refusals are not counted: the kernel lacks counters of elements, or CONFIG_NFT_OBJREF; --traffic off ends this message")
		cfg.Services.Traffic = config.TrafficOff
	}
	storeConfig := cfg.Store()
	storeConfig.Program = programID()
	providers := &parts.Providers{Rules: storeConfig.Rules, Packaged: checkup.Packaged()}
	storeConfig.Rules = providers
	fast, catchUp := tryFastPath(cfg, k, log), shared != nil && hasTables(k) // they may be newer than the replica; a kernel without any gets the replica at once
	monitor, err := newMonitor(ctx, k.Watch, log)
	if err != nil {
		return nil, err
	}
	early := reconcile.ReadEarly(calls.Kernel(k))
	objects, err := store.Open(engine, storeConfig)
	if err != nil {
		return nil, err
	}
	cfg.ObjectPools = &config.ObjectPools{}
	if shared != nil {
		if catchUp {
			shared.CatchUp(ctx)
		}
		objects.TakeOver()
	}
	past := history.Open(cfg.DataDir, cfg.NodeName, time.Now(), log)
	closers.add(past.Close)
	return &opened{
		cfg: cfg, log: log, calls: calls, fleet: shared, kernel: k, store: objects, history: past, before: before, readsFlows: readsFlows,
		providers: providers, fast: fast, monitor: monitor, early: early,
	}, nil
}

// hasTables reports whether the kernel has tables of svcctl; true if that cannot be determined.
func hasTables(k *kernel.Conn) bool {
	chains, err := k.BaseChains()
	return err != nil || slices.ContainsFunc(chains, func(c kernel.BaseChain) bool { return c.Table == nft.TableName })
}

const (
	// startRoom is the heap size in bytes up to which the start of the program collects no garbage, and the garbage between two collections
	// while up to 128 MiB are in use, as with 10,000 Services. Collections while a heap grows from 4 MiB free little; later ones keep the peak
	// below twice the heap in use. From 200 MiB on the limit is twice that heap: with half of the garbage 50,000 Services take a fifth more
	// CPU time.
	startRoom = 64 << 20
	// steadyRoom is the garbage in bytes between two collections after the start. A change makes less than 0.1 MiB of garbage, and a
	// collection takes some 0.7 ms for each MiB in use.
	steadyRoom = 32 << 20
	// hugeRoom is the address space in bytes that a start may fill with huge pages, as at 10,000 files, and an eighth of the memory of
	// the host at most.
	hugeRoom = 256 << 20
)

// collectLater sets GOGC for the start of the program, and again after each collection. It lets the heap grow in huge pages if the kernel has them:
// each takes one page fault instead of 512. It does nothing if the environment sets GOGC.
func collectLater() {
	collecting.Lock()
	defer collecting.Unlock()
	if starting = os.Getenv("GOGC") == ""; starting {
		var host syscall.Sysinfo_t
		_ = syscall.Sysinfo(&host)
		// The room starts no collection. With -1 the runtime would have huge pages for its metadata.
		debug.SetGCPercent(2 * hugeRoom * 100 / (4 << 20))
		room := make([]byte, min(hugeRoom, uint64(host.Totalram)*uint64(host.Unit)/8)) // nothing of it is touched
		_ = syscall.Madvise(room, syscall.MADV_HUGEPAGE)
		huge = [2]uintptr{uintptr(unsafe.Pointer(unsafe.SliceData(room))), uintptr(len(room))}
		runtime.GC() // from now on it is where objects are allocated
		atCollection()
		debug.SetGCPercent(startRoom * 100 / (4 << 20)) // at 100 a heap grows to 4 MiB first
	}
}

// huge are the address and the size in bytes of a part of the heap that may have huge pages.
var huge [2]uintptr

// joinWakeUps allows the kernel to fire timers of the process up to a millisecond late. Without it the monitor thread of the Go runtime,
// which sleeps for 20 µs at a time while anything runs, takes a seventh of the CPU time of a change.
func joinWakeUps() {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, t := range threads { // threads that are made later get it from those
		_ = os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", []byte("1000000"), 0) // of other threads it takes CAP_SYS_NICE; the unit sets it too
	}
}

// starting is set from collectLater to collectSteadily, unless the environment sets GOGC. collecting guards it and GOGC.
var starting bool
var collecting sync.Mutex

// atCollection schedules collectOften after the next collection.
func atCollection() { runtime.AddCleanup(new([64]byte), func(set func()) { set() }, collectOften) }

// collectOften sets GOGC for the next collection during the start, by the heap in use.
func collectOften() {
	collecting.Lock()
	defer collecting.Unlock()
	if inUse := heapInUse(); starting {
		// inUse>>21 is half of the MiB in use: 64 % at 128 MiB, 100 % from 200 MiB on.
		debug.SetGCPercent(int(min(max(startRoom*100/inUse, min(inUse>>21, 100), 50), 400)))
		atCollection()
	}
}

// collectSteadily sets GOGC for the time after the start. It is called after a collection.
func collectSteadily() {
	collecting.Lock()
	defer collecting.Unlock()
	if starting {
		starting = false
		debug.SetGCPercent(int(min(max(steadyRoom*100/heapInUse(), 25), 100)))
	}
}

// heapInUse returns the bytes of the heap that were live at the last collection.
func heapInUse() uint64 {
	inUse := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(inUse)
	return max(inUse[0].Value.Uint64(), 1)
}

// freeMemory returns unused memory to the kernel, after work that needed much of it. It ends the huge pages of the heap: the kernel would
// fill up those that have unused parts.
func freeMemory() {
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, huge[0], huge[1], syscall.MADV_NOHUGEPAGE)
	runtime.GC() // sync.Pools are empty after the second collection, that of FreeOSMemory
	debug.FreeOSMemory()
	unmapFiles()
}

// mappedFiles matches those mappings in /proc/PID/smaps that map a file read-only and have no modified pages (relocation makes some).
var mappedFiles = regexp.MustCompile(`(?m)^([0-9a-f]+)-([0-9a-f]+) r-.*/.*\n(?:\w+: .*\n)*?Anonymous: +0 kB`)

// unmapFiles removes the pages of read-only mapped files, the program's and the database's, from the process. They stay in the page cache,
// and are mapped again on access.
func unmapFiles() {
	text, _ := os.ReadFile("/proc/self/smaps")
	for _, at := range mappedFiles.FindAllSubmatch(text, -1) {
		first, _ := strconv.ParseUint(string(at[1]), 16, 64)
		end, _ := strconv.ParseUint(string(at[2]), 16, 64)
		_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, uintptr(first), uintptr(end-first), syscall.MADV_DONTNEED)
	}
}

// Down removes all tables of svcctl from the kernel. Connections through a VIP break.
func Down(context.Context) error {
	k, err := kernel.Open(kernel.Options{})
	if err != nil {
		return err
	}
	defer k.Close()
	if err := reconcile.RemoveTables(k, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		return err
	}
	return errors.Join(k.DropSentinel(), routes.Clear())
}

// programID returns the build ID that the linker wrote into this program, a hash of all inputs (cmd/internal/buildid); "" when it cannot be
// read.
func programID() string {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return ""
	}
	defer f.Close()
	note := f.Section(".note.go.buildid")
	if note == nil {
		return ""
	}
	id, _ := note.Data() // nil with an error
	return fmt.Sprintf("%x", id)
}

// closers are functions that close what was opened; they are called last first.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

func (c closers) close() error {
	var errs []error
	for i := len(c) - 1; i >= 0; i-- {
		errs = append(errs, c[i]())
	}
	return errors.Join(errs...)
}

// ignoreClosed returns f without the error net.ErrClosed, for listeners that their server usually closes.
func ignoreClosed(f func() error) func() error {
	return func() error {
		if err := f(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// statusInterval is the least time between two status lines for systemd.
const statusInterval = time.Second

// showStatus sends systemd a new line for `systemctl status` when it changes, at most once per statusInterval, until ctx is done. It does
// nothing unless systemd started the process.
func (a *assembly) showStatus(ctx context.Context) error {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil
	}
	last := ""
	for {
		changed := a.board.Changed()
		if line := statusLine(a.board.Status()); line != last {
			a.notifySoon("STATUS=" + line)
			last = line
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		if !task.Sleep(ctx, statusInterval) {
			return nil
		}
	}
}

// statusLine returns a status as one line: "10,000 Services, 50,000 endpoints, all in the kernel; 2 problems, 1 of them an error".
func statusLine(s wire.Status) string {
	line := wire.Count(s.Counts.Services, "Service") + ", " + wire.Count(s.Counts.Endpoints, "endpoint")
	switch {
	case s.Synced:
		line += ", all in the kernel"
	case s.Reason != "":
		line += ", not all in the kernel: " + strings.Join(strings.Fields(s.Reason), " ")
	default:
		line += ", a change is being applied"
	}
	if s.RulesAway {
		line += "; another program has changed the rules"
	}
	if s.HeldRemovals > 0 {
		line += "; " + wire.Count(s.HeldRemovals, "Service") + " vanished and held, see svcctl confirm --removals"
	}
	switch errs := s.Errors(); {
	case len(s.Problems) == 0:
		line += "; no problems"
	case errs == 0:
		line += "; " + wire.Count(len(s.Problems), "warning") + ", see svcctl status"
	default:
		line += fmt.Sprintf("; %s, %s, see svcctl status", wire.Count(errs, "error"), wire.Count(len(s.Problems)-errs, "warning"))
	}
	return line
}

// drainTime is the longest time for which a hand-over to a new program waits for connections that cannot be handed over.
const drainTime = 10 * time.Second

// drainFirst returns a context that ends when ctx does, with the same cause. At a hand-over it ends after the relay was drained, or after
// drainTime.
func drainFirst(ctx context.Context, relay *parts.Relay) (drained context.Context, release func()) {
	drained, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if handover.IsRequested(ctx) {
			waiting, stop := context.WithTimeout(drained, drainTime)
			defer stop()
			relay.Drain(waiting)
		}
		end(context.Cause(ctx))
	})
	return drained, func() { stop(); end(nil) }
}

// startRelay runs the relay until end is called, which must be after everything else has ended.
func startRelay(ctx context.Context, relay *parts.Relay, log *slog.Logger) (end func()) {
	running, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- relay.Run(running) }()
	return func() {
		cancel(context.Cause(ctx))
		if err := <-done; err != nil { // it has none of its own
			log.Error("the relay ended", "err", err)
		}
	}
}

// handOver executes the program again in place of this process, and passes it the relayed connections. It returns only on an error.
func handOver(relay *parts.Relay, cfg *config.Config, log *slog.Logger) error {
	state, descriptors, err := relay.HandedOver()
	if err != nil {
		return err
	}
	program, err := handover.Program()
	if err != nil {
		return err
	}
	log.Info("handed over to the new program", "program", program, "descriptors", len(descriptors))
	cfg.Log.Queue.Flush(time.Second)
	err = handover.Exec(program, os.Args, state, descriptors)
	runtime.KeepAlive(relay) // or the descriptors are closed with it
	return err
}

// totalsName is the name of the file with totals in the data directory.
const totalsName = "totals.json"

// totals are counters that the next process continues after a hand-over or an orderly stop. A start removes the file, so that after a crash
// counters begin at 0: older values would make them go back, which Prometheus takes for a reset.
type totals struct {
	Boot     string // the boot ID of the kernel that Counters were read from; "": not known
	Counters []nft.Tallied
	Flows    *flows.Saved // nil: connection events were not read
	Failures map[string]map[netip.AddrPort]uint64
}

// takeTotals reads and removes the totals that the process before saved; zero if there are none of this boot.
func takeTotals(dir string, log *slog.Logger) (t totals) {
	path := filepath.Join(dir, totalsName)
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return t
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err == nil {
		err = json.Unmarshal(content, &t)
	}
	if err != nil {
		log.Warn("totals of connections begin at 0", "file", path, "err", err)
		return totals{}
	}
	if t.Boot != bootID() {
		return totals{} // the kernel begins at 0 as well
	}
	return t
}

// leaveTotals saves the totals for the next process.
func (a *assembly) leaveTotals() {
	t := totals{Boot: bootID(), Counters: a.kernel.Tally().Save(), Failures: a.parts.suspicion.Book().Failures()}
	if a.parts.flows != nil {
		t.Flows = a.parts.flows.Totals().Save()
	}
	path := filepath.Join(a.cfg.DataDir, totalsName)
	content, err := json.Marshal(t)
	if err == nil {
		err = os.WriteFile(path+".new", content, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		a.log.Warn("totals of connections begin at 0 with the next start", "err", errors.Join(err, os.Remove(path+".new")))
	}
}

// bootID returns the kernel's ID of this boot; "": it cannot be read.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(id)
}
