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

// Retry gives clients another endpoint when theirs is silent. The kernel sends all that a client
// repeats of its SYN to the endpoint that the first one went to. Retry forgets such a connection
// when nothing came back within the time that its Service sets; the next SYN is a first packet then.
//
// The age of an entry is not in the table, as each SYN restarts its timeout. So Retry
// remembers when it saw an entry first: by then it had been there for up to one pause between
// looks. It looks while there is a frontend that asks for it, and not otherwise.
//
// An answer that comes between the look and the deletion is lost: its connection is balanced again
// too, and breaks. So the time is to be longer than any endpoint takes for its answer.
type Retry struct {
	log   *slog.Logger
	table table
	wake  chan struct{} // holds one

	mu      sync.Mutex
	asked   expirySet
	retried uint64

	task.LastError // keeps connections from being forgotten

	// Of Run alone: when the entries that were there at the last look were seen first, and of the
	// look that is under way.
	seen, seeing map[attempt]time.Time
}

// attempt is an entry. The kernel may give a later connection of the same client the same id.
type attempt struct {
	id       uint32
	endpoint netip.AddrPort
}

const (
	// mostAttempts bounds the remembered entries, some 5 MB. Others wait until there is room.
	mostAttempts = 1 << 16
	// longestPause bounds the pause between two looks.
	longestPause = 2 * time.Second
)

// NewRetry returns a Retry without frontends.
func NewRetry(options Options) *Retry {
	options.Log = cmp.Or(options.Log, slog.Default())
	return newRetry(&kernelTable{netns: options.NetNS}, options.Log)
}

func newRetry(table table, log *slog.Logger) *Retry {
	return &Retry{log: log, table: table, wake: make(chan struct{}, 1), asked: newExpirySet()}
}

// Retrying is the time after which connections to some ports are balanced again; 0: never.
type Retrying struct {
	After time.Duration
	Ports []nft.ServicePort
}

// Update takes the box, if it changed, and the Services that changed.
func (r *Retry) Update(box *nft.Box, changes map[string]Retrying) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if box != nil {
		r.asked.nodePorts = addressSet(box.NodePortAddresses)
	}
	before := r.asked.any()
	for name := range changes {
		r.asked.drop(name)
	}
	for name, c := range changes {
		for i := range c.Ports {
			r.asked.add(name, &c.Ports[i], c.After)
		}
	}
	if r.asked.any() != before {
		task.Wake(r.wake)
	}
}

// Retried counts the connections that were forgotten.
func (r *Retry) Retried() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.retried
}

// Run works until ctx is done. What fails is tried again. After a look it rests, so that looks
// through a large table keep no more than a twentieth of a CPU busy.
func (r *Retry) Run(ctx context.Context) error {
	task.Repeat(ctx, r.wake, func() (next time.Time) {
		queries, pause := r.queries()
		if len(queries) == 0 {
			r.seen = nil
			if err := r.table.close(); err != nil {
				r.log.Debug("close the connection tracking table", "err", err)
			}
			return next
		}
		start := time.Now()
		if err := r.scan(ctx, queries); err != nil {
			pause = idleRetry
		}
		return time.Now().Add(max(pause, RestFor*time.Since(start)))
	})
	return r.table.close()
}

// queries cover the frontends, and pause is how long to wait after them.
func (r *Retry) queries() (queries []query, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	shortest := longestPause
	for _, after := range r.asked.times {
		shortest = min(shortest, after/2)
	}
	return queriesOf(r.asked.times, true), shortest
}

// scan deletes the entries that are due.
func (r *Retry) scan(ctx context.Context, queries []query) (err error) {
	r.seeing = make(map[attempt]time.Time, len(r.seen))
	total, err := r.table.deleteMatching(ctx, queries, r.selectRetries)
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		r.seen = r.seeing
	}
	r.mu.Lock()
	r.retried += uint64(total.forgotten)
	r.mu.Unlock()
	switch fails, again := r.SetErr(err); {
	case fails:
		r.log.Warn("clients stay with endpoints that do not answer; it is tried again", "err", err, "retry", idleRetry)
	case again:
		r.log.Info("clients of endpoints that do not answer get another one again")
	}
	return err
}

func (r *Retry) selectRetries(entries []entry, verdicts []verdict) ([]verdict, map[nft.Family]netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for i := range entries {
		verdicts = append(verdicts, r.judge(&entries[i], now))
	}
	return verdicts, nil
}

// judge returns the verdict about an entry.
func (r *Retry) judge(e *entry, now time.Time) verdict {
	if e.protocol != nft.TCP || e.state != tcpSynSent || e.answered || e.replyFrom == e.to || e.isDeadEnd() {
		return leave
	}
	after := r.asked.of(e)
	if after == 0 {
		return leave
	}
	key := attempt{binary.BigEndian.Uint32(e.id), e.replyFrom}
	since, known := r.seen[key]
	if !known {
		since = now
	}
	switch {
	case now.Sub(since) >= after:
		return forget
	case len(r.seeing) < mostAttempts:
		r.seeing[key] = since
	}
	return leave
}

