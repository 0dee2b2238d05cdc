package kernel

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// Change is one transaction of another program in this network namespace.
type Change struct {
	Generation uint32 // generation of the ruleset after the transaction
	PID        uint32 // ID of the thread that committed, in the initial PID namespace
	Comm       string // name of the thread, at most 15 bytes
	Ours       bool   // the transaction changed one of our tables
	// Lost means that some changes were not received: the reader must read the ruleset. The
	// other fields are zero.
	Lost bool
}

// watchBuffer is the size of a watch's receive buffer in bytes: enough for a transaction with some 100,000 elements.
const watchBuffer = 32 << 20

// Watch reports the transactions of other programs until ctx is done, which closes the channel. Commits of this Conn are left out. If the reader is
// too slow or a transaction is too large, it sends a Change with Lost.
func (c *Conn) Watch(ctx context.Context) (<-chan Change, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.ensureSocket(); err != nil {
		return nil, err
	}
	filter, err := ignorePort(c.port)
	if err != nil {
		return nil, fmt.Errorf("watch nf_tables: %w", err)
	}
	stream, err := nfnetlink.OpenStream(nfnetlink.Options{NetNS: c.options.NetNS}, filter, watchBuffer, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, openError(err)
	}
	w := &watch{stream: stream, changes: make(chan Change, changeBacklog)}
	w.ctx, w.end = context.WithCancel(ctx)
	c.watches[w] = struct{}{}
	go c.follow(w)
	return w.changes, nil
}

// changeBacklog is the number of changes that are queued for a slow reader. When the queue is full, changes to other tables than ours are dropped.
const changeBacklog = 1024

// watch is the state of one call of Watch.
type watch struct {
	stream      *nfnetlink.Stream
	changes     chan Change
	ctx         context.Context
	end         context.CancelFunc
	lossReports sync.WaitGroup // goroutines that send a Change with Lost
}

func (w *watch) send(change Change) bool {
	if !change.Ours && !change.Lost && len(w.changes) == cap(w.changes) {
		return true
	}
	select {
	case w.changes <- change:
		return true
	case <-w.ctx.Done():
		return false
	}
}

// muteNotifications makes the kernel send no notifications, one for each element, of a large transaction of this Conn. No reader needs them, and
// sending them takes the kernel as long as the transaction itself. restore turns notifications on again; committed is the error of the transaction.
func (c *Conn) muteNotifications(s *socket) (restore func(committed error)) {
	before, err := readGeneration(s)
	if err != nil || len(c.watches) == 0 {
		return func(error) {}
	}
	muted := true
	for w := range c.watches {
		muted = w.stream.Leave(unix.NFNLGRP_NFTABLES) == nil && muted
	}
	return func(committed error) {
		want := before
		if committed == nil {
			want = nextGeneration(before)
		}
		for w := range c.watches {
			if w.stream.Join(unix.NFNLGRP_NFTABLES) != nil {
				_ = w.stream.Close() // its end is reported as a loss
			}
		}
		// No other program may have committed in between.
		if after, err := readGeneration(s); muted && (err != nil || after != want) {
			for w := range c.watches {
				w.lossReports.Go(func() { w.send(Change{Lost: true}) })
			}
		}
	}
}

// ignorePort returns a filter that drops the notifications, one for each element, of commits from a netlink port. All messages of a datagram belong
// to the same transaction, so the filter checks only the port in the first one. A filter loads numbers in network byte order, but a netlink header
// is in host byte order.
func ignorePort(port uint32) ([]bpf.RawInstruction, error) {
	const portOffset = 12 // of nlmsg_pid in struct nlmsghdr
	loaded := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port))
	return bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: portOffset, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: loaded, SkipFalse: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: math.MaxUint32},
	})
}

// follow reads the notifications of a watch until the watch ends.
func (c *Conn) follow(w *watch) {
	defer c.unwatch(w)
	stop := context.AfterFunc(w.ctx, func() { _ = w.stream.Close() }) // ends the reading
	defer stop()
	var next Change // of the transaction whose notifications are being read
	for {
		datagram, err := w.stream.Next()
		switch {
		case w.ctx.Err() != nil:
			return
		case err != nil:
			// An overrun (ENOBUFS), or nothing that a reader can do anything about.
			if !w.send(Change{Lost: true}) || !errors.Is(err, unix.ENOBUFS) {
				return
			}
			next = Change{}
			continue
		}
		for m := range nfnetlink.Messages(datagram) {
			change, done := next.merge(m)
			next = change
			if !done {
				continue
			}
			if !c.foreignTx.isOwnPort(m.Port) {
				c.foreignTx.record(next)
				if !w.send(next) {
					return
				}
			}
			next = Change{}
		}
	}
}

