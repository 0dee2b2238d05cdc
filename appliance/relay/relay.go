package relay

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/listen"
)

// Relay serves Ports. All methods may be called concurrently.
type Relay struct {
	*shared
	arriving *arriving
	loopback *loopback
	fronts   *fronts
}

// New returns a Relay without Ports. origin may be nil where the kernel redirects no UDP.
func New(log *slog.Logger, origin Origin) *Relay { return newRelay(log, origin, defaults()) }

func newRelay(log *slog.Logger, origin Origin, l limits) *Relay {
	s := newShared(log, l)
	a := &arriving{shared: s, sockets: map[socketKey]*os.File{}, ports: map[key]*HeldPort{}, tcp: map[key]*tcpPort{}}
	return &Relay{
		shared: s, arriving: a,
		loopback: &loopback{shared: s, arriving: a, listeners: listen.NewReconciler[Problem](s.limits.retry), open: map[key]*loopbackPort{}},
		fronts: &fronts{
			shared: s, arriving: a, origin: origin, open: map[socketKey]*front{}, ports: map[string]map[key]*redirected{},
		},
	}
}

// Stats are the counters of a Relay.
type Stats struct {
	TCP, UDP Load
	// FailedConnects counts the attempts in which an endpoint did not accept a connection.
	FailedConnects int64
	// FailedHandshakes counts failed TLS handshakes, with clients and with endpoints.
	FailedHandshakes int64
}

// Load counts the connections, or UDP clients, of a protocol.
type Load struct {
	// Loopback and Redirected count the open ones; Limit bounds Redirected.
	Loopback, Redirected, Limit int64
	// Taken counts those that were let in so far, TurnedAway those that were refused, or whose flow was
	// ended for another client, because there were too many.
	Taken, TurnedAway int64
}

// Stats returns the counters at this moment.
func (r *Relay) Stats() Stats {
	load := func(q *bothQuotas) Load {
		return Load{
			Loopback: q.loopback.used.Load(), Redirected: q.redirected.used.Load(), Limit: q.redirected.limit,
			Taken: q.loopback.taken.Load() + q.redirected.taken.Load(),
		}
	}
	s := Stats{TCP: load(&r.quotas.tcp), UDP: load(&r.quotas.udp), FailedConnects: r.failedConnects.Load(), FailedHandshakes: r.failedHandshakes.Load()}
	s.TCP.TurnedAway, s.UDP.TurnedAway = r.overload.counts()
	return s
}

// Overloaded returns the ports that have refused clients in the last minute or two, sorted.
func (r *Relay) Overloaded() []Overloaded { return r.overload.list() }

// OverloadedChanged returns a channel that has a value after Overloaded has changed.
func (r *Relay) OverloadedChanged() <-chan struct{} { return r.overload.changed }

// Set replaces the Ports on loopback and returns at once; Run opens and closes listeners soon. The
// caller must not modify the slices afterwards.
func (r *Relay) Set(ports []Port) { r.loopback.set(ports) }

// Problems returns the ports without a listener, sorted by ID and address, as of the last
// time that Run opened and closed listeners: see Changed.
func (r *Relay) Problems() []Problem { return r.loopback.listeners.Problems() }

// Changed returns a channel that has a value after Problems has changed.
func (r *Relay) Changed() <-chan struct{} { return r.loopback.listeners.Changed() }

// Open opens a listener to which the kernel may redirect clients, unless it is open. Its clients wait until RedirectAll adds a port to it
// and Run was called.
func (r *Relay) Open(protocol string, at netip.AddrPort) error {
	f := r.fronts
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.openFront(socketKey{protocol, at})
	return err
}

// RedirectAll replaces, by Service, the ports to which the kernel redirects clients, those with Frontends. They are served when it returns.
// Ports that a Service no longer has are removed after limits.removal; with more set they stay, because the kernel still redirects clients
// to them. The error lists listeners that cannot be opened; all other ports are served. Clients of a new listener are accepted after all
// Services were added, so that none misses its port.
func (r *Relay) RedirectAll(services map[string][]Port, more bool) error {
	return r.fronts.redirect(services, more)
}

// CloseUnused closes the listeners without ports. Their connections stay open.
func (r *Relay) CloseUnused() {
	r.fronts.mu.Lock()
	defer r.fronts.mu.Unlock()
	r.fronts.closeUnused()
}

// Inherit adopts, before Run, the connections that the previous program handed over. They continue at once.
func (r *Relay) Inherit(s *State) { r.arriving.adopt(s) }

