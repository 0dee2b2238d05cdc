package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/task"
)

const (
	// quiet is the time without events after which the facts are read: bringing an
	// interface up causes a burst.
	quiet = 10 * time.Millisecond
	// atMost is the longest wait for a quiet period while events keep arriving.
	atMost = 50 * time.Millisecond
	// reread is the interval at which facts are read without an event, in case one was lost.
	reread = 30 * time.Second
	// retry is the wait before the facts are read again after all attempts failed.
	retry = 2 * time.Second
)

// groups are the rtnetlink multicast groups of links, addresses and routes.
var groups = []uint{
	unix.RTNLGRP_LINK,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
}

// Watch reads the facts at once and then whenever the host changes. The channel gives the
// newest facts that differ from the previous ones; it is never closed. The calling thread
// must be in the network namespace to watch.
func Watch(ctx context.Context, log *slog.Logger) (<-chan Facts, error) {
	return watch(ctx, log, read, (*Facts).equal)
}

// watch returns a channel with the newest result of read, which is called again after changes of the host; equal results are dropped.
func watch[T any](ctx context.Context, log *slog.Logger, read func(*netlink.Handle) (T, error), equal func(a, b *T) bool) (<-chan T, error) {
	h, err := open()
	if err != nil {
		return nil, err
	}
	// Listening begins before the first reading, so that nothing happens in between.
	events, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("watch the host's addresses and links: %w", err)
	}
	first, err := readAgain(ctx, h, read)
	if err != nil {
		h.Close()
		events.Close()
		return nil, err
	}
	w := &watcher[T]{read: read, equal: equal, handle: h, log: log, out: make(chan T, 1), dirty: make(chan struct{}, 1), last: first}
	w.out <- first
	go w.listen(ctx, events)
	go w.run(ctx)
	return w.out, nil
}

// readAgain calls read until it does not fail with a transient error, at most attempts times.
func readAgain[T any](ctx context.Context, h *netlink.Handle, read func(*netlink.Handle) (T, error)) (facts T, err error) {
	for range attempts {
		if facts, err = read(h); ctx.Err() != nil || !isPassing(err) && !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return facts, err
}

type watcher[T any] struct {
	read   func(*netlink.Handle) (T, error)
	equal  func(a, b *T) bool
	handle *netlink.Handle
	log    *slog.Logger
	out    chan T
	dirty  chan struct{}
	last   T
}

// listen wakes the reader of the facts after each rtnetlink event, regardless of its content. An overrun of the socket (ENOBUFS), for example after
// many route changes, counts as an event.
func (w *watcher[T]) listen(ctx context.Context, events *nl.NetlinkSocket) {
	stop := context.AfterFunc(ctx, events.Close) // ends the reading
	defer stop()
	for {
		_, _, err := events.Receive()
		if ctx.Err() != nil {
			return
		}
		w.touch()
		if isPassing(err) {
			continue
		}
		if err != nil {
			w.log.Warn("changes of the host are no longer notified; it is polled instead", "every", reread, "err", err)
			return
		}
	}
}

func (w *watcher[T]) touch() { task.Wake(w.dirty) }

func (w *watcher[T]) run(ctx context.Context) {
	defer w.handle.Close()
	tick := time.NewTicker(reread)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.dirty:
			w.settle(ctx)
		case <-tick.C:
		}
		now, err := readAgain(ctx, w.handle, w.read)
		if err != nil {
			w.log.Warn("the host's addresses cannot be read; the last known ones stay in force", "err", err, "retry", retry)
			time.AfterFunc(retry, w.touch)
			continue
		}
		if !w.equal(&now, &w.last) {
			w.last = now
			w.give(now)
		}
	}
}

// settle waits until no event has come for the duration quiet, but no longer than atMost.
func (w *watcher[T]) settle(ctx context.Context) {
	end := time.After(atMost)
	for {
		select {
		case <-w.dirty:
		case <-time.After(quiet):
			return
		case <-end:
			return
		case <-ctx.Done():
			return
		}
	}
}

// give sends facts to the channel, and replaces facts that were not received yet.
func (w *watcher[T]) give(f T) {
	for {
		select {
		case w.out <- f:
			return
		default:
		}
		select {
		case <-w.out:
		default:
		}
	}
}
