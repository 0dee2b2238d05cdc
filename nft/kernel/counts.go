package kernel

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// counterName is the name of nf_tables' expression that counts.
const counterName = "counter"

// maxEchoes bounds the deleted elements of one transaction whose last counts the kernel is asked for:
// it answers before sendmsg returns, and an answer takes some 1.3 KB of the receive buffer.
const maxEchoes = 1000

const (
	// countAttempts bounds how often counts are read again because a transaction of ours fell in.
	countAttempts = 5
	// countPause is the wait before the next attempt: longer than most transactions take.
	countPause = 20 * time.Millisecond
)

// counting holds the totals of a Conn and the socket that reads them. Readings have a socket of their own: no transaction waits for
// one.
type counting struct {
	tally  nft.Tally
	mu     sync.Mutex // one reads at a time
	socket *socket    // nil until it is used
	closed bool
}

// Counts reads what the kernel has counted since the Conn read our tables for the first time, or, if it
// never did, since the first call. No total ever goes back, but for a frontend that goes and comes
// again. A reading that transactions of this Conn fall into again and again returns the result of the one
// before it.
func (c *Conn) Counts() (nft.Totals, error) { return c.counts(readCounts) }

// Tally has the totals.
func (c *Conn) Tally() *nft.Tally { return &c.counting.tally }

// Refusals are the packets that were refused, by the name of the counter; see Counts. It reads
// nothing but the named counters, which takes some microseconds.
func (c *Conn) Refusals() (map[string]uint64, error) {
	if !c.counting.tally.Started() { // or the other counts would start later
		totals, err := c.Counts()
		return totals.Refusals, err
	}
	totals, err := c.counts(readCounters)
	return totals.Refusals, err
}

func (c *Conn) counts(read func(*socket) ([]nft.Count, error)) (nft.Totals, error) {
	n := &c.counting
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nft.Totals{}, errClosed
	}
	for attempt := range countAttempts {
		if attempt > 0 {
			time.Sleep(countPause)
		}
		if n.socket == nil {
			s, err := dial(c.options.NetNS, 0)
			if err != nil {
				return nft.Totals{}, openError(err)
			}
			n.socket = s
		}
		before := n.tally.Before()
		counts, err := read(n.socket)
		if err != nil && !errors.Is(err, ErrChanging) { // a missing element keeps its last count
			n.socket.Close()
			n.socket = nil
			return nft.Totals{}, fmt.Errorf("read the counters of nf_tables: %w", err)
		}
		if err != nil && !n.tally.Started() {
			continue // a missing element would count as new
		}
		if n.tally.Read(counts, before) {
			break
		}
	}
	return n.tally.Totals(), nil
}

// close gives the socket back.
func (n *counting) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if n.socket == nil {
		return nil
	}
	err := n.socket.Close()
	n.socket = nil
	return err
}

// readCounts reads all that counted something. ErrChanging means that something may be missing.
func readCounts(s *socket) ([]nft.Count, error) {
	counts, changing := readCounters(s)
	if changing != nil && !errors.Is(changing, ErrChanging) {
		return nil, changing
	}
	for _, f := range nft.Families {
		for _, set := range nft.CountedSets() {
			d := decoderOf(&set, f)
			d.counted = true
			err := dumpElements(s, nft.TableName, f, d, func(e element) { counts = appendCount(counts, f, &set, e) })
			switch {
			case errors.Is(err, ErrChanging):
				changing = err
			case err != nil && !isErrno(err, unix.ENOENT): // a map that no chain needs
				return nil, fmt.Errorf("elements of %s: %w", set.Name, err)
			}
		}
	}
	return counts, changing
}

// appendCount appends what an element of ours has counted, if that is anything.
func appendCount(counts []nft.Count, f nft.Family, set *nft.Set, e element) []nft.Count {
	if !e.ours || e.packets == 0 {
		return counts
	}
	key := e.key
	if set.Interval {
		key += e.keyEnd
	}
	return append(counts, nft.Count{Family: f, Set: set.Name, Key: key, Verdict: e.data, Packets: e.packets})
}

// readCounters reads the named counters.
func readCounters(s *socket) (counts []nft.Count, changing error) {
	for _, f := range nft.Families {
		err := dumpCounters(s, f, func(name string, packets uint64) {
			counts = append(counts, nft.Count{Family: f, Key: name, Packets: packets})
		})
		switch {
		case errors.Is(err, ErrChanging):
			changing = err
		case err != nil:
			return nil, err
		}
	}
	return counts, changing
}

// dumpCounters hands every named counter of our table to each.
func dumpCounters(s *socket, f nft.Family, each func(name string, packets uint64)) error {
	return dumpObjects(s, f, unix.NFT_OBJECT_COUNTER, func(name string, data []byte) { each(name, packetsOf(data)) })
}

// packetsOf is the number of packets in the data of a counter.
func packetsOf(b []byte) (packets uint64) {
	for kind, value := range nfnetlink.Attributes(b) {
		if kind == unix.NFTA_COUNTER_PACKETS {
			packets = nfnetlink.Number(value)
		}
	}
	return packets
}

// expressionName is the name of an expression.
func expressionName(b []byte) (name string) {
	for kind, value := range nfnetlink.Attributes(b) {
		if kind == unix.NFTA_EXPR_NAME {
			name = nfnetlink.Text(value)
		}
	}
	return name
}

// expressionPackets returns the packets of a counter expression.
func expressionPackets(b []byte) (packets uint64) {
	if expressionName(b) != counterName {
		return 0
	}
	for kind, value := range nfnetlink.Attributes(b) {
		if kind == unix.NFTA_EXPR_DATA {
			packets = packetsOf(value)
		}
	}
	return packets
}

// countsBefore prepares for a batch that takes counts away. echo is set when the kernel is to echo the
// counts of elements as it deletes them. Where more elements go than it can echo, or sets as a whole,
// they are read first, and so are named counters that go: packets between that and the transaction
// are not counted.
func countsBefore(s *socket, b *nft.Batch) (echo bool, last []nft.Count, err error) {
	elements, whole, named := 0, false, false
	for _, op := range b.Ops {
		switch op := op.(type) {
		case nft.DeleteElements:
			if op.Set.Counted {
				elements += len(op.Elements)
			}
		case nft.DeleteCounter:
			named = true
		case nft.DeleteTable:
			whole = true
		case nft.DeleteSet:
			whole = whole || nft.IsCounted(op.Name)
		}
	}
	echo = elements > 0
	switch {
	case whole || elements > maxEchoes:
		echo = false
		last, err = readCounts(s)
	case named:
		last, err = readCounters(s)
	}
	if errors.Is(err, ErrChanging) {
		err = nil // a missing one was read by another program, or counts from zero again
	}
	return echo, last, err
}

// echoed appends the counts that the kernel echoes for deleted elements.
func echoed(m *message, counts []nft.Count) []nft.Count {
	f := nft.IPv4
	if m.Family() == unix.NFPROTO_IPV6 {
		f = nft.IPv6
	}
	var name string
	for kind, value := range m.Attributes() {
		if kind == unix.NFTA_SET_ELEM_LIST_SET {
			name = nfnetlink.Text(value)
		}
	}
	for _, set := range nft.CountedSets() {
		if set.Name == name {
			d := decoderOf(&set, f)
			d.counted = true
			d.elements(m, func(e element) { counts = appendCount(counts, f, &set, e) })
		}
	}
	return counts
}