// InheritSocket takes over a listening socket that systemd stored, before Run.
func (r *Relay) InheritSocket(f *os.File) error { return r.arriving.takeSocket(f) }

// Settle makes Run close soon what the previous program handed over and no Port has taken. It is called after all Ports were passed to the
// Relay.
func (r *Relay) Settle() {
	r.arriving.mu.Lock()
	r.arriving.closeUnclaimed = true
	r.arriving.mu.Unlock()
	r.loopback.listeners.Trigger()
}

// Run opens and closes listeners until ctx is done. It then closes all listeners, and the connections that do not end
// within limits.lastDrain; if the cause is handover.ErrRequested, it leaves both open for HandedOver. It waits for its
// goroutines and returns nil. It may be called once. It opens sockets in the network namespace of the process.
func (r *Relay) Run(ctx context.Context) error {
	requests := make(chan struct{})
	answering, stop := context.WithCancel(context.Background()) // ends after clients were reset: it would close them
	go func() {
		defer close(requests)
		r.http.Run(answering)
	}()
	defer func() { stop(); <-requests }()
	r.fronts.serve(r.ctx)
	r.loopback.listeners.Run(ctx, r.loopback.reconcile)
	leave := handover.IsRequested(ctx)
	r.drainLast(leave)
	r.end(context.Cause(ctx))
	r.overload.stop()
	if leave {
		r.pause()
		return nil
	}
	r.loopback.close()
	r.fronts.close()
	r.clients.Wait()
	r.tasks.Wait()
	r.pump.close()
	return nil
}

