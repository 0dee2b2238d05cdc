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

// limits are the limits and timeouts of a Relay. It has more than 15 fields: one for each of them, so that tests can shorten it.
type limits struct {
	tcp, udp    bothBounds    // concurrent TCP connections, and UDP clients
	pipes       int64         // for splice(2)
	clients     int           // affinity entries of a port
	header      time.Duration // timeout of a header of the PROXY protocol
	dial        time.Duration // timeout of connecting to an endpoint where the Port has none
	hedge       time.Duration // least wait for an endpoint until another one is tried in parallel
	last        time.Duration // time for which an endpoint that did not accept is the last choice
	unreplied   time.Duration // idle timeout of a UDP client without an answer
	replied     time.Duration // idle timeout of a UDP client with an answer, whose datagrams span at least
	stream      time.Duration // this time
	removal     time.Duration // time for which a port serves after the kernel stops redirecting clients to it
	lastDrain   time.Duration // longest wait of a stop for connections, and of a hand-over for those that began during Drain; new clients wait meanwhile
	retry       time.Duration // between attempts to open a listener
	backoff     time.Duration // pause after a failure to accept or receive
	logInterval time.Duration // between repetitions of a log line
}

// defaults returns the limits that suit the limit of open files. The timeouts of UDP are a little shorter than those
// of conntrack (net.netfilter.nf_conntrack_udp_timeout, 30 s; after 2 s of traffic nf_conntrack_udp_timeout_stream,
// 120 s): a flow never outlives the conntrack entry of its client.
func defaults() limits {
	l := limits{
		clients: 1 << 16,
		header:  10 * time.Second, dial: 5 * time.Second, hedge: 250 * time.Millisecond, last: 10 * time.Second, unreplied: 28 * time.Second, replied: 115 * time.Second, stream: 2 * time.Second,
		removal: 10 * time.Second, lastDrain: 2 * time.Second, retry: 5 * time.Second, backoff: 100 * time.Millisecond, logInterval: time.Minute,
	}
	l.descriptors(openFiles())
	return l
}

// bounds are the limits of concurrent connections, or of UDP clients.
type bounds struct {
	port  int64 // of one port
	total int64 // of all ports together
}

// bothBounds has separate bounds for node ports on loopback and for ports that the kernel redirects.
type bothBounds struct{ loopback, redirected bounds }

// Limits for all ports together to which the kernel redirects clients; lower if the limit of open files requires it.
const (
	// MaxConnections bounds the TCP connections.
	MaxConnections = 20000
	// MaxClients bounds the clients of UDP.
	MaxClients = 20000
	// maxPipes bounds the pipes for splice(2); without one bytes are copied.
	maxPipes = 512
)

// descriptors sets the limits according to the limit of open files. Ports that the kernel redirects have two thirds of it: a TCP connection
// takes two descriptors, a UDP client one, a pipe two. Node ports on loopback have a sixth. TCP and UDP have separate shares, so that
// neither can exhaust the other's.
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

// openFiles returns the limit of open files of this process (RLIMIT_NOFILE); 1<<20 if it cannot be read.
func openFiles() uint64 {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return 1 << 20
	}
	return files.Cur
}

// quota counts the slots in use, of one port or of all ports together.
type quota struct {
	limit  int64
	parent *quota // quota of all ports together; nil: this quota is that one
	used   atomic.Int64
	taken  atomic.Int64 // slots acquired so far
}

// acquire takes a slot of a port, to be returned by release. It returns false if the port has as many slots as it may have, or as many as
// are left for all ports. So a single port can have half of all slots, two a third each, and there is always room for another one (dynamic
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

// force takes a slot without regard to the limits, for a connection that was handed over.
func (q *quota) force() {
	q.used.Add(1)
	q.parent.used.Add(1)
}

func (q *quota) release() {
	q.used.Add(-1)
	q.parent.used.Add(-1)
}

// quotas has the quotas of all ports together, by protocol.
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

// of returns the quota of a new Port.
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

// Overloaded is a Port that has refused clients within the last minute or two because of a limit.
type Overloaded struct {
	ID, Protocol string
	Redirected   bool  // else a node port on loopback
	Looped       bool  // clients came without a hop left: see hopsLeft; else there were too many
	Limit        int64 // of all ports of the kind together
}

// overload records the ports that refuse clients. It has a timer only while there are any.
type overload struct {
	log     *slog.Logger
	every   time.Duration // the time for which a port stays in the list after the last client that it refused
	changed chan struct{} // capacity 1: the list has changed

	mu    sync.Mutex
	ports map[Overloaded]*turnedAway
	timer *time.Timer
	total [2]int64 // TCP, UDP: turned away so far
}

// turnedAway counts the clients that a port refused.
type turnedAway struct {
	times  int // since the last call of look
	logged logLimiter
}

