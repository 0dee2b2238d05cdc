package conntrack

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// Retry moves clients to another endpoint if theirs does not answer. The kernel sends all retransmissions of a SYN to the endpoint of the
// first one. Retry deletes the entry of a connection that got no answer within the time that its Service configures; the next SYN then
// counts as a first packet. The table does not contain the age of an entry, because each SYN restarts the timeout. Retry therefore measures
// from the first scan that found the entry, which may be late by one pause. It scans only while a time is configured for any frontend. An
// answer that arrives between the scan and the deletion is lost, and breaks the connection. The configured time must therefore be longer
// than any endpoint takes to answer.
type Retry struct {
	log  *slog.Logger
	wake chan struct{} // capacity 1: the first time was configured or the last one removed

	mu      sync.Mutex
	asked   expirySet
	retried uint64

	task.LastError // why entries cannot be deleted

	waits // used only by Run
}

// waits measures how long connections wait for the first answer of their endpoint.
type waits struct {
	table table
	// seen holds the unanswered entries of the last scan with the time at which each was first found, seeing those of the current scan.
	seen, seeing map[attempt]time.Time
}

// scan calls judge for each entry that matches any of the queries, and carries out the verdict. For unanswered entries, judge calls w.judge.
func (w *waits) scan(ctx context.Context, queries []query, judge func(e *entry) verdict) (tally, error) {
	w.seeing = make(map[attempt]time.Time, len(w.seen))
	total, err := w.table.deleteMatching(ctx, queries, func(e *entry) (verdict, netip.Addr) { return judge(e), netip.Addr{} })
	if err == nil {
		w.seen = w.seeing
	}
	return total, err
}

// judge returns the verdict on an unanswered entry. forgets decides by the time since a scan first found the entry.
func (w *waits) judge(e *entry, now time.Time, forgets func(waited time.Duration) bool) verdict {
	key := attempt{binary.BigEndian.Uint32(e.id), e.replyFrom}
	since, known := w.seen[key]
	if !known {
		since = now
	}
	switch {
	case forgets(now.Sub(since)):
		return forget
	case len(w.seeing) < mostAttempts:
		w.seeing[key] = since
	}
	return leave
}

func (w *waits) close() error {
	w.seen = nil
	return w.table.close()
}

// attempt identifies an entry. The id alone could also match a later connection of the same client.
type attempt struct {
	id       uint32
	endpoint netip.AddrPort
}

const (
	// mostAttempts is the maximum number of entries in seen, some 5 MB. Further entries are ignored until others are removed.
	mostAttempts = 1 << 16
	// longestPause is the longest pause between two scans.
	longestPause = 2 * time.Second
)

// NewRetry returns a Retry without frontends.
func NewRetry(options Options) *Retry {
	options.Log = cmp.Or(options.Log, slog.Default())
	return newRetry(&kernelTable{netns: options.NetNS}, options.Log)
}

func newRetry(table table, log *slog.Logger) *Retry {
	return &Retry{log: log, waits: waits{table: table}, wake: make(chan struct{}, 1), asked: newExpirySet()}
}

// Update records the box, unless it is nil, and the ports of the Services that changed. after holds the time, for each of these Services,
// after which a client without an answer gets another endpoint; 0 disables it.
func (r *Retry) Update(box *nft.Box, changes map[string][]nft.ServicePort, after map[string]time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked.update(box, changes, func(service string, _ *nft.ServicePort) time.Duration { return after[service] }) {
		task.Wake(r.wake)
	}
}

// Retried returns how many entries were deleted so that the client gets another endpoint.
func (r *Retry) Retried() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.retried
}

// Run scans the table until ctx is done. Failed scans are repeated. After each scan it pauses, so that scans of a large table use at most a
// twentieth of a CPU.
func (r *Retry) Run(ctx context.Context) error {
	task.Repeat(ctx, r.wake, func() (next time.Time) {
		queries, pause := r.queries()
		if len(queries) == 0 {
			_ = r.close()
			return next
		}
		cost := Cost()
		if err := r.scan(ctx, queries); err != nil {
			pause = idleRetry
		}
		return time.Now().Add(max(pause, RestFor*cost()))
	})
	return r.close()
}

// queries returns the queries that cover the frontends, and the pause after the scan.
func (r *Retry) queries() (queries []query, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	shortest := longestPause
	for _, after := range r.asked.times.Of {
		shortest = min(shortest, after/2)
	}
	return queriesOf(r.asked.times.Of, true), shortest
}

