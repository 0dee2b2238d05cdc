package appliance

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"time"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/parts"
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