// Drain prepares a hand-over. It makes HTTP clients use another connection for their next request (Connection: close, GOAWAY), and waits
// until the present connections that cannot be handed over have ended, or ctx is done. All clients are served meanwhile, new ones too.
func (r *Relay) Drain(ctx context.Context) {
	open, over := r.draining.next()
	if open > 0 {
		r.log.Info("waiting for connections with TLS or HTTP to end before the hand-over", "connections", open)
	}
	go r.http.Drain(ctx)
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// drainLast stops accepting clients, and waits at most limits.lastDrain for connections to end: before a hand-over (leave) for those that
// cannot be handed over, else for all. Clients that connect meanwhile wait for the next program, in the listeners that this process or
// systemd keeps open.
func (r *Relay) drainLast(leave bool) {
	end := (*tcpListener).close
	if leave {
		end = (*tcpListener).pause
	}
	for _, l := range r.loopback.open {
		if l, is := l.listenSocket.(*tcpListener); is {
			end(l)
		}
	}
	r.fronts.endTCP(end)
	ctx, cancel := context.WithTimeout(context.Background(), r.limits.lastDrain)
	defer cancel()
	_, over := r.draining.next()
	if !leave {
		go r.http.Drain(ctx)
		all := make(chan struct{})
		go func() { r.clients.Wait(); close(all) }()
		over = all
	}
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// pause pauses all listeners and connections, and collects their state for HandedOver.
func (r *Relay) pause() {
	r.loopback.pause()
	r.fronts.pause()
	r.clients.Wait()
	r.tasks.Wait()
	r.loopback.leave()
	r.fronts.leave()
}

// HandedOver returns the state to hand over after Run has ended by handover.ErrRequested; nil if there is none.
func (r *Relay) HandedOver() *State { return r.leaving.finish() }

// relayed is a connection of a client and the one to its endpoint. The timers are guarded by the mutex
// of its tcpPort.
type relayed struct {
	client, endpoint *net.TCPConn
	to               netip.AddrPort
	there, back      *way         // the direction to the endpoint, and that to the client
	pausing          atomic.Bool  // it is to be handed over, if possible
	ended            atomic.Int32 // directions whose source has ended
	drain            *time.Timer  // resets it; nil: its endpoint is kept
	idle             *time.Timer  // resets it when idle; nil: no idle timeout
	session          *session     // HTTP session, which may outlive the connection; nil: no HTTP
	stale            bool         // its endpoint gets no requests any more
	late             *recentKey   // its key for EndpointsOf; nil: the port is not Logged
}

// session is the shared state of the connections to endpoints of one HTTP client.
type session struct {
	stale atomic.Int32 // number of connections to endpoints that get no requests any more
	noted bool         // EndpointsOf finds it; guarded by the mutex of the tcpPort
}

func newRelayed(u *pump, client, endpoint *net.TCPConn, to netip.AddrPort) (*relayed, error) {
	there, err := u.way(endpoint, client)
	if err != nil {
		return nil, err
	}
	back, err := u.way(client, endpoint)
	return &relayed{client: client, endpoint: endpoint, to: to, there: there, back: back}, err
}

func (c *relayed) reset() {
	if c.session == nil {
		reset(c.client)
	}
	reset(c.endpoint)
}

// stays cancels the reset of a connection whose endpoint was gone and is back.
func (c *relayed) stays() {
	if c.drain != nil {
		c.drain.Stop()
		c.drain = nil
	}
}

// setStale sets whether the endpoint of an HTTP client's connection must get no further requests.
func (c *relayed) setStale(stale bool) {
	if c.session == nil || stale == c.stale {
		return
	}
	if c.stale = stale; stale {
		c.session.stale.Add(1)
	} else {
		c.session.stale.Add(-1)
	}
}

// stop ends a connection when ctx is done. It resets it, as a FIN would look like a complete transfer, or pauses it for a hand-over.
func (c *relayed) stop(ctx context.Context) {
	if !handover.IsRequested(ctx) {
		c.reset()
		return
	}
	c.pausing.Store(true)
	interrupt(c.client)
	interrupt(c.endpoint)
}

// interrupt makes all pending reads and writes of a connection fail with os.ErrDeadlineExceeded.
func interrupt(c interface{ SetDeadline(time.Time) error }) {
	_ = c.SetDeadline(longAgo) // nothing waits for a closed one
}

// longAgo is a deadline in the past.
var longAgo = time.Unix(1, 0)

func (c *relayed) stopTimers() {
	for _, timer := range []*time.Timer{c.drain, c.idle} {
		if timer != nil {
			timer.Stop()
		}
	}
}

// join copies both directions until they end, and closes both connections. It returns true if it was paused instead, with both still open.
func (c *relayed) join() (paused bool) {
	var failed atomic.Bool
	pass := func(w *way) {
		err := w.run(func() bool { return c.ended.Add(1) == 2 })
		if err == nil || c.pausing.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		failed.Store(true)
		c.reset()
	}
	var other sync.WaitGroup
	other.Go(func() { pass(c.back) })
	pass(c.there)
	other.Wait()
	if !failed.Load() && !(c.there.done && c.back.done) {
		return true
	}
	c.there.close()
	c.back.close()
	// Both directions have ended, so closing loses no data.
	_ = c.client.Close()
	_ = c.endpoint.Close()
	return false
}

// reset closes a connection with RST. On a closed connection it does nothing.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// silence returns the time since the last data was received on a connection, from the kernel; 0 if it is closed.
func silence(c *net.TCPConn) (d time.Duration) {
	_ = listen.ControlOf(c, func(fd int) error { // a closed connection has no information
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			d = time.Duration(info.Last_data_recv) * time.Millisecond
		}
		return err
	})
	return d
}

const (
	// chunk is the size of a read into a buffer, in bytes. After a read that fills it, more data is expected and spliced.
	chunk = 16 << 10
	// pipeSize is the capacity of a pipe, in bytes. It is smaller when an unprivileged user has reached
	// fs.pipe-user-pages-soft.
	pipeSize = 512 << 10
	// idlePipes bounds the unused pipes that are kept for later connections.
	idlePipes = 64
)

// pump has the buffers and pipes for copying. A connection uses them only while it has bytes to pass on.
type pump struct {
	buffers sync.Pool // of *[chunk]byte
	pipes   chan *pipe
	limit   int64
	made    atomic.Int64
}

// pipe is the two descriptors of a pipe(2). It is empty while it is in the pump.
type pipe struct{ r, w int }

// pipe returns an empty pipe, nil if there are too many, or the system has none.
func (u *pump) pipe() *pipe {
	select {
	case p := <-u.pipes:
		return p
	default:
	}
	var fds [2]int
	if u.made.Add(1) > u.limit || unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		u.made.Add(-1)
		return nil
	}
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize) // a smaller one does too
	return &pipe{fds[0], fds[1]}
}

// back returns an empty pipe to the pump.
func (u *pump) back(p *pipe) {
	select {
	case u.pipes <- p:
	default:
		u.drop(p)
	}
}

func (u *pump) drop(p *pipe) {
	_, _ = unix.Close(p.r), unix.Close(p.w) // nothing is lost that anybody waits for
	u.made.Add(-1)
}

// close closes the unused pipes.
func (u *pump) close() {
	for {
		select {
		case p := <-u.pipes:
			u.drop(p)
		default:
			return
		}
	}
}

// way is one direction of a connection. Only one goroutine uses it.
type way struct {
	pump     *pump
	from, to *net.TCPConn
	source   syscall.RawConn // of from
	sink     syscall.RawConn // of to

	held  []byte       // bytes that were received and not passed on yet
	buf   *[chunk]byte // the buffer of held; nil: that is not from the pump
	pipe  *pipe        // has piped bytes that were not passed on yet
	piped int
	bulk  bool // the last bytes filled a buffer
	ended bool // from has sent its FIN
	done  bool // the FIN was passed on to to
}

