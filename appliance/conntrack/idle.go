package conntrack

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// Idle resets the endpoints of connections that the kernel forgot for their silence. The ruleset
// resets the client that speaks next by itself (see nft/idle.go). What the endpoint sends would go
// out without translation, so a dead end is made for it, like those of draining: the box answers
// with a reset.
//
// The kernel notifies of the connections that it forgets (ctnetlink's group of destroyed entries). The
// notifications are read only while there is a frontend with an idle timeout. The kernel looks for entries
// that are over every second to minute; an endpoint that speaks in between is not reset by the box,
// but by the client that it reaches, or not at all. The same holds for lost messages.
type Idle struct {
	options Options
	wake    chan struct{} // holds one

	mu        sync.Mutex
	asked     expirySet
	local     []netip.Addr
	resetters map[nft.Family]netip.Addr
}

const (
	// idleBuffer has room for some 8,000 messages of the kernel.
	idleBuffer = 4 << 20
	// idleRetry is the wait before listening to the kernel again.
	idleRetry = 5 * time.Second
)

// NewIdle returns an Idle without frontends.
func NewIdle(options Options) *Idle {
	options.Log = cmp.Or(options.Log, slog.Default())
	return &Idle{options: options, wake: make(chan struct{}, 1), asked: newExpirySet()}
}

// Update takes the box, if it changed, and the ports of the Services that changed (none: the
// Service is gone).
func (x *Idle) Update(box *nft.Box, changes map[string][]nft.ServicePort) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if box != nil {
		x.asked.nodePorts = addressSet(box.NodePortAddresses)
		x.local, x.resetters = box.LocalAddresses, resettersOf(box.LocalAddresses)
	}
	before := x.asked.any()
	for name := range changes {
		x.asked.drop(name)
	}
	for name, ports := range changes {
		for i := range ports {
			x.asked.add(name, &ports[i], ports[i].Idle)
		}
	}
	if x.asked.any() != before {
		task.Wake(x.wake)
	}
}

func (x *Idle) wanted() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.asked.any()
}

// Run works until ctx is done. What fails is tried again.
func (x *Idle) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if !x.wanted() {
			select {
			case <-ctx.Done():
			case <-x.wake:
			}
			continue
		}
		if err := x.listen(ctx); err != nil {
			x.options.Log.Warn("endpoints of expired connections are not reset; it is retried", "err", err, "retry", idleRetry)
			task.Sleep(ctx, idleRetry)
		}
	}
	return nil
}

// listen makes dead ends until ctx is done, or until there is no frontend any more.
func (x *Idle) listen(ctx context.Context) error {
	heard, err := nfnetlink.Listen(nfnetlink.Options{NetNS: x.options.NetNS}, groupDestroy, idleBuffer)
	if err != nil {
		return explain(err)
	}
	changer, err := dial(x.options.NetNS)
	if err != nil {
		return errors.Join(explain(err), heard.Close())
	}
	defer changer.Close()
	ctx, end := context.WithCancel(ctx)
	closed := make(chan error, 1)
	go func() {
		for ctx.Err() == nil && x.wanted() {
			select {
			case <-ctx.Done():
			case <-x.wake:
			}
		}
		end()
		closed <- heard.Close() // ends Receive
	}()
	for {
		messages, err := heard.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			x.options.Log.Debug("some endpoints are not notified that a connection ended for its silence", "err", err)
			continue
		case ctx.Err() != nil:
			return <-closed
		case err != nil:
			end()
			return errors.Join(err, <-closed)
		}
		if err := x.expire(messages, changer); err != nil {
			end()
			return errors.Join(err, <-closed)
		}
	}
}

// expire makes a dead end for the endpoint of each connection of ours that was forgotten while it
// was open.
func (x *Idle) expire(messages []nfnetlink.Message, changer *socket) error {
	var c change
	c.begin(changer.Sequence(0))
	for _, m := range messages {
		var e entry
		if m.Kind != messageDelete || !e.decode(m.Body) || !e.isEstablished() || e.isDeadEnd() || e.zoned || e.replyFrom == e.to {
			continue
		}
		if box, ours := x.concerns(&e); ours {
			e.timeout = uint32(deadEndLife / time.Second)
			c.deadEnd(&e, e.replyFrom, e.replyTo, box, ports{1, 65535}, c.next(blocks))
			c.done.reset++
		}
	}
	if len(c.kinds) == 0 {
		return nil
	}
	changer.Sequence(len(c.kinds))
	if err := changer.Send(c.Buf); err != nil {
		return err
	}
	_, err := c.answers(changer)
	return err
}

// concerns reports whether an entry is of a frontend with an idle timeout, whose endpoint is
// neither the box itself nor takes the box for its client: those the box resets anyhow. It gives
// the address of the box that the dead end leads to.
func (x *Idle) concerns(e *entry) (box netip.Addr, ours bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.asked.of(e) == 0 || slices.Contains(x.local, e.replyTo.Addr()) || slices.Contains(x.local, e.replyFrom.Addr()) {
		return box, false
	}
	box = x.resetters[e.family]
	return box, box.IsValid()
}

// Drain is the policy for connections to an endpoint that is gone. The zero value follows
// Kubernetes: those of TCP live on, all others are forgotten at once.
type Drain struct {
	On bool
	// Timeout bounds the life of a connection after its endpoint went.
	Timeout time.Duration
}
