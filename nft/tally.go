package nft

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// A Count is one counter of the kernel: the packets of an element of a dispatch map, or, where Set is
// "", of the named counter Key.
type Count struct {
	Family   Family
	Set, Key string
	Verdict  string // of the element
	Packets  uint64
}

// A FrontendTotal holds the connections and refusals of one frontend since the start.
type FrontendTotal struct {
	Family   Family
	Protocol Protocol
	At       netip.AddrPort // the zero Addr for a node port
	Last     uint16         // not 0: the last port of a range that begins with that of At
	// Connections were sent on to the Service's endpoints. Refused are packets that were refused or
	// dropped for want of an endpoint: a client that tries again counts again.
	Connections, Refused uint64
}

// Totals hold everything counted since the start.
type Totals struct {
	Frontends []FrontendTotal   // of which anything was counted, in no order
	Refusals  map[string]uint64 // packets, by the name of the counter, of both families
	// Egress has the connections that left with an address of a Service, by their source.
	Egress map[netip.Addr]uint64
}

// Tally makes totals that never decrease from counts that do: an element is deleted and added again when its
// verdict changes, moves to another map when limits or policies change, loses its counter with a limit, or
// goes with a flushed table. It holds an entry for each element that has counted something. Its methods may
// be called concurrently; the zero value is ready to use.
type Tally struct {
	mu      sync.Mutex
	begun   bool
	changes uint64 // odd while a transaction is under way that takes counts away
	entries map[countID]*tallied
}

type countID struct {
	family   Family
	set, key string
}

// tallied is an element that has counted something. A total is carried + last - start.
type tallied struct {
	frontend    FrontendTotal    // the frontend that is counted, with counts of 0; the zero value for a named counter
	carried     [numKinds]uint64 // counts of earlier elements with this key, while the frontend exists
	start, last uint64           // the kernel's count when the tally began, and at the last reading
	kind        countKind
}

// countKind is whether an element counts connections or refused packets. Its verdict decides.
type countKind uint8

const (
	countsConnections countKind = iota
	countsRefusals
	numKinds
)

// kind returns what an element counts, by its verdict: connections or refused packets; false if another element counts the same packet.
func (c *Count) kind() (countKind, bool) {
	switch chain, _ := strings.CutPrefix(c.Verdict, "goto "); {
	case c.Set == setEgress: // which has addresses in place of verdicts
	case c.Set == "", chain == chainRefuse, c.Verdict == (Verdict{Kind: Drop}).String():
		return countsRefusals, true
	case chain == chainByClient, chain == chainNPByClient,
		chain == chainLimited, chain == chainLimitedOutside, chain == chainNPLimited, chain == chainNPLimitedOutside:
		return 0, false
	}
	return countsConnections, true
}

// Start sets the counts at which totals begin with 0. If it is not called, those of the first reading count. Later calls do nothing.
func (t *Tally) Start(counts []Count) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.start(counts)
}

// A Tallied is the saved state of a Tally for one element, which the next process continues.
type Tallied struct {
	Family      Family
	Set         string
	Key         []byte
	Refusals    bool // it counts refused packets
	Carried     [numKinds]uint64
	Start, Last uint64
}

// Save returns all that was counted, nil if nothing was read yet.
func (t *Tally) Save() []Tallied {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.begun {
		return nil
	}
	list := make([]Tallied, 0, len(t.entries))
	for id, e := range t.entries {
		list = append(list, Tallied{id.family, id.set, []byte(id.key), e.kind == countsRefusals, e.carried, e.start, e.last})
	}
	return list
}

// Restore sets totals that Save has returned (nil: none). It is called before any other method.
func (t *Tally) Restore(list []Tallied) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if list == nil {
		return
	}
	t.begun, t.entries = true, make(map[countID]*tallied, len(list))
	for _, s := range list {
		if s.Set != "" && !IsCounted(s.Set) {
			continue // of another version
		}
		id := countID{s.Family, s.Set, string(s.Key)}
		e := &tallied{frontend: frontendOf(id), carried: s.Carried, start: s.Start, last: s.Last, kind: countsConnections}
		if s.Refusals {
			e.kind = countsRefusals
		}
		t.entries[id] = e
	}
}

