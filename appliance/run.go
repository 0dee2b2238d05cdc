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

// Run runs the appliance until ctx is done, and then returns nil. The rules stay in the kernel; Down removes them. The error is the reason why the
// appliance could not start or had to stop. If the cause of ctx is handover.ErrRequested, Run executes the new program in this process and passes it
// the relayed connections.
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

// run starts the appliance, serves until ctx is done and closes everything except for the relay, which runs until endRelay is called. endRelay is nil
// if the appliance did not start.
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
	fleet   *fleet.Engine // nil if the box is in no fleet
	kernel  *kernel.Conn
	store   *store.Store
	history *history.Book
	before  totals // the counters saved by the previous process
	// providers are the providers that svcctl discover queries.
	providers *parts.Providers
	// readsFlows is set when conntrack events report each connection at its end.
	readsFlows bool
	fast       fastPath
	// monitor watches the kernel tables. It is started before they are read, because reading large ones takes seconds.
	monitor *monitor
	early   reconcile.Early
}

// open opens the exclusive resources, and in a fleet waits for its objects. It returns nil without an error if ctx was done first.
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
	// startRoom has two uses during the start. It is the heap size in bytes below which no garbage is collected, and the garbage between two
	// collections while these keep the heap below startPeak. Collections while the heap grows from 4 MiB would free little.
	startRoom = 64 << 20
	// startPeak is the heap size in bytes above which the start collects after half as much garbage. 10,000 exported files have 130 MiB in use at most:
	// that takes some 30 MiB from their peak. From 200 MiB in use on, a collection begins at twice the live heap:
	// collecting at half as much garbage would take a fifth more CPU time with 50,000 Services.
	startPeak = 144 << 20
	// steadyRoom is the garbage in bytes between two collections after the start. A change makes less than 0.1 MiB of garbage, and a
	// collection takes some 0.7 ms for each MiB in use.
	steadyRoom = 32 << 20
	// hugeRoom is the maximum address space in bytes for which the start requests huge pages, enough for 10,000 files. An eighth of the host's memory
	// is another limit.
	hugeRoom = 256 << 20
)

// collectLater sets GOGC for the start of the program, and has it updated after each collection. It lets the heap grow in huge pages if the kernel
// supports them, which need one page fault instead of 512. It does nothing if GOGC is set in the environment.
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

// huge holds the address and size in bytes of the part of the heap for which huge pages were requested.
var huge [2]uintptr

// joinWakeUps allows the kernel to fire timers of this process up to 1 ms late, so that wake-ups coincide. Otherwise the monitor thread of the Go
// runtime, which sleeps for 20 µs at a time while goroutines run, takes a seventh of the CPU time of a change.
func joinWakeUps() {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, t := range threads { // threads that are made later get it from those
		_ = os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", []byte("1000000"), 0) // of other threads it takes CAP_SYS_NICE; the unit sets it too
	}
}

// starting is set from collectLater until collectSteadily, unless the environment sets GOGC. The mutex collecting guards starting and changes of
// GOGC.
var starting bool
var collecting sync.Mutex

// atCollection makes the runtime call collectOften after the next garbage collection.
func atCollection() { runtime.AddCleanup(new([64]byte), func(set func()) { set() }, collectOften) }

// collectOften adjusts GOGC to the live heap for the next collection, during the start only.
func collectOften() {
	collecting.Lock()
	defer collecting.Unlock()
	if inUse := int(heapInUse()); starting {
		room := min(max(startPeak-inUse, startRoom/2), startRoom)
		// inUse>>20 is in MiB: 32 % at 132 MiB, 100 % from 200 MiB on.
		debug.SetGCPercent(min(max(room*100/inUse, min(inUse>>20-100, 100)), 400))
		atCollection()
	}
}

// collectSteadily sets GOGC for the time after the start. It must be called right after a collection, as it uses the live heap size.
func collectSteadily() {
	collecting.Lock()
	defer collecting.Unlock()
	if starting {
		starting = false
		debug.SetGCPercent(int(min(max(steadyRoom*100/heapInUse(), 25), 100)))
	}
}

// heapInUse returns the size of the live heap in bytes at the last collection, at least 1.
func heapInUse() uint64 {
	inUse := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(inUse)
	return max(inUse[0].Value.Uint64(), 1)
}

// freeMemory returns unused memory to the kernel, after work that needed much of it. It first disables huge pages of the heap: the kernel would
// refill huge pages that are partly unused.
func freeMemory() {
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, huge[0], huge[1], syscall.MADV_NOHUGEPAGE)
	runtime.GC() // sync.Pools are empty after the second collection, that of FreeOSMemory
	debug.FreeOSMemory()
	unmapFiles()
}

// mappedFiles matches those read-only file mappings in /proc/PID/smaps that have no modified pages. Relocation modifies some pages.
var mappedFiles = regexp.MustCompile(`(?m)^([0-9a-f]+)-([0-9a-f]+) r-.*/.*\n(?:\w+: .*\n)*?Anonymous: +0 kB`)

// unmapFiles drops the pages of read-only mapped files, such as the program and the database, from the process. They stay in the page cache and are
// mapped again on access.
func unmapFiles() {
	text, _ := os.ReadFile("/proc/self/smaps")
	for _, at := range mappedFiles.FindAllSubmatch(text, -1) {
		first, _ := strconv.ParseUint(string(at[1]), 16, 64)
		end, _ := strconv.ParseUint(string(at[2]), 16, 64)
		_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, uintptr(first), uintptr(end-first), syscall.MADV_DONTNEED)
	}
}

// Down removes all tables and routes of svcctl from the kernel. Connections through Service addresses break.
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

// programID returns, in hex, the Go build ID of this program, which is a hash of all build inputs; "" if it cannot be read.
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

// ignoreClosed returns f without the error net.ErrClosed. It is for listeners that their server has usually closed already.
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

// startRelay runs the relay until end is called. end must be called after all other parts have ended.
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

// totalsName is the name of the file in the data directory that stores totals.
const totalsName = "totals.json"

// totals are counters that the next process continues after a hand-over or an orderly stop. The next process removes the file when it starts, so that
// after a crash counters begin at 0: continuing from older values would make counters decrease.
type totals struct {
	Boot     string // the boot ID of the kernel when the totals were saved; "" if unknown
	Counters []nft.Tallied
	Flows    *flows.Saved // nil if conntrack events were not read
	Failures map[string]map[netip.AddrPort]uint64
}

// takeTotals reads and removes the totals that the previous process saved; zero if there are none from this boot.
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

// leaveTotals saves the totals in the data directory for the next process.
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

// bootID returns the kernel's boot ID, which changes with each boot; "" if it cannot be read.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(id)
}
