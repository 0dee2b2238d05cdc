package appliance

import (
	"context"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/parts"
)

// drainTime bounds the wait of a hand-over for connections that cannot be handed over.
const drainTime = 10 * time.Second

// drain puts off a hand-over.
type drain struct{ relay atomic.Pointer[parts.Relay] }

// before returns a context that ends when ctx does, by the same cause; at a hand-over after the relay was drained.
func (d *drain) before(ctx context.Context) (drained context.Context, release func()) {
	drained, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if r := d.relay.Load(); r != nil && handover.IsRequested(ctx) {
			waiting, stop := context.WithTimeout(drained, drainTime)
			defer stop()
			r.Drain(waiting)
		}
		end(context.Cause(ctx))
	})
	return drained, func() { stop(); end(nil) }
}

// startRelay has the relay run until endRelay is called, which is when all else has ended.
func (a *assembly) startRelay(ctx context.Context, changed func()) {
	running, end := context.WithCancelCause(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- a.relay.Run(running, changed) }()
	a.endRelay = func() {
		end(context.Cause(ctx))
		if err := <-done; err != nil { // it has none of its own
			a.log.Error("the relay ended", "err", err)
		}
	}
}

// handOver executes the program in place of this process: what is relayed goes on in it.
func (a *assembly) handOver() error {
	state, descriptors, err := a.relay.HandedOver()
	if err != nil {
		return err
	}
	program, err := handover.Program()
	if err != nil {
		return err
	}
	a.log.Info("handed over to the new program", "program", program, "descriptors", len(descriptors))
	a.cfg.Log.Queue.Flush(time.Second)
	err = handover.Exec(program, os.Args, state, descriptors)
	runtime.KeepAlive(a) // what is not in use any more closes its descriptors
	return err
}
