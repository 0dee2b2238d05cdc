package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/sockets"
)

const (
	// portWatchEvery is the interval of looks for programs that have begun to listen at a node
	// port. The kernel has no notification of a bound socket.
	portWatchEvery = 10 * time.Second
	// portWatchPause is the least time between two looks: a program may close thousands of
	// connections a second.
	portWatchPause = 200 * time.Millisecond
)

// listener is a socket with the program that it belongs to.
type listener struct {
	sockets.Socket
	owner string // "" when it cannot be seen
}

// String is "nginx (pid 812) listens on tcp 0.0.0.0:80".
func (l listener) String() string {
	return fmt.Sprintf("%s listens on %s", cmp.Or(l.owner, "another program"), l.Socket)
}

// covers reports whether what is sent to the port of one of the addresses comes to the socket.
func (l listener) covers(protocol string, addrs []netip.Addr, port uint16) bool {
	return l.Protocol == protocol && slices.ContainsFunc(addrs, func(a netip.Addr) bool { return l.Covers(netip.AddrPortFrom(a, port)) })
}

// portWatch looks who listens at the ports that Services have or wait for, in a task of its own:
// how long that takes depends on the host. It looks when a socket at a port is closed that a
// Service waits for, which the kernel tells, and now and then for programs that come. Without
// such ports it does nothing.
type portWatch struct {
	look  func(*sockets.Ports) ([]sockets.Socket, error)
	owner func(sockets.Socket) string
	// closed signals, until it is stopped, that a socket at one of the ports was closed.
	closed func(*sockets.Ports) (told <-chan struct{}, stop func() error, err error)
	log    *slog.Logger
	found  chan []listener // for the loop: who listens there, whenever that changes

	mu      sync.Mutex
	ports   sockets.Ports // that Services have
	waited  []hostPort    // that Services wait for
	changed chan struct{} // has a value when these are others

	before []listener
	failed bool // the last look
	names  map[sockets.Socket]string
}

func newPortWatch(look func(*sockets.Ports) ([]sockets.Socket, error), owner func(sockets.Socket) string, log *slog.Logger) *portWatch {
	return &portWatch{
		look: look, owner: owner, log: log, found: make(chan []listener), changed: make(chan struct{}, 1),
		closed: func(ports *sockets.Ports) (<-chan struct{}, func() error, error) {
			c, err := sockets.WatchClosed(ports)
			if err != nil {
				return nil, nil, err
			}
			return c.C, c.Close, nil
		},
	}
}

// want sets the ports to watch. A program that listens at one of ports already is told of at the
// next look; one that Services wait for is looked at now.
func (w *portWatch) want(ports sockets.Ports, waited []hostPort) {
	slices.SortFunc(waited, func(a, b hostPort) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.port, b.port))
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.ports.Empty() != ports.Empty() || !slices.Equal(w.waited, waited)
	w.ports, w.waited = ports, waited
	if now {
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

func (w *portWatch) wanted() (sockets.Ports, []hostPort) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ports := w.ports
	for _, p := range w.waited {
		ports.Add(p.protocol, p.port)
	}
	return ports, w.waited
}

// run watches until ctx is done.
func (w *portWatch) run(ctx context.Context) error {
	poll := time.NewTicker(portWatchEvery)
	poll.Stop()
	polls := false
	var watched []hostPort
	var told <-chan struct{}
	stop := func() error { return nil }
	defer func() { _ = stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.changed:
		case <-told:
		case <-poll.C:
		}
		ports, waited := w.wanted()
		if !slices.Equal(waited, watched) { // before the look: what is closed after it is told of
			_ = stop()
			told, stop, watched = nil, func() error { return nil }, waited
			if len(waited) > 0 {
				told, stop = w.watchClosed(waited)
			}
		}
		if wants := !ports.Empty(); wants != polls {
			if polls = wants; polls {
				poll.Reset(portWatchEvery)
			} else {
				poll.Stop()
			}
		}
		if list, news := w.seen(&ports, waited); news {
			select {
			case w.found <- list:
			case <-ctx.Done():
				return nil
			}
		}
		select {
		case <-time.After(portWatchPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// watchClosed is closed for the ports that Services wait for. Without it, looking now and then has
// to do.
func (w *portWatch) watchClosed(waited []hostPort) (told <-chan struct{}, stop func() error) {
	var ports sockets.Ports
	for _, p := range waited {
		ports.Add(p.protocol, p.port)
	}
	told, stop, err := w.closed(&ports)
	if err != nil {
		w.log.Debug("the kernel does not report when a port is closed", "err", err, "looksEvery", portWatchEvery)
		return nil, func() error { return nil }
	}
	return told, stop
}

// seen lists the programs that listen at the ports. It is news when they changed, or when a port
// that a Service waits for is free.
func (w *portWatch) seen(ports *sockets.Ports, waited []hostPort) (list []listener, news bool) {
	var found []sockets.Socket
	if !ports.Empty() {
		var err error
		found, err = w.look(ports)
		if err != nil {
			if !w.failed {
				w.log.Warn("it is not known which programs listen on this host", "err", err)
			}
			w.failed = true
			return nil, false
		}
	}
	w.failed = false
	names := make(map[sockets.Socket]string, len(found))
	for _, s := range found {
		name, known := w.names[s]
		if !known {
			name = w.owner(s)
		}
		names[s] = name
		list = append(list, listener{s, name})
	}
	w.names = names
	slices.SortFunc(list, func(a, b listener) int { return a.Compare(b.Socket) })
	free := slices.ContainsFunc(waited, func(p hostPort) bool {
		return !slices.ContainsFunc(found, func(s sockets.Socket) bool { return s.Protocol == p.protocol && s.Local.Port() == p.port })
	})
	news = free || !slices.Equal(list, w.before)
	w.before = list
	return list, news
}
