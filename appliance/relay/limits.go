package relay

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/relay/httpproxy"
	"svcctl.io/svcctl/appliance/task"
)

// limits holds the limits and timeouts of a Relay. It has more than 15 fields: each limit can be lowered separately in tests.
type limits struct {
	tcp, udp    bothBounds    // maximum number of concurrent TCP connections, and of UDP clients
	pipes       int64         // maximum number of pipes for splice(2)
	clients     int           // maximum number of affinity entries of a port
	header      time.Duration // timeout for receiving a PROXY protocol header
	dial        time.Duration // timeout for connecting to an endpoint if Connect.Timeout is 0
	hedge       time.Duration // minimum wait for an endpoint before another one is tried in parallel
	last        time.Duration // time for which an endpoint that did not accept is picked last
	unreplied   time.Duration // idle timeout of a UDP client that got no reply
	replied     time.Duration // idle timeout of a UDP client that got a reply and whose flow is older than stream
	stream      time.Duration // minimum time from the first to the last datagram of a flow for the timeout replied
	removal     time.Duration // time for which a port still serves after the kernel stopped redirecting clients to it
	lastDrain   time.Duration // how long Run waits at its end: see drainLast
	retry       time.Duration // interval between attempts to open a listener
	backoff     time.Duration // pause after an error of accept or receive
	logInterval time.Duration // minimum interval between repetitions of a log line
}

// defaults returns the limits for the process's limit of open files. The UDP timeouts are slightly shorter than those of conntrack
// (net.netfilter.nf_conntrack_udp_timeout, 30 s; after 2 s of traffic nf_conntrack_udp_timeout_stream, 120 s), so that a flow never outlives the
// conntrack entry of its client.
func defaults() limits {
	l := limits{
		clients: 1 << 16,
		header:  10 * time.Second, dial: 5 * time.Second, hedge: 250 * time.Millisecond, last: 10 * time.Second, unreplied: 28 * time.Second, replied: 115 * time.Second, stream: 2 * time.Second,
		removal: 10 * time.Second, lastDrain: 2 * time.Second, retry: 5 * time.Second, backoff: 100 * time.Millisecond, logInterval: time.Minute,
	}
	l.descriptors(openFiles())
	return l
}

// bounds are the maximum numbers of concurrent TCP connections, or of UDP clients.
type bounds struct {
	port  int64 // maximum for one port
	total int64 // maximum for all ports together
}

// bothBounds holds separate bounds for node ports on loopback addresses, and for ports to which the kernel redirects clients.
type bothBounds struct{ loopback, redirected bounds }

// Limits for all ports together to which the kernel redirects clients. The limit of open files may lower them.
const (
	// MaxConnections is the maximum number of concurrent TCP connections.
	MaxConnections = 20000
	// MaxClients is the maximum number of concurrent UDP clients.
	MaxClients = 20000
	// maxPipes is the maximum number of pipes for splice(2). When all are in use, bytes are copied in user space.
	maxPipes = 512
)

// descriptors sets the limits according to files, the limit of open files. Ports to which the kernel redirects clients may use two thirds of it.
// There a TCP connection takes two descriptors, a UDP client one, and a pipe two. Node ports on loopback may use a sixth. The shares of TCP and UDP
// are separate, so that neither can exhaust the other's.
func (l *limits) descriptors(files uint64) {
	all := int64(min(files, 1<<30))
	have := all / 3 * 2
	l.pipes = min(maxPipes, have/16/2)
	l.tcp.redirected.total = min(MaxConnections, have*5/8/2)
	l.udp.redirected.total = min(MaxClients, have/4)
	l.tcp.redirected.port, l.udp.redirected.port = l.tcp.redirected.total, l.udp.redirected.total
	l.tcp.loopback = bounds{min(1024, all/24), min(8192, all/24*3)}
	l.udp.loopback = bounds{min(1024, all/24), min(8192, all/24)}
}

// openFiles returns the limit of open files of this process (RLIMIT_NOFILE), or 1<<20 if it cannot be determined.
func openFiles() uint64 {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return 1 << 20
	}
	return files.Cur
}

// quota counts and limits the slots in use: one for each TCP connection or UDP client. It is the quota of one port, or of all ports together.
type quota struct {
	limit  int64
	parent *quota // quota of all ports together; nil in that quota itself
	used   atomic.Int64
	taken  atomic.Int64 // number of slots acquired so far
}

// acquire takes a slot of a port; release gives it back. It returns false if the port already uses its maximum, or at least as many slots as are free
// in the quota of all ports. So one port can use half of all slots, two can use a third each, and there is always room for another port (dynamic
// thresholds, Choudhury and Hahne 1998, alpha 1).
func (q *quota) acquire() bool {
	had := q.used.Add(1) - 1
	if all := q.parent.used.Add(1) - 1; had >= q.limit || had >= q.parent.limit-all {
		q.release()
		return false
	}
	q.taken.Add(1)
	q.parent.taken.Add(1)
	return true
}

// force takes a slot even beyond the limits, for a connection that the previous process handed over.
func (q *quota) force() {
	q.used.Add(1)
	q.parent.used.Add(1)
}