// unwatch ends a watch and closes its channel.
func (c *Conn) unwatch(w *watch) {
	c.mu.Lock()
	delete(c.watches, w)
	c.mu.Unlock()
	w.end()
	_ = w.stream.Close()
	w.lossReports.Wait()
	close(w.changes)
}

// merge adds one notification to the Change of its transaction; done means that it was the last one.
func (c Change) merge(m message) (change Change, done bool) {
	if m.Kind>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return c, false
	}
	if m.Kind != nftMessage(unix.NFT_MSG_NEWGEN) {
		c.Ours = c.Ours || isOurs(&m)
		return c, false
	}
	for kind, value := range m.Attributes() {
		switch kind {
		case unix.NFTA_GEN_ID:
			c.Generation = uint32(nfnetlink.Number(value))
		case unix.NFTA_GEN_PROC_PID:
			c.PID = uint32(nfnetlink.Number(value))
		case unix.NFTA_GEN_PROC_NAME:
			c.Comm = nfnetlink.Text(value)
		}
	}
	return c, true
}

// isOurs reports whether a notification is about our table of either family. Every kind
// of message has the table's name as its first attribute.
func isOurs(m *message) bool {
	if f := m.Family(); f != unix.NFPROTO_IPV4 && f != unix.NFPROTO_IPV6 {
		return false
	}
	return nfnetlink.Text(m.Attribute(unix.NFTA_TABLE_NAME)) == nft.TableName
}

// BaseChain is a base chain of any table, ours or foreign.
type BaseChain struct {
	Family, Table, Name string
	Type                string // "nat", "filter" or "route"
	Hook                string // such as "prerouting"
	Priority            int
	Drops               bool // its policy is drop
}

// String formats the chain in nft syntax: "table ip nat, chain PREROUTING (nat hook prerouting priority -100)".
func (c BaseChain) String() string {
	return fmt.Sprintf("table %s %s, chain %s (%s hook %s priority %d)", c.Family, c.Table, c.Name, c.Type, c.Hook, c.Priority)
}

// Ours reports whether the chain is in a table of this product.
func (c BaseChain) Ours() bool { return c.Table == nft.TableName || c.Table == SentinelName }

// The names of the families whose base chains see IP packets, and of their hooks.
var (
	ipFamilies = map[uint8]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}
	ipHooks    = []string{"prerouting", "input", "forward", "output", "postrouting"}
)

// BaseChains lists the base chains of all tables of the families ip, ip6 and inet.
func (c *Conn) BaseChains() ([]BaseChain, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := c.ensureSocket()
	if err != nil {
		return nil, err
	}
	var chains []BaseChain
	err = s.dump(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC, nil, func(m message) {
		c, family := decodeChain(&m), ipFamilies[m.Family()]
		if c.base && family != "" && c.hook < uint64(len(ipHooks)) {
			chains = append(chains, BaseChain{Family: family, Table: c.table, Name: c.name, Type: c.kind, Hook: ipHooks[c.hook], Priority: c.priority, Drops: c.policy == nfDrop})
		}
	})
	if err != nil {
		c.closeSocket()
		return nil, fmt.Errorf("list the base chains: %w", err)
	}
	slices.SortFunc(chains, func(a, b BaseChain) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Table, b.Table), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Name, b.Name))
	})
	return chains, nil
}

// SentinelHeld reports whether a process, possibly this one, owns the sentinel tables.
func (c *Conn) SentinelHeld() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := c.ensureSocket()
	if err != nil {
		return false, err
	}
	flags, exists, err := tableFlags(s, SentinelName, nft.IPv4)
	return exists && flags&tableOwner != 0, err
}

// foreignTxLog records the transactions of other programs, as a Watch saw them.
type foreignTxLog struct {
	mu      sync.Mutex
	own     map[uint32]bool // netlink ports from which this Conn commits
	seen    map[uint32]bool // for each generation, whether the transaction changed our tables
	updated chan struct{}   // closed when an entry is added to seen
}

const (
	// maxForeignTx bounds the recorded transactions. After more of them the ruleset must be read again, which takes less time than the transactions
	// did.
	maxForeignTx = 4096
	// notifyGrace bounds the wait for a notification that was not yet received. The kernel queues it before the new generation can be read, but the
	// goroutine that reads it may be late.
	notifyGrace = 50 * time.Millisecond
)

func newForeignTxLog() *foreignTxLog {
	return &foreignTxLog{own: map[uint32]bool{}, seen: map[uint32]bool{}, updated: make(chan struct{})}
}

// addOwnPort records a netlink port as one of ours.
func (l *foreignTxLog) addOwnPort(port uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.own[port] = true
}

// isOwnPort reports whether a netlink port is one that this Conn commits through.
func (l *foreignTxLog) isOwnPort(port uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.own[port]
}

