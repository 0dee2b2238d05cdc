package kernel

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// BaseChain is a base chain of any table, ours or foreign.
type BaseChain struct {
	Family, Table, Name string
	Type                string // "nat", "filter" or "route"
	Hook                string // "prerouting"
	Priority            int
	Drops               bool // what no rule decides about is dropped
}

// String is the chain in nft syntax, as in "table ip nat, chain PREROUTING (nat hook
// prerouting priority -100)".
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
		if chain, ok := decodeBaseChain(&m); ok {
			chains = append(chains, chain)
		}
	})
	if err != nil {
		c.closeSocket()
		return nil, fmt.Errorf("list the base chains: %w", err)
	}
	slices.SortFunc(chains, func(a, b BaseChain) int {
		if a.Priority != b.Priority {
			return a.Priority - b.Priority
		}
		return slices.Compare([]string{a.Table, a.Family, a.Name}, []string{b.Table, b.Family, b.Name})
	})
	return chains, nil
}

func decodeBaseChain(m *message) (c BaseChain, ok bool) {
	c.Family = ipFamilies[m.Family()]
	for kind, value := range m.Attributes() {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			c.Table = nfnetlink.Text(value)
		case unix.NFTA_CHAIN_NAME:
			c.Name = nfnetlink.Text(value)
		case unix.NFTA_CHAIN_TYPE:
			c.Type = nfnetlink.Text(value)
		case unix.NFTA_CHAIN_POLICY:
			c.Drops = nfnetlink.Number(value) == nfDrop
		case unix.NFTA_CHAIN_HOOK:
			for kind, value := range nfnetlink.Attributes(value) {
				switch kind {
				case unix.NFTA_HOOK_HOOKNUM:
					if n := nfnetlink.Number(value); n < uint64(len(ipHooks)) {
						c.Hook = ipHooks[n]
					}
				case unix.NFTA_HOOK_PRIORITY:
					c.Priority = int(int32(nfnetlink.Number(value)))
				}
			}
		}
	}
	return c, c.Family != "" && c.Hook != ""
}

// SentinelHeld reports whether a process holds the sentinel tables, this one included.
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
	own     map[uint32]bool // the ports of every socket that commits
	seen    map[uint32]bool // by generation: whether our tables were touched
	updated chan struct{}   // closed when seen has more
}

const (
	// maxForeignTx bounds the transactions that are remembered. About older ones the ruleset has to
	// be read, which is no more work than so many transactions were.
	maxForeignTx = 4096
	// notifyGrace bounds the wait for a notification that is under way. The kernel queues it before
	// the generation can be read; what takes time is its reader's turn.
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

// record notes a foreign transaction.
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

// ownTablesUntouched reports whether every transaction behind one generation, up to another, was
// seen and left our tables alone.
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

// lookup reports whether all transactions were seen, and whether one touched our tables.
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