// ListenFailed is Listen for DESTROY events of TCP connections that the endpoint did not answer. The kernel drops all
// others at the socket: a connection that was answered wakes nobody up. Events of kernels before 5.8 have no protocol
// state, and do not come.
func ListenFailed(netns int) (*Events, error) {
	return listen(netns, unanswered, failedBuffer)
}

// failedBuffer has room for some 800 messages. What does not fit is lost: each endpoint needs one.
const failedBuffer = 1 << 20

// unanswered is a program (bpf(7), classic) that passes messages about entries with protocol state, which UDP has none
// of, with the status bit DST_NAT and without SEEN_REPLY.
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

// Pause stops the events, and with on false begins them again. For connections that begin during a pause the kernel
// prepares no message.
func (v *Events) Pause(on bool) error {
	if on {
		return v.stream.Leave(groupDestroy)
	}
	return v.stream.Join(groupDestroy)
}

// Failure is how a connection to an endpoint failed.
type Failure uint8

// The failures.
const (
	NoFailure Failure = iota
	// Refused: the first packet after the client's SYN was a reset. Whether the endpoint or the client sent it the
	// entry does not have (nf_conntrack_proto_tcp.c deletes it either way).
	Refused
	// Silent: no answer until the kernel forgot the SYN (net.netfilter.nf_conntrack_tcp_timeout_syn_sent).
	Silent
)

// Failure classifies a connection that ended. An entry that was deleted has time left, and is no failure.
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

// Attempts looks for TCP connections that wait for the first answer of their endpoint.
type Attempts struct {
	table *kernelTable
	seen  map[attempt]time.Time // when those of the last look were seen first
}

// NewAttempts opens nothing yet.
func NewAttempts(options Options) *Attempts {
	return &Attempts{table: &kernelTable{netns: options.NetNS}}
}

// Look hands each unanswered connection to each, with the time since the look that found it first, and deletes the
// entry if that returns true, so that the client's next SYN begins a new connection. entries is the size of the
// table, found the number of unanswered connections.
func (a *Attempts) Look(now time.Time, each func(c *Connection, waited time.Duration) (forget bool)) (entries uint32, found int, err error) {
	if err := a.table.open(); err != nil {
		return 0, 0, explain(err)
	}
	seeing := map[attempt]time.Time{}
	if entries, err = a.table.reader.count(); err != nil {
		return 0, 0, errors.Join(explain(err), a.table.close())
	}
	if entries == 0 {
		a.seen = seeing
		return 0, 0, nil
	}
	var c Connection
	unanswered := []query{{family: nft.IPv4, protocol: nft.TCP, unanswered: true}, {family: nft.IPv6, protocol: nft.TCP, unanswered: true}}
	_, err = a.table.deleteMatching(context.Background(), unanswered, func(list []entry, verdicts []verdict) ([]verdict, map[nft.Family]netip.Addr) {
		for i := range list {
			e := &list[i]
			verdicts = append(verdicts, leave)
			if e.state != tcpSynSent || !e.isThrough() {
				continue
			}
			found++
			key := attempt{binary.BigEndian.Uint32(e.id), e.replyFrom}
			since, known := a.seen[key]
			if !known {
				since = now
			}
			if e.describe(&c); each(&c, now.Sub(since)) {
				verdicts[len(verdicts)-1] = forget
			} else if len(seeing) < mostAttempts {
				seeing[key] = since
			}
		}
		return verdicts, nil
	})
	if err != nil {
		return entries, found, err
	}
	a.seen = seeing
	return entries, found, nil
}

// Close forgets what was seen, and closes the table until the next look.
func (a *Attempts) Close() error {
	a.seen = nil
	return a.table.close()
}

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

// deadEndPort is the port of the box in entries that are dead ends: the one port that no socket can
// have, so no connection has it.
const deadEndPort = 0

// deadEndLife is the timeout of a dead end: longer than the two hours after which the endpoint
// sends keep-alives (RFC 9293, section 3.8.4).
const deadEndLife = 2*time.Hour + 15*time.Minute

// resettersOf chooses among the addresses of the box the one of each family that dead ends lead to.
func resettersOf(local []netip.Addr) map[nft.Family]netip.Addr {
	chosen := map[nft.Family]netip.Addr{}
	for _, addr := range local {
		if f := nft.FamilyOf(addr); !chosen[f].IsValid() && addr.IsGlobalUnicast() {
			chosen[f] = addr
		}
	}
	return chosen
}

// isDeadEnd reports whether the entry is the client's half of a dead end.
func (e *entry) isDeadEnd() bool {
	return e.protocol == nft.TCP && e.replyFrom.Port() == deadEndPort
}

// deadEnds writes the two messages that add entries for a connection whose entry was deleted: one for each direction, to an
// address of the box where nothing listens, so that the next packet of either side is answered with a reset. Either message fails
// when such a packet came first, or when another entry has the same addresses and ports.
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

// Idle resets the endpoints of connections that the kernel forgot for their silence. The ruleset
// resets the client that speaks next by itself (see nft/affinity.go). What the endpoint sends would go
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