// scan deletes the entries that got no answer within the time of their Service.
func (r *Retry) scan(ctx context.Context, queries []query) (err error) {
	total, err := r.waits.scan(ctx, queries, r.judge)
	if ctx.Err() != nil {
		return nil
	}
	r.mu.Lock()
	r.retried += uint64(total.forgotten)
	r.mu.Unlock()
	r.Log(r.log, err, "clients stay with endpoints that do not answer; it is tried again", "clients of endpoints that do not answer get another one again", "retry", idleRetry)
	return err
}

// judge returns the verdict on an entry, according to the time that its Service configures.
func (r *Retry) judge(e *entry) verdict {
	if e.protocol != nft.TCP || e.state != tcpSynSent || e.answered || !e.isThrough() {
		return leave
	}
	r.mu.Lock()
	after := r.asked.of(e)
	r.mu.Unlock()
	if after == 0 {
		return leave
	}
	return r.waits.judge(e, time.Now(), func(waited time.Duration) bool { return waited >= after })
}

// ListenFailed is like Listen, but only for the DESTROY events of TCP connections without an answer from the endpoint. A socket filter
// drops all other events, so that answered connections do not wake the process. Before Linux 5.8 events contain no protocol state, so that
// none pass.
func ListenFailed(netns int) (*Events, error) {
	return listen(netns, unanswered, failedBuffer)
}

// failedBuffer is the size of the receive buffer in bytes, with room for some 800 events. Lost events do no harm, because one event is
// enough for each endpoint.
const failedBuffer = 1 << 20

// unanswered is a classic BPF program (bpf(7)) that passes events about entries with a protocol state (which UDP does not have), with the
// status bit DST_NAT and without SEEN_REPLY.
var unanswered = []bpf.Instruction{
	bpf.LoadConstant{Dst: bpf.RegX, Val: ctaProtoInfo},
	bpf.LoadConstant{Dst: bpf.RegA, Val: nfnetlink.HeaderLen + nfnetlink.GenHeaderLen},
	bpf.LoadExtension{Num: bpf.ExtNetlinkAttr},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 9},
	bpf.LoadConstant{Dst: bpf.RegX, Val: ctaStatus},
	bpf.LoadConstant{Dst: bpf.RegA, Val: nfnetlink.HeaderLen + nfnetlink.GenHeaderLen},
	bpf.LoadExtension{Num: bpf.ExtNetlinkAttr},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 5},
	bpf.TAX{},
	bpf.LoadIndirect{Off: 4, Size: 4}, // behind the attribute's header
	bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: statusDstNAT, SkipTrue: 2},
	bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: statusSeenReply, SkipTrue: 1},
	bpf.RetConstant{Val: math.MaxUint32},
	bpf.RetConstant{Val: 0},
}

// Pause turns the events off if on is set, and on otherwise. While they are off, the kernel prepares no events for new connections.
func (v *Events) Pause(on bool) error {
	if on {
		return v.stream.Leave(groupDestroy)
	}
	return v.stream.Join(groupDestroy)
}

// Failure is the way in which a connection to an endpoint failed.
type Failure uint8

// The values of Failure.
const (
	NoFailure Failure = iota
	// Refused means that the packet after the client's SYN was a reset. The entry does not show whether the endpoint or the client sent it
	// (nf_conntrack_proto_tcp.c deletes it either way).
	Refused
	// Silent means that the SYN got no answer before its entry expired (net.netfilter.nf_conntrack_tcp_timeout_syn_sent).
	Silent
)

// Failure returns how the connection of a DESTROY event failed. It returns NoFailure if the entry was deleted before it expired.
func (e *Event) Failure() Failure {
	switch {
	case !e.Over || e.Protocol != nft.TCP || e.Answered:
	case e.State == tcpStates[tcpClose]:
		return Refused
	case e.State == tcpStates[tcpSynSent] && e.Expires == 0:
		return Silent
	}
	return NoFailure
}

// Attempts finds TCP connections that wait for the first answer of their endpoint.
type Attempts struct{ waits }

// NewAttempts returns an Attempts that opens its sockets at the first Look.
func NewAttempts(options Options) *Attempts {
	return &Attempts{waits{table: &kernelTable{netns: options.NetNS}}}
}

