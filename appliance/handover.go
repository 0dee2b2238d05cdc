package appliance

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/flows"
	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/parts"
	"svcctl.io/svcctl/nft"
)

// drainTime bounds the wait of a hand-over for connections that cannot be handed over.
const drainTime = 10 * time.Second

// drainFirst returns a context that ends when ctx does, by the same cause; at a hand-over after the relay was drained.
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

// startRelay runs the relay until end is called, which is when all else has ended.
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

// handOver executes the program in place of this process: relayed connections go on in it.
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

// totalsName is a file of the data directory.
const totalsName = "totals.json"

// totals are counts that the next process goes on with, after a hand-over or a stop. A start removes the file, so that
// after a crash totals begin at 0: old ones would go back by the counts since, and for Prometheus a counter that
// goes back was reset.
type totals struct {
	Boot     string // they are of; "": not known
	Counters []nft.Tallied
	Flows    *flows.Saved // nil: connection events were not read
	Failures map[string]map[netip.AddrPort]uint64
}

// takeTotals returns the totals that the process before left.
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

// leaveTotals leaves the totals to the next process.
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

// bootID is the kernel's name of this boot; "": it has none.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(id)
}