// Started reports whether the tally has the counts of the start.
func (t *Tally) Started() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.begun
}

func (t *Tally) start(counts []Count) {
	if t.begun {
		return
	}
	t.begun = true
	for i := range counts {
		if e := t.see(&counts[i]); e != nil {
			e.start = e.last
		}
	}
}

// see adds one count and returns its entry, nil for a count that is 0.
func (t *Tally) see(c *Count) *tallied {
	kind, counts := c.kind()
	if !counts {
		return nil
	}
	id := countID{c.Family, c.Set, c.Key}
	e := t.entries[id]
	if e == nil {
		if c.Packets == 0 {
			return nil
		}
		if t.entries == nil {
			t.entries = map[countID]*tallied{}
		}
		e = &tallied{frontend: frontendOf(id), kind: kind}
		t.entries[id] = e
	}
	if c.Packets < e.last || kind != e.kind { // another element than was read last
		e.carry()
		e.kind = kind
	}
	e.last = c.Packets
	return e
}

// carry keeps the count of an element that is gone.
func (e *tallied) carry() {
	e.carried[e.kind] += e.last - min(e.start, e.last)
	e.start, e.last = 0, 0
}

// total returns the count of a kind.
func (e *tallied) total(kind countKind) uint64 {
	n := e.carried[kind]
	if kind == e.kind {
		n += e.last - min(e.start, e.last)
	}
	return n
}

// Takes reports whether a batch deletes elements or counters with counts, or adds ones that begin at 0. Such a batch needs Committing before its
// commit, and Committed after it.
func (b *Batch) Takes() bool {
	return slices.ContainsFunc(b.Ops, func(op Op) bool {
		switch op := op.(type) {
		case DeleteTable, AddCounter, DeleteCounter:
			return true
		case DeleteSet:
			return IsCounted(op.Name)
		case DeleteElements:
			return op.Set.Counted
		case AddElements:
			return op.Set.Counted
		}
		return false
	})
}

// Committing announces a transaction. Readings that it falls into are not used.
func (t *Tally) Committing() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changes++
}

// Committed ends what Committing began. b is nil when nothing was committed; last are the counts
// that elements of it had when they were deleted, as far as they are known.
func (t *Tally) Committed(b *Batch, last []Count) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changes++
	if b == nil {
		return
	}
	for i := range last {
		t.see(&last[i])
	}
	ended := map[countID]bool{} // frontends; of true ones nothing stays
	for _, op := range b.Ops {
		switch op := op.(type) {
		case DeleteTable:
			t.leave(ended, func(id countID) bool { return id.family == op.Family })
		case DeleteSet:
			t.leave(ended, func(id countID) bool { return id.family == op.Family && id.set == op.Name })
		case DeleteElements:
			for _, e := range op.Elements {
				if op.Set.Counted {
					t.carry(ended, countID{op.Family, op.Set.Name, e.Key}, true)
				}
			}
		case AddElements:
			for _, e := range op.Elements {
				if op.Set.Counted { // one of its key that is still known went without us
					t.carry(ended, countID{op.Family, op.Set.Name, e.Key}, false)
				}
			}
		case AddCounter:
			t.carry(ended, countID{op.Family, "", op.Name}, false)
		case DeleteCounter:
			t.carry(ended, countID{op.Family, "", op.Name}, true)
		}
	}
	t.forget(ended)
}

// leave keeps the counts of elements that are removed with their set or table, and marks the frontends among them as ended: their
// counts are dropped unless the batch adds them again.
func (t *Tally) leave(ended map[countID]bool, which func(countID) bool) {
	for id, e := range t.entries {
		if which(id) {
			e.carry()
		}
		if first := id.frontend(); first.set != "" && which(first) {
			ended[first] = true
		}
	}
}

