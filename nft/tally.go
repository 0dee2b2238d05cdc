package nft

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// A Count is a counter read from the kernel: of an element of a dispatch map, or, if Set is "", the named counter with the name Key.
type Count struct {
	Family   Family
	Set, Key string
	Verdict  string // verdict of the element
	Packets  uint64
}

// A FrontendTotal holds the connections and refusals of one frontend since counting started.
type FrontendTotal struct {
	Family   Family
	Protocol Protocol
	At       netip.AddrPort // address and port; the zero Addr for a node port
	Last     uint16         // last port of a range that begins at the port of At; 0 for a single port
	// Connections counts the connections that were sent to endpoints. Refused counts the packets that were refused or dropped because there was no
	// endpoint; each retry of a client counts.
	Connections, Refused uint64
}

// Totals holds all counts since counting started.
type Totals struct {
	Frontends []FrontendTotal   // frontends with a nonzero count, in no particular order
	Refusals  map[string]uint64 // refused packets of both families, by the name of the counter
	// Egress holds the number of connections translated to an egress address, by their source.
	Egress map[netip.Addr]uint64
}

// Tally derives totals that never decrease from kernel counts that do. A count is lost when an element is deleted and added again with another
// verdict, when it moves to another map because limits or policies change, when it loses its counter together with a limit, or when its table is
// deleted, as by a flush of the ruleset. It holds an entry for each element with a nonzero count. Its methods may be called concurrently; the zero
// value is ready to use.
type Tally struct {
	mu      sync.Mutex
	begun   bool
	changes uint64 // incremented before and after each transaction that deletes or resets counters, so odd during one
	entries map[countID]*tallied
}

type countID struct {
	family   Family
	set, key string
}

// tallied is the entry of a Tally for an element. Its total is carried + last - start.
type tallied struct {
	frontend    FrontendTotal    // the frontend of the element, without counts; the zero value for a named counter
	carried     [numKinds]uint64 // sums of the counts of deleted elements with the same key, while the frontend exists
	start, last uint64           // the kernel's counts when counting started, and at the last reading
	kind        countKind
}

// countKind is the kind of packets that an element counts, connections or refused packets. It follows from the verdict of the element.
type countKind uint8

const (
	countsConnections countKind = iota
	countsRefusals
	numKinds
)

// kind returns the kind of packets that an element counts, by its verdict. It returns false if the packets are counted by another element.
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

// Start sets the counts at which totals are 0. Without a call of Start, the first reading does so. Later calls have no effect.
func (t *Tally) Start(counts []Count) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.start(counts)
}

// A Tallied is the saved entry of a Tally for one element, with which the next process continues counting.
type Tallied struct {
	Family      Family
	Set         string
	Key         []byte
	Refusals    bool // the element counts refused packets
	Carried     [numKinds]uint64
	Start, Last uint64
}

// Save returns all entries of the Tally, or nil if no counts have been read.
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

// Restore sets the entries to the result of an earlier Save; nil has no effect. It must be called before any other method.
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

// Started reports whether the starting counts of the totals are set.
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

// see records a count and returns its entry. It returns nil for a count of 0 without an entry, and for an element with packets that another element
// counts.
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

// carry adds the count of a deleted element to e.carried, and resets the entry for the next element.
func (e *tallied) carry() {
	e.carried[e.kind] += e.last - min(e.start, e.last)
	e.start, e.last = 0, 0
}

// total returns the total for a kind of packets.
func (e *tallied) total(kind countKind) uint64 {
	n := e.carried[kind]
	if kind == e.kind {
		n += e.last - min(e.start, e.last)
	}
	return n
}

// Takes reports whether a batch deletes or adds counters or elements with counters. Such a batch needs Committing before its commit, and Committed
// after it.
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

// Committing announces a transaction that deletes or adds counters. Readings that overlap the transaction are not used.
func (t *Tally) Committing() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changes++
}

// Committed ends a transaction announced by Committing. b is the committed batch, or nil if the transaction failed. last holds the last counts of
// deleted elements, as far as the kernel returned them.
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

// leave carries the counts of elements that are deleted together with their set or table, and marks their frontends as ended. The counts of a
// frontend are dropped unless the batch adds it again.
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

// carry carries the count of an element or counter that is deleted, or added with a count of 0. If id is the main element of a frontend, it sets
// ended[id] to goes, which is true if the frontend is deleted. Counts of named counters are always kept.
func (t *Tally) carry(ended map[countID]bool, id countID, goes bool) {
	if e := t.entries[id]; e != nil {
		e.carry()
	}
	if id.set != "" && id == id.frontend() {
		ended[id] = goes
	}
}

// frontend returns the ID of the main element of a frontend, in the map of all frontends. Elements of the same frontend in other maps exist only for
// limits and for verdicts that depend on the client.
func (id countID) frontend() countID {
	for _, maps := range [...]*frontendMaps{&vipMaps, &nodePortMaps} {
		if beside := maps.beside(); slices.Contains(beside[:], id.set) {
			id.set = maps.all
		}
	}
	return id
}

// beside returns the names of the additional verdict maps in which a frontend may have an element, without the map of all frontends.
func (m *frontendMaps) beside() [4]string {
	return [...]string{m.inside, m.outside, m.limits.inside.set, m.limits.outside.set}
}

// forget removes the entries of frontends that have ended.
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

// Before returns the value to pass to Read. Call it before reading the counts.
func (t *Tally) Before() (reading uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changes
}

// Read records counts. The caller must call Before, then read the counts, and pass the result of Before as reading. Read ignores the counts and
// returns false if a transaction was under way at any time in between. An element without a count keeps its last one.
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

// Totals returns the current totals.
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

// frontendOf returns the frontend of an element, without counts. It returns the zero value for a named counter, and for a key that this product could
// not have made.
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

// CountedSets returns the definitions of the maps with counters.
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
