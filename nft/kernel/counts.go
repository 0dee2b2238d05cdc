package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// counterName is the name of nf_tables' counter expression.
const counterName = "counter"

// maxEchoes bounds the deleted elements of one transaction for which the kernel is asked to return the last counts: it answers before sendmsg
// returns, and an answer takes some 1.3 KB of the receive buffer.
const maxEchoes = 1000

const (
	// countAttempts bounds the attempts to read counts. An attempt fails if a transaction of this Conn overlaps it.
	countAttempts = 5
	// countPause is the wait before the next attempt: longer than most transactions take.
	countPause = 20 * time.Millisecond
)

// counting holds the totals of a Conn, and a separate socket to read the counters, so that no transaction waits for a reading.
type counting struct {
	tally  nft.Tally
	mu     sync.Mutex // serializes readings
	socket *socket    // nil until it is used
	closed bool
}

// Counts reads what the kernel has counted since the Conn read our tables for the first time, or, if it
// never did, since the first call. Totals never decrease, except for a frontend that is removed
// and added again. If transactions of this Conn overlap every attempt to read, Counts returns the totals of
// the previous reading.
func (c *Conn) Counts() (nft.Totals, error) { return c.counts(readCounts) }

// Tally returns the Tally from which Counts takes its totals, for example to save and restore them across restarts.
func (c *Conn) Tally() *nft.Tally { return &c.counting.tally }

// Refusals returns the number of refused packets by the name of the counter; see Counts. It reads only the named counters, which takes some
// microseconds.
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

// close closes the socket for readings.
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

// readCounts reads all counters that are not 0. ErrChanging means that some may be missing.
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

// appendCount appends the count of an element, unless it is 0 or the element is not one of ours.
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
		err := dumpObjects(s, f, unix.NFT_OBJECT_COUNTER, func(name string, data []byte) {
			counts = append(counts, nft.Count{Family: f, Key: name, Packets: packetsOf(data)})
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

// packetsOf returns the number of packets in the attributes of a counter.
func packetsOf(b []byte) uint64 {
	return nfnetlink.Number(nfnetlink.Attribute(b, unix.NFTA_COUNTER_PACKETS))
}

// isCounter reports whether an expression is a counter. It allocates nothing: a dump has one for each element.
func isCounter(b []byte) bool {
	return string(bytes.TrimRight(nfnetlink.Attribute(b, unix.NFTA_EXPR_NAME), "\x00")) == counterName
}

// expressionPackets returns the packets of a counter expression.
func expressionPackets(b []byte) uint64 {
	if !isCounter(b) {
		return 0
	}
	return packetsOf(nfnetlink.Attribute(b, unix.NFTA_EXPR_DATA))
}

// countsBefore prepares for a batch that deletes counters. echo is set if the kernel shall return the
// counts of elements as it deletes them. If the batch deletes named counters, whole sets or more than
// maxEchoes elements, last has their counts, read before the transaction: packets between the reading
// and the transaction are not counted.
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

// echoed appends the counts of deleted elements that the kernel echoes.
func echoed(m *message, counts []nft.Count) []nft.Count {
	f := nft.IPv4
	if m.Family() == protocols[nft.IPv6].family {
		f = nft.IPv6
	}
	name := nfnetlink.Text(m.Attribute(unix.NFTA_SET_ELEM_LIST_SET))
	for _, set := range nft.CountedSets() {
		if set.Name == name {
			d := decoderOf(&set, f)
			d.counted = true
			d.elements(m, func(e element) { counts = appendCount(counts, f, &set, e) })
		}
	}
	return counts
}

// byKeyFrom is the number of elements from which asking for each by its key is faster than a dump.
// For each message of a dump the kernel walks the table from its start, so the time of a dump grows
// with the square of the number: for 256,000 elements a dump takes 3 s, and asking by key 1 s.
//
// It is a variable so that tests can change it.
var byKeyFrom = 65536

// keysOfMessage is the maximum number of keys in one request. It is bounded because the receive buffer must hold all answers at once.
const keysOfMessage = 256

// readSlots reads a large map of slots by requesting the keys that it should have. complete reports whether these were all elements of the map; count
// is their number as reported by the kernel.
func readSlots(s *socket, f nft.Family, t *nft.Table, set *nft.SetContent, count int) (complete bool, err error) {
	a := asking{socket: s, family: f, set: &set.Set, decoder: decoderOf(&set.Set, f), found: set.Elements}
	runs := t.SlotRuns(f, set.Name)
	for i := range runs {
		for slot := range runs[i].Slots {
			if err := a.want(runs[i].Key(slot), i); err != nil {
				return false, err
			}
		}
	}
	if err := a.flush(); err != nil {
		return false, err
	}
	holes := a.missing
	a.missing = nil
	for i := range runs {
		if !holes[i] {
			continue
		}
		for slot := range runs[i].Spare {
			if err := a.want(runs[i].Key(runs[i].Slots+slot), i); err != nil {
				return false, err
			}
		}
	}
	if err := a.flush(); err != nil {
		return false, err
	}
	return !a.foreign && len(set.Elements) == count, nil
}

// asking collects keys and requests their elements in messages of up to keysOfMessage.
type asking struct {
	*socket
	family  nft.Family
	set     *nft.Set
	decoder elementDecoder
	found   nft.Elements
	foreign bool         // an element was found that this product could not have made
	missing map[int]bool // indexes of the runs (consecutive slots of a frontend) in which an element does not exist

	keys []string
	runs []int // for each key, the index of its run
}

// want collects the key of a slot in the run with index run. If the collected keys fill a message, it requests them.
func (a *asking) want(key string, run int) error {
	a.keys, a.runs = append(a.keys, key), append(a.runs, run)
	if len(a.keys) < keysOfMessage {
		return nil
	}
	return a.flush()
}

// flush requests the collected keys. The kernel answers in their order, and ends at the first one without an element: the keys after it are
// requested again.
func (a *asking) flush() error {
	for next := 0; next < len(a.keys); {
		answered, err := a.ask(a.keys[next:])
		next += answered
		switch {
		case errors.Is(err, unix.ENOENT) && next < len(a.keys):
			if a.missing == nil {
				a.missing = map[int]bool{}
			}
			a.missing[a.runs[next]] = true
			next++
		case err != nil:
			return err
		case answered == 0:
			return ErrChanging // neither an answer nor an error
		}
	}
	a.keys, a.runs = a.keys[:0], a.runs[:0]
	return nil
}

// ask sends one request. answered is the number of keys with an answer.
func (a *asking) ask(keys []string) (answered int, err error) {
	err = a.request(unix.NFT_MSG_GETSETELEM, 0, protocols[a.family].family,
		func(w *writer) {
			w.Text(unix.NFTA_SET_ELEM_LIST_TABLE, nft.TableName)
			w.Text(unix.NFTA_SET_ELEM_LIST_SET, a.set.Name)
			list := w.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
			for _, key := range keys {
				element := w.Nest(unix.NFTA_LIST_ELEM)
				value := w.Nest(unix.NFTA_SET_ELEM_KEY)
				w.Raw(unix.NFTA_DATA_VALUE, key)
				w.EndNest(value)
				w.EndNest(element)
			}
			w.EndNest(list)
		},
		func(m message) {
			a.decoder.elements(&m, func(e element) {
				a.foreign = a.foreign || !e.ours
				a.found[e.key] = e.data
				answered++
			})
		})
	return answered, err
}