// carry keeps the count of an element or counter that is removed, or added and begins at 0. For the element that a frontend always has, it records in
// ended whether the frontend is gone; the counts of named counters, of which there are few, always stay.
func (t *Tally) carry(ended map[countID]bool, id countID, goes bool) {
	if e := t.entries[id]; e != nil {
		e.carry()
	}
	if id.set != "" && id == id.frontend() {
		ended[id] = goes
	}
}

// frontend returns the element that a frontend always has. It may have others, in the maps for limits and for those that depend
// on the client.
func (id countID) frontend() countID {
	for _, maps := range [...]*frontendMaps{&vipMaps, &nodePortMaps} {
		if beside := maps.beside(); slices.Contains(beside[:], id.set) {
			id.set = maps.all
		}
	}
	return id
}

// beside returns the maps of verdicts in which a frontend may have an element, besides the map with all frontends.
func (m *frontendMaps) beside() [4]string {
	return [...]string{m.inside, m.outside, m.limits.inside.set, m.limits.outside.set}
}

// forget removes the counts of frontends that ended.
func (t *Tally) forget(ended map[countID]bool) {
	for id, is := range ended {
		if !is {
			continue
		}
		delete(t.entries, id)
		for _, maps := range [...]*frontendMaps{&vipMaps, &nodePortMaps} {
			if id.set != maps.all {
				continue
			}
			for _, set := range maps.beside() {
				delete(t.entries, countID{id.family, set, id.key})
			}
		}
	}
}

// Before returns the number to pass to Read; it is called before counts are read.
func (t *Tally) Before() (reading uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changes
}

// Read adds counts that were read after the call of Before that returned reading. It reports whether they were used: not if a transaction
// fell into the reading. An element without a count keeps its last one.
func (t *Tally) Read(counts []Count, reading uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if reading != t.changes || reading%2 == 1 {
		return false
	}
	if !t.begun {
		t.start(counts)
		return true
	}
	for i := range counts {
		t.see(&counts[i])
	}
	return true
}

// Totals returns the totals of all readings.
func (t *Tally) Totals() Totals {
	t.mu.Lock()
	defer t.mu.Unlock()
	totals := Totals{Refusals: make(map[string]uint64, len(Refusals)), Egress: map[netip.Addr]uint64{}}
	for _, name := range Refusals {
		totals.Refusals[name] = 0
	}
	for id, e := range t.entries {
		if id.set == "" {
			totals.Refusals[id.key] += e.total(countsRefusals)
			continue
		}
		if source, is := netip.AddrFromSlice([]byte(id.key)); is && id.set == setEgress {
			totals.Egress[source] = e.total(countsConnections)
			continue
		}
		f := e.frontend
		f.Connections, f.Refused = e.total(countsConnections), e.total(countsRefusals)
		if f.Protocol != 0 && f.Connections+f.Refused > 0 {
			totals.Frontends = append(totals.Frontends, f)
		}
	}
	return totals
}

// frontendOf returns the frontend of an element; the zero one where the key is none of ours, or of a named counter.
func frontendOf(id countID) FrontendTotal {
	if id.set == "" {
		return FrontendTotal{}
	}
	values := SplitKey(staticSet(id.set).Key, id.family, id.key)
	if len(values) < 2 || id.set == setPortRanges && len(values) != 6 {
		return FrontendTotal{}
	}
	var last uint16
	if id.set == setPortRanges {
		last, values = uint16(values[len(values)-1].Num), values[:len(values)/2]
	}
	return FrontendTotal{
		Family: id.family, Protocol: Protocol(values[len(values)-2].Num),
		At: netip.AddrPortFrom(values[0].Addr, uint16(values[len(values)-1].Num)), Last: last,
	}
}

// CountedSets returns the definitions of the maps that count.
func CountedSets() []Set {
	var sets []Set
	for _, s := range staticSets {
		if IsCounted(s.Name) {
			sets = append(sets, s.on(&Box{Counters: true}))
		}
	}
	slices.SortFunc(sets, func(a, b Set) int { return cmp.Compare(a.Name, b.Name) })
	return sets
}
