package kernel

import (
	"errors"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
)

// nextChange returns the next change that a watch reports; ok is false when none is reported in a minute.
func nextChange(t *testing.T, changes <-chan Change) (change Change, ok bool) {
	t.Helper()
	select {
	case change := <-changes:
		return change, true
	case <-time.After(time.Minute):
		return Change{}, false
	}
}

// addOne adds an element of backends.
func addOne(i int) *nft.Batch {
	return &nft.Batch{Ops: []nft.Op{nft.AddElements{Family: nft.IPv4, Set: backends, Elements: []nft.Element{slotElement(nft.IPv4, i)}}}}
}

// Where others change their own tables only, a transaction needs no new reading.
func TestCommitBehindOthers(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	commit(t, c, 0, nft.AddTable{Family: nft.IPv4}, nft.AddSet{Family: nft.IPv4, Set: backends})
	_, generation := read(t, c)
	n.nftScript("table ip other { chain x { }; }")
	if _, err := c.Commit(addOne(1), generation); !errors.Is(err, ErrStale) {
		t.Errorf("without a watch: %v, want ErrStale", err)
	}

	if _, err := c.Watch(t.Context()); err != nil { // its reader is busy all the time
		t.Fatal(err)
	}
	_, generation = read(t, c)
	for range 3 {
		n.nftScript("table ip other { chain y { }; }; delete chain ip other y")
	}
	after, err := c.Commit(addOne(2), generation)
	if _, now := read(t, c); err != nil || after != now || now != generation+4 {
		t.Errorf("behind three others: generation %d (%v), want %d", after, err, now)
	}
	n.nft("delete", "table", "ip", "other")
	n.nft("flush", "map", "ip", "svcctl", "backends")
	n.nftScript("table ip other { }")
	if _, err := c.Commit(addOne(3), after); !errors.Is(err, ErrStale) {
		t.Errorf("behind a change of ours: %v, want ErrStale", err)
	}
}

// While a large transaction is committed notifications are not read, and it is noticed all the same
// when another program was there too.
func TestLargeCommitIsQuiet(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	changes, err := c.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var elements []nft.Element
	for i := range 5_000 {
		elements = append(elements, slotElement(nft.IPv4, i))
	}
	commit(t, c, 0, nft.AddTable{Family: nft.IPv4}, nft.AddSet{Family: nft.IPv4, Set: backends},
		nft.AddElements{Family: nft.IPv4, Set: backends, Elements: elements})
	n.nftScript("table ip other { }")
	change, ok := nextChange(t, changes)
	if !ok || change.Lost || change.Ours || change.Comm != "nft" {
		t.Errorf("after a large transaction a foreign one gives %+v", change)
	}

	c.mu.Lock()
	restore := c.muteNotifications(c.socket)
	n.nft("delete", "table", "ip", "other")
	restore(nil)
	c.mu.Unlock()
	select {
	case change := <-changes:
		t.Errorf("a transaction that was ours, or not: %+v", change)
	case <-time.After(2 * time.Second): // real time: nothing is reported meanwhile
	}
	c.mu.Lock()
	restore = c.muteNotifications(c.socket)
	n.nftScript("table ip other { }")
	n.nftScript("delete table ip other")
	restore(nil)
	c.mu.Unlock()
	if change, ok := nextChange(t, changes); !ok || !change.Lost {
		t.Errorf("one transaction too many gives %+v, want that something was lost", change)
	}
}

func TestWitness(t *testing.T) {
	w := newForeignTxLog()
	for _, c := range []Change{{Generation: 11}, {Generation: 12}, {Generation: 14, Ours: true}, {Generation: 16}, {Generation: 1}} {
		w.record(c)
	}
	for _, test := range []struct {
		from, to uint32
		want     bool
	}{
		{10, 10, true}, {10, 11, true}, {10, 12, true}, {11, 12, true},
		{10, 13, false}, {12, 14, false}, {13, 14, false}, {15, 16, true}, {14, 16, false},
		{^uint32(0), 1, true}, {12, 10, false}, {0, maxForeignTx + 1, false},
	} {
		if got := w.ownTablesUntouched(test.from, test.to); got != test.want {
			t.Errorf("behind %d up to %d: %t, want %t", test.from, test.to, got, test.want)
		}
	}
	go w.record(Change{Generation: 17})
	if !w.ownTablesUntouched(16, 17) {
		t.Error("what is under way is not waited for")
	}
	for i := range uint32(2 * maxForeignTx) {
		w.record(Change{Generation: 100 + i})
	}
	if len(w.seen) > maxForeignTx {
		t.Errorf("%d transactions are remembered", len(w.seen))
	}
}
