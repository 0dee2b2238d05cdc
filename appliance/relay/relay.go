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

// Relay serves Ports: it relays the connections of clients to endpoints in user space. All methods may be called concurrently.
type Relay struct {
	*shared
	arriving *arriving
	loopback *loopback
	fronts   *fronts
}

// New returns a Relay without Ports. origin may be nil if the kernel redirects no UDP clients to the Relay.
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

// Stats holds the counters of a Relay.
type Stats struct {
	TCP, UDP Load
	// FailedConnects counts the attempts in which an endpoint did not accept a connection.
	FailedConnects int64
	// FailedHandshakes counts failed TLS handshakes, with clients and with endpoints.
	FailedHandshakes int64
}

// Load counts the TCP connections, or the UDP clients, of a Relay.
type Load struct {
	// Loopback and Redirected count those open now, for node ports on loopback and for ports to which the kernel redirects clients. Limit is the
	// maximum of Redirected.
	Loopback, Redirected, Limit int64
	// Taken counts those accepted so far. TurnedAway counts those that were refused because there were too many, and the UDP clients whose flow was
	// ended early to make room for another.
	Taken, TurnedAway int64
}

// Stats returns the present counters.
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

// Overloaded returns the ports that have refused clients because of a limit in the last minute or two, sorted by ID and protocol.
func (r *Relay) Overloaded() []Overloaded { return r.overload.list() }

// OverloadedChanged returns a channel that receives a value when the result of Overloaded has changed.
func (r *Relay) OverloadedChanged() <-chan struct{} { return r.overload.changed }

// Set replaces the Ports on loopback addresses. It does not wait until Run has opened and closed their listeners. The caller must not modify the
// slices afterwards.
func (r *Relay) Set(ports []Port) { r.loopback.set(ports) }

// Problems returns the loopback Ports whose listener could not be opened when Run last tried, sorted by ID and address. Changed signals when the
// result has changed.
func (r *Relay) Problems() []Problem { return r.loopback.listeners.Problems() }

// Changed returns a channel that receives a value when the result of Problems has changed.
func (r *Relay) Changed() <-chan struct{} { return r.loopback.listeners.Changed() }

// Open opens a listener to which the kernel may redirect clients, unless it is open already. Clients wait to be accepted until RedirectAll has added
// a port to the listener and Run was called.
func (r *Relay) Open(protocol string, at netip.AddrPort) error {
	f := r.fronts
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.openFront(socketKey{protocol, at})
	return err
}

// RedirectAll replaces the ports to which the kernel redirects clients (Ports with Frontends) of the given Services. They are served when it returns.
// Ports that a Service no longer has are removed after limits.removal; if more is set they are kept, since the kernel still redirects clients to
// them. The error lists the listeners that could not be opened; all other ports are served. A new listener accepts clients only after the ports of
// all Services were added, so that every client finds its port.
func (r *Relay) RedirectAll(services map[string][]Port, more bool) error {
	return r.fronts.redirect(services, more)
}

// CloseUnused closes the listeners to which the kernel may redirect clients but that have no ports. Connections accepted from them stay open.
func (r *Relay) CloseUnused() {
	r.fronts.mu.Lock()
	defer r.fronts.mu.Unlock()
	r.fronts.closeUnused()
}

// Inherit takes over the state that the previous process handed over. It must be called before Run. The connections in it continue at once.
func (r *Relay) Inherit(s *State) { r.arriving.adopt(s) }

// InheritSocket takes over a listening socket that systemd stored. It must be called before Run.
func (r *Relay) InheritSocket(f *os.File) error { return r.arriving.takeSocket(f) }

// Settle makes Run close the inherited sockets and waiting connections that belong to no Port. It must be called after all Ports were passed to the
// Relay.
func (r *Relay) Settle() {
	r.arriving.mu.Lock()
	r.arriving.closeUnclaimed = true
	r.arriving.mu.Unlock()
	r.loopback.listeners.Trigger()
}

// Run opens and closes listeners until ctx is done. Then it closes all listeners, and resets the connections that have not ended within
// limits.lastDrain. If the cause of ctx is handover.ErrRequested, it keeps both open for HandedOver instead. It waits for its goroutines and returns
// nil. It must be called only once. It opens sockets in the network namespace of the process.
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

// Drain prepares a hand-over. It makes HTTP clients open another connection for their next request ("Connection: close", GOAWAY). It waits until the
// connections open at the call that cannot be handed over have ended, or ctx is done. All clients are served meanwhile, including new ones.
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

// drainLast stops accepting clients, and waits up to limits.lastDrain for connections to end. Before a hand-over (leave) it waits only for those that
// cannot be handed over. Clients that connect meanwhile wait in the listening sockets that this process or systemd keeps open, until the next process
// accepts them.
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

// pause pauses all listeners and connections, and collects the state for HandedOver.
func (r *Relay) pause() {
	r.loopback.pause()
	r.fronts.pause()
	r.clients.Wait()
	r.tasks.Wait()
	r.loopback.leave()
	r.fronts.leave()
}