// record adds a foreign transaction to the log.
func (l *foreignTxLog) record(c Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.seen) >= maxForeignTx {
		clear(l.seen)
	}
	l.seen[c.Generation] = c.Ours
	close(l.updated)
	l.updated = make(chan struct{})
}

// ownTablesUntouched reports whether all transactions after generation from, up to generation to, are recorded and did not change our tables.
func (l *foreignTxLog) ownTablesUntouched(from, to uint32) bool {
	if to-from > maxForeignTx {
		return false
	}
	timer := time.NewTimer(notifyGrace)
	defer timer.Stop()
	for {
		known, touched, updated := l.lookup(from, to)
		if known || touched {
			return !touched
		}
		select {
		case <-updated:
		case <-timer.C:
			return false
		}
	}
}

// lookup reports whether all transactions after generation from, up to generation to, are recorded, and whether one of them changed our tables.
// updated is closed when a further transaction is recorded.
func (l *foreignTxLog) lookup(from, to uint32) (known, touched bool, updated <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known = true
	for generation := from; generation != to; {
		generation = nextGeneration(generation)
		ours, seen := l.seen[generation]
		known, touched = known && seen, touched || ours
	}
	return known, touched, l.updated
}

// SentinelName is the name of the sentinel table in both families.
const SentinelName = "svcctl-sentinel"

// HoldSentinel creates a small table in each family that keeps established connections working while our table is missing, for example after another
// program flushed the ruleset. Without any NAT chain the kernel would unregister its NAT hooks, and packets would reach their peers untranslated and
// be reset.
//
// The tables belong to this Conn (flag owner, kernel 5.12): no other program can change or flush them, and the kernel deletes them when the Conn is
// closed. Older kernels get plain tables, which a flush deletes. Another call creates missing tables. ErrPermission means that another live process
// owns them.
func (c *Conn) HoldSentinel() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClosed
	}
	if c.sentinel != nil {
		if n, err := countSentinels(c.sentinel); n == len(nft.Families) || err != nil {
			return err
		}
	} else {
		s, err := dial(c.options.NetNS, 0)
		if err != nil {
			return openError(err)
		}
		c.sentinel = s
		c.foreignTx.addOwnPort(s.Port())
	}
	if err := makeSentinel(c.sentinel, c.features.Owner); err != nil {
		c.releaseSentinel()
		return fmt.Errorf("hold table %s (does another svcctl run here?): %w", SentinelName, err)
	}
	return nil
}

// DropSentinel removes the sentinel tables. They protect established connections, so it is meant
// to be the last step when the product's tables are removed for good.
func (c *Conn) DropSentinel() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseSentinel()
	s, err := c.ensureSocket()
	if err != nil {
		return err
	}
	if n, err := countSentinels(s); n == 0 || err != nil {
		return err
	}
	t := newTransaction(s, SentinelName, 0)
	for _, f := range nft.Families {
		t.deleteTable(f)
	}
	if err := t.commit(sentinelText); err != nil {
		return fmt.Errorf("delete table %s: %w", SentinelName, err)
	}
	return nil
}

func (c *Conn) releaseSentinel() {
	if c.sentinel != nil {
		c.sentinel.Close()
		c.sentinel = nil
	}
}

// countSentinels returns the number of families that have a sentinel table.
func countSentinels(s *socket) (n int, err error) {
	for _, f := range nft.Families {
		_, exists, err := tableFlags(s, SentinelName, f)
		if err != nil {
			return 0, err
		}
		if exists {
			n++
		}
	}
	return n, nil
}

// makeSentinel creates the sentinel tables. For IPv4 these are its commands:
//
//	add table ip svcctl-sentinel; delete table ip svcctl-sentinel
//	table ip svcctl-sentinel {
//		flags owner
//		chain hold {
//			type nat hook postrouting priority srcnat; policy accept;
//			ip daddr 127.0.0.1 ip daddr != 127.0.0.1 masquerade
//		}
//	}
//
// The rule never matches, but it is needed: without a rule that masquerades, the chain does not keep connections working.
func makeSentinel(s *socket, owner bool) error {
	var flags uint32
	if owner {
		flags = tableOwner
	}
	t := newTransaction(s, SentinelName, 0)
	for _, f := range nft.Families {
		localhost := protocols[f].loopback
		match := nft.MatchPrefix{Field: nft.Daddr, Prefix: netip.PrefixFrom(localhost, localhost.BitLen())}
		contrary := match
		contrary.Negate = true
		// A plain table of a former process cannot become an owned one.
		t.deleteTable(f)
		t.addTable(f, flags)
		t.addChain(f, nft.Chain{Name: "hold", Hook: nft.HookPostrouting, Priority: nft.PrioritySrcNAT})
		t.addRule(f, "hold", nft.Rule{match, contrary, nft.Masquerade{}})
	}
	return t.commit(sentinelText)
}

func sentinelText(int, int) string { return "table " + SentinelName }