func (q *quota) release() {
	q.used.Add(-1)
	q.parent.used.Add(-1)
}

// quotas holds, for each protocol, the quotas of all ports together.
type quotas struct {
	limits   *limits
	tcp, udp bothQuotas
}

type bothQuotas struct{ loopback, redirected quota }

func newQuotas(l *limits) *quotas {
	q := &quotas{limits: l}
	q.tcp.loopback.limit, q.tcp.redirected.limit = l.tcp.loopback.total, l.tcp.redirected.total
	q.udp.loopback.limit, q.udp.redirected.limit = l.udp.loopback.total, l.udp.redirected.total
	return q
}

// of returns a new quota for a Port. Its parent is the quota of all ports of the same protocol and kind (redirected or on loopback).
func (q *quotas) of(p Port) *quota {
	limit, of := &q.limits.tcp, &q.tcp
	if p.Protocol == UDP {
		limit, of = &q.limits.udp, &q.udp
	}
	if p.redirected() {
		return &quota{limit: limit.redirected.port, parent: &of.redirected}
	}
	return &quota{limit: limit.loopback.port, parent: &of.loopback}
}

// Overloaded is a Port that has refused clients because of a limit within the last minute or two.
type Overloaded struct {
	ID, Protocol string
	Redirected   bool  // the kernel redirects clients to it; otherwise a node port on loopback
	Looped       bool  // clients arrived with a used-up TTL (hopsLeft); otherwise there were too many
	Limit        int64 // maximum for all ports of its kind together
}

// overload records the ports that refuse clients. It uses a timer only while there are any.
type overload struct {
	log     *slog.Logger
	every   time.Duration // minimum time for which a port stays in the list after it refused a client
	changed chan struct{} // signals that the list has changed; capacity 1

	mu    sync.Mutex
	ports map[Overloaded]*turnedAway
	timer *time.Timer
	total [2]int64 // number of refused clients so far: TCP, UDP
}

// turnedAway counts the clients that a port refused.
type turnedAway struct {
	times  int // number since the last call of look
	logged logLimiter
}

// turnAway counts a client that was refused because of a limit. It logs the message what, at most once per interval.
func (c *overload) turnAway(p Port, q *quota, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total[0]++; p.Protocol == UDP {
		c.total[0]--
		c.total[1]++
	}
	if times, due := c.note(Overloaded{p.ID, p.Protocol, p.redirected(), false, q.parent.limit}); due {
		c.log.Warn(what+": there are too many at once", "svc", p.ID, "ip", p.Listen.Addr(), "port", p.Listen.Port(),
			"protocol", p.Protocol, "times", times, "ofThisPort", q.used.Load(), "ofAllPorts", q.parent.used.Load(), "limitOfAllPorts", q.parent.limit)
	}
}

// looped counts a client that was refused because its TTL is used up, which means that it passed through a loop of relays. It logs this at most once
// per interval.
func (c *overload) looped(p Port, q *quota) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if times, due := c.note(Overloaded{p.ID, p.Protocol, p.redirected(), true, q.parent.limit}); due {
		c.log.Warn("clients of a relayed port are refused: they came without a hop left", "svc", p.ID, "ip", p.Listen.Addr(), "port", p.Listen.Port(), "protocol", p.Protocol, "times", times)
	}
}

// note records that a port has refused a client. due reports whether to log this, and times is the number of refused clients since the last log line.
// The caller must hold c.mu.
func (c *overload) note(who Overloaded) (times int, due bool) {
	t := c.ports[who]
	if t == nil {
		t = &turnedAway{logged: logLimiter{every: c.every}}
		c.ports[who] = t
		c.signal()
		if c.timer == nil {
			c.timer = time.AfterFunc(c.every, c.look)
		}
	}
	t.times++
	return t.logged.due()
}

// forget counts a UDP client whose idle flow was ended early, after a reply, to make room for another client.
func (c *overload) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total[1]++
}

// look removes the ports that have not refused a client since the last call of look.
func (c *overload) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.ports)
	maps.DeleteFunc(c.ports, func(_ Overloaded, t *turnedAway) bool { return t.times == 0 })
	for _, t := range c.ports {
		t.times = 0
	}
	if len(c.ports) < before {
		c.signal()
	}
	if c.timer = nil; len(c.ports) > 0 {
		c.timer = time.AfterFunc(c.every, c.look)
	}
}

func (c *overload) signal() { task.Wake(c.changed) }

// list returns the ports that have recently refused clients, sorted by ID and protocol.
func (c *overload) list() []Overloaded {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Keys(c.ports), func(a, b Overloaded) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Protocol, b.Protocol))
	})
}

func (c *overload) counts() (tcp, udp int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total[0], c.total[1]
}

func (c *overload) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}

// logLimiter limits how often a line is logged. It is not safe for concurrent use.
type logLimiter struct {
	every time.Duration
	last  time.Time
	times int
}