// HandedOver returns the state to hand over, after Run has ended because of handover.ErrRequested. It returns nil if there is nothing to hand over.
func (r *Relay) HandedOver() *State { return r.leaving.finish() }

// relayed is a client's connection together with the connection to its endpoint. The mutex of its tcpPort guards the timers.
type relayed struct {
	client, endpoint *net.TCPConn
	to               netip.AddrPort
	there, back      *way         // directions client to endpoint, and endpoint to client
	pausing          atomic.Bool  // set when it is to be handed over
	ended            atomic.Int32 // number of directions whose source has sent a FIN
	drain            *time.Timer  // resets it after Port.Drain; nil if the port keeps the endpoint
	idle             *time.Timer  // resets it after Port.IdleTimeout; nil if there is none
	session          *session     // HTTP client's session, which may outlive the connection; nil without HTTP
	late             *recentKey   // key for EndpointsOf; nil if Port.Logged is not set
}

// session is the state that all connections to endpoints for one HTTP client share.
type session struct {
	stale atomic.Bool // the endpoint of a connection must get no further requests; reset by the next request
	noted bool        // it is recorded for EndpointsOf; guarded by the mutex of the tcpPort
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

// stop ends a connection after ctx is done. It pauses the connection for a hand-over if one is requested. Otherwise it resets it, since a FIN would
// make the transfer look complete.
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

// join copies data in both directions until both have ended, and closes both connections. It returns true if they were paused instead; then both stay
// open.
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

// reset closes a connection with an RST. If the connection is closed already, it does nothing.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// silence returns the time since the kernel last received data on a connection. It returns 0 if the connection is closed.
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
	// chunk is the size of the buffer for a read, in bytes. If a read fills the buffer, more data is expected, and the next bytes are spliced.
	chunk = 16 << 10
	// pipeSize is the requested capacity of a pipe, in bytes. The kernel grants less to an unprivileged user at the limit fs.pipe-user-pages-soft.
	pipeSize = 512 << 10
	// idlePipes is the maximum number of unused pipes that are kept for other connections.
	idlePipes = 64
)

// pump holds the buffers and pipes for copying data. A connection uses them only while it has received bytes that it has not sent yet.
type pump struct {
	buffers sync.Pool // holds *[chunk]byte
	pipes   chan *pipe
	limit   int64
	made    atomic.Int64
}

// pipe holds the two file descriptors of a pipe(2). A pipe in a pump is empty.
type pipe struct{ r, w int }

// pipe returns an empty pipe. It returns nil if all permitted pipes are in use, or if the kernel refuses another one.
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

// back returns an empty pipe to the pump. If the pump has idlePipes already, back closes the pipe.
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

// close closes the unused pipes of the pump.
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

// way is one direction of a relayed connection. Only one goroutine uses it.
type way struct {
	pump     *pump
	from, to *net.TCPConn
	source   syscall.RawConn // raw connection of from
	sink     syscall.RawConn // raw connection of to

	held  []byte       // received bytes that were not sent yet
	buf   *[chunk]byte // buffer from the pump that contains held; nil if held has its own memory
	pipe  *pipe        // contains piped received bytes that were not sent yet; nil if none
	piped int
	bulk  bool // the last read filled the buffer, so use splice(2) next
	ended bool // a FIN was received from from
	done  bool // the FIN was sent to to
}

func (u *pump) way(to, from *net.TCPConn) (*way, error) {
	source, err := from.SyscallConn()
	if err != nil {
		return nil, err
	}
	sink, err := to.SyscallConn()
	return &way{pump: u, from: from, to: to, source: source, sink: sink}, err
}

// run copies data until the source has sent a FIN, and then sends a FIN to the destination. If it returns an error, it can be called again; received
// bytes are not lost. At the end it calls last. If last returns true, the other direction has ended too, and run leaves the FIN to the closing of the
// connection.
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

// fill waits until data or a FIN arrives, and receives it. If the last read filled a chunk, it receives the data into a pipe.
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

// take receives the available bytes into a buffer or a pipe, and returns their number. 0 without an error means a FIN.
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

// drain sends all received bytes to the destination. It waits while the send buffer is full.
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

// give sends as many received bytes as fit into the send buffer of the destination.
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

// empty returns the buffer and the pipe to the pump. It is called when all their bytes were sent.
func (w *way) empty() {
	if w.buf != nil {
		w.pump.buffers.Put(w.buf)
	}
	if w.pipe != nil {
		w.pump.back(w.pipe)
	}
	w.buf, w.held, w.pipe = nil, nil, nil
}

// close releases the buffer and the pipe, and discards bytes that were not sent.
func (w *way) close() {
	if w.pipe != nil {
		w.pump.drop(w.pipe)
	}
	w.pipe, w.piped = nil, 0
	w.empty()
}

// rest returns the received bytes that were not sent, and removes them from the buffer or the pipe.
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