func (u *pump) way(to, from *net.TCPConn) (*way, error) {
	source, err := from.SyscallConn()
	if err != nil {
		return nil, err
	}
	sink, err := to.SyscallConn()
	return &way{pump: u, from: from, to: to, source: source, sink: sink}, err
}

// run passes on received bytes, and a FIN as a FIN, until the direction ends. After an error it can be called again: no received byte is
// lost. At the end it calls last, which returns true if the other direction has ended, so that closing the connection sends the FIN.
func (w *way) run(last func() bool) error {
	for !w.done {
		if err := w.drain(); err != nil {
			return err
		}
		if w.ended {
			if !last() {
				if err := w.to.CloseWrite(); err != nil {
					return err
				}
			}
			w.done = true
			continue
		}
		if err := w.fill(); err != nil {
			return err
		}
	}
	return nil
}

// fill waits for bytes or the end, and receives them: into a pipe when the last read filled a chunk.
func (w *way) fill() error {
	var failed error
	err := w.source.Read(func(fd uintptr) (done bool) {
		for {
			var n int
			n, failed = w.take(int(fd))
			switch {
			case failed == unix.EINTR:
				continue
			case failed == unix.EAGAIN:
				return false
			case failed == nil && n == 0:
				w.ended = true
			}
			return true
		}
	})
	if err == nil && failed != nil {
		err = os.NewSyscallError("read", failed)
	}
	return err
}

// take receives the bytes that are available.
func (w *way) take(fd int) (n int, err error) {
	if w.bulk {
		if p := w.pump.pipe(); p != nil {
			taken, err := unix.Splice(fd, nil, p.w, nil, pipeSize, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
			if err != nil || taken == 0 {
				w.pump.back(p)
				return 0, err
			}
			w.pipe, w.piped, w.bulk = p, int(taken), taken >= chunk
			return w.piped, nil
		}
	}
	buf := w.pump.buffers.Get().(*[chunk]byte)
	if n, err = unix.Read(fd, buf[:]); err != nil || n <= 0 {
		w.pump.buffers.Put(buf)
		return 0, err
	}
	w.buf, w.held, w.bulk = buf, buf[:n], n == chunk
	return n, nil
}

// drain sends all bytes that were received.
func (w *way) drain() error {
	if len(w.held) == 0 && w.piped == 0 {
		return nil
	}
	var failed error
	err := w.sink.Write(func(fd uintptr) (done bool) {
		for len(w.held) > 0 || w.piped > 0 {
			switch failed = w.give(int(fd)); failed {
			case nil, unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				return true
			}
		}
		return true
	})
	if err == nil && failed != nil && failed != unix.EINTR {
		err = os.NewSyscallError("write", failed)
	}
	if err == nil {
		w.empty()
	}
	return err
}

// give sends as many of the received bytes as fit into the send buffer.
func (w *way) give(fd int) error {
	if len(w.held) > 0 {
		n, err := unix.Write(fd, w.held)
		w.held = w.held[max(n, 0):]
		return err
	}
	n, err := unix.Splice(w.pipe.r, nil, fd, nil, w.piped, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	if err == nil && n == 0 {
		return io.ErrUnexpectedEOF
	}
	w.piped -= int(max(n, 0))
	return err
}

// empty returns the buffer and the pipe to the pump when all bytes were sent.
func (w *way) empty() {
	if w.buf != nil {
		w.pump.buffers.Put(w.buf)
	}
	if w.pipe != nil {
		w.pump.back(w.pipe)
	}
	w.buf, w.held, w.pipe = nil, nil, nil
}

// close drops bytes that were not sent.
func (w *way) close() {
	if w.pipe != nil {
		w.pump.drop(w.pipe)
	}
	w.pipe, w.piped = nil, 0
	w.empty()
}

// rest removes the received bytes that were not sent from the buffers, and returns them.
func (w *way) rest() ([]byte, error) {
	rest := append([]byte(nil), w.held...)
	for w.piped > 0 {
		b := make([]byte, w.piped)
		n, err := unix.Read(w.pipe.r, b)
		if err != nil || n == 0 {
			return nil, errors.Join(os.NewSyscallError("read", err), io.ErrUnexpectedEOF)
		}
		rest, w.piped = append(rest, b[:n]...), w.piped-n
	}
	w.empty()
	return rest, nil
}