// due counts an event. It returns true if a line is to be logged now; times is then the number of events since the last line.
func (c *logLimiter) due() (times int, is bool) {
	c.times++
	if now := time.Now(); c.last.IsZero() || now.Sub(c.last) >= c.every {
		times, c.times, c.last = c.times, 0, now
		return times, true
	}
	return 0, false
}

// shared is the state that all ports of a Relay have in common.
type shared struct {
	log      *slog.Logger
	limits   limits
	quotas   *quotas
	overload *overload
	pump     *pump
	open     *openCounts
	lately   recentClients
	http     *httpproxy.Proxy

	failures
	replacement
	lifetime
}

// failures counts failed connections to endpoints, and failed TLS handshakes.
type failures struct {
	failedConnects   atomic.Int64
	failedHandshakes atomic.Int64 // counts handshakes with clients and with endpoints
}

// replacement holds the state to hand over to the next process, and counts the connections that cannot be handed over.
type replacement struct {
	store    *handover.Store
	leaving  leaving
	draining draining
}

// lifetime holds the wait groups for the goroutines of a Relay, and the context of its connections.
type lifetime struct {
	clients sync.WaitGroup // goroutines that serve or accept TCP clients
	tasks   sync.WaitGroup // all other goroutines
	// ctx is canceled after the context of Run, with the same cause. Handed-over connections use it before Run is called.
	ctx context.Context
	end context.CancelCauseFunc
}

func newShared(log *slog.Logger, l limits) *shared {
	ctx, end := context.WithCancelCause(context.Background())
	return &shared{
		log: log, limits: l, quotas: newQuotas(&l), open: newOpenCounts(), http: httpproxy.New(log),
		overload:    &overload{log: log, every: l.logInterval, changed: make(chan struct{}, 1), ports: map[Overloaded]*turnedAway{}},
		pump:        &pump{buffers: sync.Pool{New: func() any { return new([chunk]byte) }}, pipes: make(chan *pipe, idlePipes), limit: l.pipes},
		replacement: replacement{store: handover.NewStore(), leaving: leaving{ports: map[*balancer]*leavingPort{}}, draining: newDraining()},
		lifetime:    lifetime{ctx: ctx, end: end},
	}
}

func (s *shared) logOf(p Port) *slog.Logger {
	return s.log.With("svc", p.ID, "ip", p.Listen.Addr(), "port", p.Listen.Port(), "protocol", p.Protocol)
}

// forget makes systemd drop a listening socket that it stores.
func (s *shared) forget(key socketKey) {
	if err := s.store.Drop(key.name()); err != nil {
		s.log.Warn("systemd cannot be notified to close a stored socket", "name", key.name(), "err", err)
	}
}

const (
	// maxRecent is the maximum number of recorded clients whose connections have ended. conntrack reports the end of a connection up to two minutes
	// late, so this suffices for 500 connections a second.
	maxRecent = 1 << 16
	// maxEndpointsOf is the maximum number of recorded endpoints of one client connection. Over HTTP there may be several.
	maxEndpointsOf = 16
)

// recentClients records to which endpoints the clients of Ports with Logged are connected. It keeps the last maxRecent clients whose connections have
// ended.
type recentClients struct {
	mu    sync.Mutex
	of    map[recentKey]*recentClient
	ended []ending // ring buffer of clients whose connections have ended
	next  int
}

// recentKey identifies a client of a listener. The port suffices to identify the listener, whichever address of the box the client connected to.
type recentKey struct {
	protocol string
	client   netip.AddrPort
	listener uint16
}

type recentClient struct {
	endpoints []netip.AddrPort
	open      int // number of open connections to endpoints
}

type ending struct {
	key recentKey
	is  *recentClient
}

// begin records a connection to an endpoint. goesOn is set if it belongs to a client connection that has a record. Otherwise the client is new, even
// if an earlier client had the same address and port.
func (l *recentClients) begin(k recentKey, endpoint netip.AddrPort, goesOn bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.of[k]
	if c == nil || !goesOn {
		if l.of == nil {
			l.of = map[recentKey]*recentClient{}
		}
		c = &recentClient{}
		l.of[k] = c
	}
	c.open++
	if len(c.endpoints) < maxEndpointsOf && !slices.Contains(c.endpoints, endpoint) {
		c.endpoints = append(c.endpoints, endpoint)
	}
}

// end records that a connection to an endpoint has ended. It does nothing if the client has no record any more.
func (l *recentClients) end(k recentKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.of[k]
	if c == nil || c.open == 0 {
		return
	}
	if c.open--; c.open > 0 {
		return
	}
	e := ending{k, c}
	if len(l.ended) < maxRecent {
		l.ended = append(l.ended, e)
		return
	}
	if old := l.ended[l.next]; l.of[old.key] == old.is && old.is.open == 0 {
		delete(l.of, old.key)
	}
	l.ended[l.next] = e
	l.next = (l.next + 1) % maxRecent
}

// endpoints returns the endpoints to which a client is or was connected, in the order of its connections. It returns nil if the client has no record.
func (l *recentClients) endpoints(k recentKey) []netip.AddrPort {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.of[k]; c != nil {
		return slices.Clone(c.endpoints)
	}
	return nil
}
