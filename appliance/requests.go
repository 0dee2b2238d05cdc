package appliance

import (
	"context"
	"fmt"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/parts"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/watch"
)

// requests are the channels on which other goroutines ask the loop, and the watcher, which is asked first.
type requests struct {
	watcher  *watch.Watcher // nil when there is nothing to watch
	barriers chan chan struct{}
	releases chan chan wire.Released
	trials   chan reconcile.TrialAsk
	foresees chan reconcile.ForeseeAsk
}

func newRequests(watcher *watch.Watcher) requests {
	return requests{
		watcher: watcher, barriers: make(chan chan struct{}), releases: make(chan chan wire.Released),
		trials: make(chan reconcile.TrialAsk), foresees: make(chan reconcile.ForeseeAsk),
	}
}

// inputs adds the requests and the snapshots to the inputs of the loop.
func (q requests) inputs(in reconcile.Inputs) reconcile.Inputs {
	in.Barriers, in.Releases, in.Trials, in.Foresees = q.barriers, q.releases, q.trials, q.foresees
	if q.watcher != nil {
		in.Snapshots = q.watcher.Snapshots()
	}
	return in
}

// ask hands a request to the loop and waits for its answer.
func ask[Request, Answer any](ctx context.Context, to chan<- Request, request Request, answer <-chan Answer) (a Answer, err error) {
	select {
	case to <- request:
	case <-ctx.Done():
		return a, ctx.Err()
	}
	select {
	case a = <-answer:
		return a, nil
	case <-ctx.Done():
		return a, ctx.Err()
	}
}

// backend is the Board, with the endpoints that svcctl discover holds.
type backend struct {
	*reconcile.Board
	discovers *parts.Discovered
}

// Synced implements api.Backend.
func (b backend) Synced(ctx context.Context, revision uint64) error {
	err := b.Board.Synced(ctx, revision)
	if n := b.discovers.Held(); err == nil && revision == 0 && n > 0 {
		return fmt.Errorf("everything else is in the kernel, but the endpoints of %d Services are held whose providers have none any more: "+
			"put the provider right, or confirm with `svcctl confirm --removals` that they are to go (`svcctl status` has the reason)", n)
	}
	return err
}

// Release implements api.Backend.
func (b backend) Release(ctx context.Context) (wire.Released, error) {
	released, err := b.Board.Release(ctx)
	if err != nil {
		return released, err
	}
	n, err := b.discovers.Release(time.Now())
	released.Services += n
	return released, err
}

// rescan reads the watched directories and waits until what they held at the call is in the store.
func (q requests) rescan(ctx context.Context) error {
	if q.watcher != nil {
		if err := q.watcher.Rescan(ctx); err != nil {
			return fmt.Errorf("read the manifests once more: %w", err)
		}
	}
	return q.sync(ctx)
}

// sync waits until the newest snapshot of the watched directories is in the store.
func (q requests) sync(ctx context.Context) error {
	barrier := make(chan struct{})
	_, err := ask(ctx, q.barriers, barrier, barrier)
	return err
}

// release releases Services that are held although no object declares them any more.
func (q requests) release(ctx context.Context) (wire.Released, error) {
	released := make(chan wire.Released, 1)
	return ask(ctx, q.releases, released, released)
}