// turnAway counts a client that was refused because of a limit, and logs that at most once per interval.
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

// looped counts a client that was refused because its TTL is used up: it comes from a loop of relays. It logs that at most once per
// interval.
func (c *overload) looped(p Port, q *quota) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if times, due := c.note(Overloaded{p.ID, p.Protocol, p.redirected(), true, q.parent.limit}); due {
		c.log.Warn("clients of a relayed port are refused: they came without a hop left", "svc", p.ID, "ip", p.Listen.Addr(), "port", p.Listen.Port(), "protocol", p.Protocol, "times", times)
	}
}

// note records that a port has refused a client, and reports whether to log it; times is the number since the last log line. The caller
// holds c.mu.
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

// forget counts a UDP client whose idle flow was ended to make room for another client.
func (c *overload) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total[1]++
}

// look removes the ports that have refused no client since its last call.
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

// list returns the ports, sorted.
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

// logLimiter limits the rate of a log line. It is not safe for concurrent use.
type logLimiter struct {
	every time.Duration
	last  time.Time
	times int
}

// due counts an event and reports whether to log now; times is the number of events since the last log line.
func (c *logLimiter) due() (times int, is bool) {
	c.times++
	if now := time.Now(); c.last.IsZero() || now.Sub(c.last) >= c.every {
		times, c.times, c.last = c.times, 0, now
		return times, true
	}
	return 0, false
}

// shared is the state that all ports of a Relay use.
type shared struct {
	log       *slog.Logger
	limits    limits
	quotas    *quotas
	overload  *overload
	datagrams *datagrams
	pump      *pump
	open      *openCounts
	lately    recentClients
	http      *httpproxy.Proxy

	failures
	replacement
	lifetime
}

// failures counts connections and TLS handshakes that failed.
type failures struct {
	failedConnects   atomic.Int64
	failedHandshakes atomic.Int64 // with clients and with endpoints
}

// replacement is the state of the hand-over to the next process, and of connections that the previous one handed over.
type replacement struct {
	store    *handover.Store
	leaving  leaving
	draining draining
}

// lifetime counts the goroutines of a Relay, and has the context of its connections.
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
		log: log, limits: l, quotas: newQuotas(&l), datagrams: newDatagrams(), open: newOpenCounts(), http: httpproxy.New(log),
		overload:    &overload{log: log, every: l.logInterval, changed: make(chan struct{}, 1), ports: map[Overloaded]*turnedAway{}},
		pump:        &pump{buffers: sync.Pool{New: func() any { return new([chunk]byte) }}, pipes: make(chan *pipe, idlePipes), limit: l.pipes},
		replacement: replacement{store: handover.NewStore(), leaving: leaving{ports: map[*balancer]*leavingPort{}}, draining: newDraining()},
		lifetime:    lifetime{ctx: ctx, end: end},
	}
}

func (s *shared) logOf(p Port) *slog.Logger {
	return s.log.With("svc", p.ID, "ip", p.Listen.Addr(), "port", p.Listen.Port(), "protocol", p.Protocol)
}

// forget makes systemd drop a listener that it stores.
func (s *shared) forget(key socketKey) {
	if err := s.store.Drop(key.name()); err != nil {
		s.log.Warn("systemd cannot be notified to close a stored socket", "name", key.name(), "err", err)
	}
}

const (
	// maxRecent bounds the recorded clients whose connections have ended. The kernel removes a closed connection after two minutes, and
	// sends its event then: that suffices for 500 connections a second.
	maxRecent = 1 << 16
	// maxEndpointsOf bounds the endpoints of one client connection, which over HTTP are several.
	maxEndpointsOf = 16
)

// recentClients records the endpoints of clients of logged ports: those of open connections, and of the last maxRecent that ended.
type recentClients struct {
	mu    sync.Mutex
	of    map[recentKey]*recentClient
	ended []ending // a ring buffer
	next  int
}

// recentKey identifies a client of a listener. Listeners differ by port; the box's address that the client reached does not matter.
type recentKey struct {
	protocol string
	client   netip.AddrPort
	listener uint16
}

type recentClient struct {
	endpoints []netip.AddrPort
	open      int // connections to endpoints
}

type ending struct {
	key recentKey
	is  *recentClient
}

// begin records a connection to an endpoint. goesOn is set when it is another one of the same client connection; otherwise the client is
// new, even if an earlier one had the same address and port.
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

// end records that a connection has ended. It ignores one whose record was dropped.
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

// endpoints returns the endpoints to which a client was connected, in order of their first connections; nil if unknown.
func (l *recentClients) endpoints(k recentKey) []netip.AddrPort {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.of[k]; c != nil {
		return slices.Clone(c.endpoints)
	}
	return nil
}
