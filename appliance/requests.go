package appliance

import (
	"context"
	"fmt"

	"svcctl.io/svcctl/api/wire"
)

// rescan has the watched directories looked at once more and waits until what they
// held by then is in the store.
func (a *assembly) rescan(ctx context.Context) error {
	if a.watcher != nil {
		if err := a.watcher.Rescan(ctx); err != nil {
			return fmt.Errorf("read the manifests once more: %w", err)
		}
	}
	return a.sync(ctx)
}

// sync waits until the newest snapshot of the watched directories is in the store.
func (a *assembly) sync(ctx context.Context) error {
	barrier := make(chan struct{})
	select {
	case a.barriers <- barrier:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-barrier:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release has the loop let go what vanished from the manifests.
func (a *assembly) release(ctx context.Context) (wire.Released, error) {
	released := make(chan wire.Released, 1)
	select {
	case a.releases <- released:
	case <-ctx.Done():
		return wire.Released{}, ctx.Err()
	}
	select {
	case what := <-released:
		return what, nil
	case <-ctx.Done():
		return wire.Released{}, ctx.Err()
	}
}