// Look calls each with every unanswered connection and the time since the first Look that found it. If each returns true, the entry is
// deleted, so that the client's next SYN begins a new connection. entries is the number of entries in the table, found the number of
// unanswered connections.
func (a *Attempts) Look(now time.Time, each func(c *Connection, waited time.Duration) (forget bool)) (entries uint32, found int, err error) {
	var c Connection
	unanswered := []query{{family: nft.IPv4, protocol: nft.TCP, unanswered: true}, {family: nft.IPv6, protocol: nft.TCP, unanswered: true}}
	total, err := a.scan(context.Background(), unanswered, func(e *entry) verdict {
		if e.state != tcpSynSent || !e.isThrough() {
			return leave
		}
		found++
		e.describe(&c)
		return a.judge(e, now, func(waited time.Duration) bool { return each(&c, waited) })
	})
	return total.tracked, found, err
}

// Close forgets the unanswered connections of earlier Looks, and closes the sockets. The next Look opens them again.
func (a *Attempts) Close() error { return a.close() }

// A TCP connection whose time is over has to be reset, and the kernel has no request for
// that on a connection that it forwards. Deleting its entry alone would make a new connection
// of its next packet: one from the client would be balanced to an endpoint without that
// connection, which resets it, or be dropped where a policy has no answer; one from the
// endpoint would reach the client without translation, from an unknown address.
//
// So two entries take the place of the one that is deleted, one for each end. They
// translate what that end sends to the box itself, whose TCP has no such connection and
// answers with the reset (RFC 9293, section 3.5.2). The answer goes back through the
// entry, so it comes from where that end expects its peer, with the sequence number that
// it takes; and with it the entry goes, for that is what a reset does to an entry that
// has seen no other reply.

// deadEndPort is the local port in dead-end entries. No socket can be bound to it, so that no real connection uses it.
const deadEndPort = 0

// deadEndLife is the timeout of a dead end. It is longer than the default of two hours after which an endpoint sends keep-alives (RFC 9293,
// section 3.8.4).
const deadEndLife = 2*time.Hour + 15*time.Minute

// resettersOf returns, by family, the address of the box to which dead ends lead. A family without a global address is missing.
func resettersOf(local []netip.Addr) map[nft.Family]netip.Addr {
	chosen := map[nft.Family]netip.Addr{}
	for _, addr := range local {
		if f := nft.FamilyOf(addr); !chosen[f].IsValid() && addr.IsGlobalUnicast() {
			chosen[f] = addr
		}
	}
	return chosen
}

// isDeadEnd reports whether the entry is the dead end of the client's side (see deadEnds).
func (e *entry) isDeadEnd() bool {
	return e.protocol == nft.TCP && e.replyFrom.Port() == deadEndPort
}

// deadEnds appends two messages that create dead ends for a connection after its entry was deleted: one entry for each direction, which
// leads to an address of the box where nothing listens. The next packet of either side is thus answered by a reset. A message fails if such
// a packet arrived first, or if another entry has the same addresses and ports.
func (w *writer) deadEnds(e *entry, box netip.Addr, sequence uint32) {
	client, endpoint := e.directions()
	w.deadEnd(e, client[0], client[1], box, ports{deadEndPort, deadEndPort}, sequence)
	// Many connections may come from one port of an endpoint: each needs a port of
	// the box for itself. The kernel takes the client's if it can.
	w.deadEnd(e, endpoint[0], endpoint[1], box, ports{1, 65535}, sequence+1)
}

type ports struct{ first, last uint16 }

func (w *writer) deadEnd(e *entry, from, to netip.AddrPort, box netip.Addr, at ports, sequence uint32) {
	w.begin(messageNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL, sequence, familyNumber(e.family))
	w.tuple(ctaTupleOrig, e.protocol, from, to)
	w.tuple(ctaTupleReply, e.protocol, to, from)
	w.nest(ctaNATDst, func() {
		w.addr(ctaNATIPv4Min, ctaNATIPv6Min, box)
		w.addr(ctaNATIPv4Max, ctaNATIPv6Max, box)
		w.nest(ctaNATProto, func() {
			w.Uint16(ctaNATPortMin, at.first)
			w.Uint16(ctaNATPortMax, at.last)
		})
	})
	// Only confirmed, as every entry is: one without a reply is deleted by the first
	// reset, and makes room when the table is full.
	const liberal = 0x08 // IP_CT_TCP_FLAG_BE_LIBERAL: any sequence number will do
	w.Uint32(ctaStatus, statusConfirmed)
	w.nest(ctaProtoInfo, func() {
		w.nest(ctaProtoInfoTCP, func() {
			w.attribute(ctaTCPState, byte(tcpEstablished))
			w.attribute(ctaTCPFlagsOriginal, liberal, liberal)
			w.attribute(ctaTCPFlagsReply, liberal, liberal)
		})
	})
	life := uint32(deadEndLife / time.Second)
	if !e.fast { // of one in a flowtable the kernel does not report it
		life = min(life, e.timeout)
	}
	w.Uint32(ctaTimeout, life)
	if e.zone != nil {
		w.attribute(ctaZone, e.zone...)
	}
	w.End()
}

// Idle ends connections on the endpoint's side after their idle timeout expired in the kernel. On the client's side the ruleset resets the
// next packet (see nft/affinity.go). Packets of the endpoint would be sent untranslated, so Idle adds a dead end, as for drained
// connections: the box answers them with a reset. It is notified of expired connections by ctnetlink's DESTROY events, which it reads only
// while a frontend has an idle timeout. The kernel may expire entries up to a minute late. Until then, or if the event was lost, a packet
// of the endpoint is answered with a reset by the client, or not at all.
type Idle struct {
	options Options
	wake    chan struct{} // capacity 1: the first idle timeout was set or the last one removed

	mu        sync.Mutex
	asked     expirySet
	local     []netip.Addr
	resetters map[nft.Family]netip.Addr
}

const (
	// idleBuffer is the size of the receive buffer in bytes, with room for some 8,000 events.
	idleBuffer = 4 << 20
	// idleRetry is the delay before a failed subscription or scan is repeated.
	idleRetry = 5 * time.Second
)

// NewIdle returns an Idle without frontends.
func NewIdle(options Options) *Idle {
	options.Log = cmp.Or(options.Log, slog.Default())
	return &Idle{options: options, wake: make(chan struct{}, 1), asked: newExpirySet()}
}

// Update records the box, unless it is nil, and the ports of the Services that changed; a Service without ports was removed.
func (x *Idle) Update(box *nft.Box, changes map[string][]nft.ServicePort) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if box != nil {
		x.local, x.resetters = box.LocalAddresses, resettersOf(box.LocalAddresses)
	}
	if x.asked.update(box, changes, func(_ string, p *nft.ServicePort) time.Duration { return p.Idle }) {
		task.Wake(x.wake)
	}
}

func (x *Idle) wanted() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.asked.any()
}

// Run adds dead ends until ctx is done. It retries after failures.
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

// listen adds dead ends for expired connections until ctx is done, or until no frontend has an idle timeout.
func (x *Idle) listen(ctx context.Context) error {
	heard, err := nfnetlink.OpenStream(nfnetlink.Options{NetNS: x.options.NetNS}, nil, idleBuffer, groupDestroy)
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
		closed <- heard.Close() // ends Next
	}()
	for {
		datagram, err := heard.Next()
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
		if err := x.expire(datagram, changer); err != nil {
			end()
			return errors.Join(err, <-closed)
		}
	}
}

// expire adds a dead end on the endpoint's side of each connection with an idle timeout that expired while it was open.
func (x *Idle) expire(datagram []byte, changer *socket) error {
	var c change
	c.begin(changer.Sequence(0))
	for m := range nfnetlink.Messages(datagram) {
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
	_, err := c.send(changer)
	return err
}

// concerns reports whether an entry belongs to a frontend with an idle timeout and needs a dead end. box is the address of the box to use
// for it. No dead end is needed if the box itself is the endpoint, or the client that the endpoint sees, because the box then resets the
// connection anyway.
func (x *Idle) concerns(e *entry) (box netip.Addr, ours bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.asked.of(e) == 0 || slices.Contains(x.local, e.replyTo.Addr()) || slices.Contains(x.local, e.replyFrom.Addr()) {
		return box, false
	}
	box = x.resetters[e.family]
	return box, box.IsValid()
}

// Drain is the policy for connections to a removed endpoint. The zero value follows Kubernetes: TCP connections continue, all others are
// deleted at once.
type Drain struct {
	On bool
	// Timeout is the longest time that a connection may live after its endpoint was removed.
	Timeout time.Duration
}
