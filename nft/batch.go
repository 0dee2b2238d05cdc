package nft

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Batch is an ordered list of operations that the kernel takes as one
// transaction: all of them or none.
type Batch struct{ Ops []Op }

// Empty reports whether there is nothing to do.
func (b *Batch) Empty() bool { return len(b.Ops) == 0 }

// Op is one operation. The set of operations is closed.
type Op interface{ op() Family }

// Element is one element of a set; see Elements for the form of its bytes.
type Element struct{ Key, Data string }

// named is an operation on a named object in the table of a family.
type named struct {
	Family Family
	Name   string
}

type (
	// AddTable creates the table of a family; one that exists is left as it is.
	AddTable struct{ Family Family }
	// DeleteTable deletes the table of a family with all in it.
	DeleteTable struct{ Family Family }
	// AddCounter creates a counter, at 0.
	AddCounter named
	// DeleteCounter deletes a counter that no rule names any more.
	DeleteCounter named
	// AddSet creates a set without elements.
	AddSet struct {
		Family Family
		Set    Set
	}
	// DeleteSet deletes a set with its elements.
	DeleteSet named
	// AddTimeout creates a timeout object of connection tracking.
	AddTimeout struct {
		Family  Family
		Timeout Timeout
	}
	// DeleteTimeout deletes a timeout object that no rule refers to. Connections with it get the timeouts of the host.
	DeleteTimeout named
	// AddChain creates a chain without rules.
	AddChain struct {
		Family Family
		Chain  Chain // its Rules are ignored
	}
	// SetRules replaces all rules of an existing chain.
	SetRules struct {
		Family Family
		Chain  string
		Rules  []Rule
	}
	// DeleteChain deletes a chain and its rules.
	DeleteChain named
	// AddElements adds elements to a set. An element that exists with other
	// data is an error (EEXIST): delete it first, in the same batch.
	AddElements struct {
		Family   Family
		Set      Set
		Elements []Element
	}
	// DeleteElements deletes elements, which must exist (ENOENT).
	DeleteElements struct {
		Family   Family
		Set      Set
		Elements []Element // Data is ignored
	}
	// ForgetData deletes the elements of a dynamic map that have one of the values in Data: affinity entries for removed endpoints. It is not an
	// error if such elements expire first.
	ForgetData struct {
		Family Family
		Set    Set
		Data   []string
	}
	// CapTimeouts reduces the remaining life of the elements of a dynamic map to at most Timeout, after a Service's affinity timeout was reduced.
	CapTimeouts struct {
		Family  Family
		Set     Set
		Timeout time.Duration
	}
)

func (o AddTable) op() Family       { return o.Family }
func (o DeleteTable) op() Family    { return o.Family }
func (o AddCounter) op() Family     { return o.Family }
func (o DeleteCounter) op() Family  { return o.Family }
func (o AddSet) op() Family         { return o.Family }
func (o DeleteSet) op() Family      { return o.Family }
func (o AddTimeout) op() Family     { return o.Family }
func (o DeleteTimeout) op() Family  { return o.Family }
func (o AddChain) op() Family       { return o.Family }
func (o SetRules) op() Family       { return o.Family }
func (o DeleteChain) op() Family    { return o.Family }
func (o AddElements) op() Family    { return o.Family }
func (o DeleteElements) op() Family { return o.Family }
func (o ForgetData) op() Family     { return o.Family }
func (o CapTimeouts) op() Family    { return o.Family }

// Transition changes one ruleset into another, by the transactions that Stages returns. After Apply every packet is treated as in the new ruleset.
// Cleanup, when it is not empty, then removes chains and sets that nothing refers to any more; the two are separate because kernels before 6.2 may
// refuse (EBUSY) to delete a chain in the transaction that removes the last reference to it.
type Transition struct {
	Apply, Cleanup Batch
	// Forget lists the ForgetData operations of Apply. They are repeated after Apply, because a packet in flight during its commit may add an
	// affinity entry for a removed endpoint.
	Forget []ForgetData
	// Dropped are the elements that are deleted together with their sets or tables, without an operation of their own. Only Compiler.Foresee sets
	// them.
	Dropped []DeleteElements
}

// Empty reports whether nothing has to be done.
func (t *Transition) Empty() bool { return t.Apply.Empty() && t.Cleanup.Empty() }

func (t *tableState) begin(heard, large bool) {
	t.existed, t.wereFast = t.exists, t.flowtables
	t.discard, t.fresh, t.forget, t.caps = !heard, len(t.sets)+len(t.chains) == 0, nil, nil
	t.former = former{oldCounters: t.counters, oldTimeouts: t.timeouts, oldKinds: t.kinds(), large: large, unsettles: !large && t.set(setUnsettled) != nil}
}

// put records that an element is added. If an element with the same data was to be deleted, it is left in place instead.
func (t *tableState) put(e placed) {
	n := t.tally(e.set)
	n.count++
	if t.discard {
		return
	}
	if t.fresh {
		if len(n.all) == cap(n.all) {
			n.all = slices.Grow(n.all, max(8, len(n.all))) // append alone allocates twice as much in all
		}
		n.all = append(n.all, Element{e.key, e.data})
		return
	}
	id := element{e.set, e.key}
	if data, goes := t.deleted[id]; goes && data == e.data {
		delete(t.deleted, id)
		return
	}
	t.added[id] = e.data
}

// delete notes that an existing element is deleted.
func (t *tableState) delete(e placed) {
	t.tally(e.set).count--
	if t.discard {
		return
	}
	t.deleted[element{e.set, e.key}] = e.data
}

// touch returns the uses of an address, for the caller to change. The first call for an address during a change records its uses for settleAddresses.
func (t *tableState) touch(a netip.Addr) addressUses {
	uses := t.addresses[a]
	if _, ok := t.touched[a]; !ok && !t.fresh {
		t.touched[a] = uses
	}
	return uses
}

// settleAddresses adds or deletes the elements of touched addresses, by their uses before and after the change.
func (t *tableState) settleAddresses() {
	among := t.touched
	if t.fresh {
		among = t.addresses
	}
	changed := slices.SortedFunc(maps.Keys(among), netip.Addr.Compare)
	var room [4]placed
	for _, a := range changed {
		for _, e := range t.touched[a].elements(a, room[:0]) {
			t.delete(e)
		}
	}
	for _, a := range changed {
		uses := t.addresses[a]
		for _, e := range uses.elements(a, room[:0]) {
			t.put(e)
		}
		if uses == (addressUses{}) {
			delete(t.addresses, a)
		}
	}
}

// elements appends to list the elements that the address a with the use counts u needs in the sets of VIPs, idle VIPs, inside-only and original
// addresses. It returns the extended list.
func (u addressUses) elements(a netip.Addr, list []placed) []placed {
	key := AddrKey(a)
	if u.frontends > 0 {
		list = append(list, placed{set: setVIPs, key: key})
		if u.ready == 0 {
			list = append(list, placed{set: setIdleVIPs, key: key})
		}
	}
	if u.inside > 0 {
		list = append(list, placed{set: setInsideOnly, key: key})
	}
	switch {
	case u.sourceNAT > 0:
		return append(list, placed{setOriginal, key, GotoChain(chainSourceNAT).String()})
	case u.node:
		return append(list, placed{setOriginal, key, GotoChain(chainNPSourceNAT).String()})
	}
	return list
}

// emit appends the operations of the change to the batches of a transition.
func (t *tableState) emit(f Family, tr *Transition) {
	if !t.exists {
		if t.existed {
			tr.Apply.Ops = append(tr.Apply.Ops, DeleteTable{f})
			if t.listsDropped {
				d := tableDiff{family: f}
				t.emitElements(&d)
				t.emitSourceSets(&d)
				d.tellDropped(tr)
			}
		}
		return
	}
	if !t.existed {
		tr.Apply.Ops = append(tr.Apply.Ops, AddTable{f})
	}
	d := tableDiff{family: f}
	d.counters(t.oldCounters, t.counters)
	for name, old := range t.oldSets {
		d.set(old, t.set(name))
	}
	for name, old := range t.oldChains {
		d.chain(old, t.chains[name])
	}
	t.emitElements(&d)
	t.emitSourceSets(&d)
	d.timeouts(t.oldTimeouts, t.timeouts)
	d.flowtables(t.wereFast, t.flowtables)
	for _, x := range t.forget {
		if t.set(x.set.Name) != nil && t.oldSets[x.set.Name] != nil {
			d.forget = append(d.forget, x.op(f))
		}
	}
	for _, c := range t.caps {
		if t.set(c.Set.Name) != nil && t.oldSets[c.Set.Name] != nil {
			d.caps = append(d.caps, c)
		}
	}
	d.appendTo(tr)
}

func (t *tableState) emitElements(d *tableDiff) {
	for name, n := range t.tallies {
		if t.fresh && len(n.all) > 0 {
			put(&d.adds, &elementChange{set: t.sets[name], elements: n.all, sorted: true})
		}
	}
	for id, data := range t.deleted {
		if s, ok := t.sets[id.set]; ok {
			d.delete(s, Element{id.key, data})
		} else if old := t.oldSets[id.set]; t.listsDropped && old != nil { // they go with it
			d.dropped = record(d.dropped, *old, Element{id.key, data})
		}
	}
	for id, data := range t.added {
		d.add(t.sets[id.set], Element{id.key, data})
	}
}

func (x *forgotten) op(f Family) ForgetData {
	op := ForgetData{Family: f, Set: x.set}
	for _, ap := range x.endpoints {
		op.Data = append(op.Data, AddrPortData(ap))
	}
	return op
}

const (
	// stageElements is the maximum number of elements in one transaction of a change that is split into several. The kernel takes some 3 µs for each
	// element, during which no other program can change the ruleset.
	stageElements = 100_000
	// beginElements is the same for a batch that creates all tables. The kernel resizes the hash table of a set in a worker, which waits for the end
	// of a transaction on its CPU, and inserting into a table that waits to be resized takes twice as long.
	beginElements = 8_000
)

// Stages returns the transactions that carry out a transition, in order: Apply and Cleanup, unless they are empty. A large Apply is split into
// several, of which only the last one affects packets. If they are interrupted, a new Transition can make the remaining changes.
func (t *Transition) Stages() []Batch {
	var stages []Batch
	switch {
	case t.Apply.Empty():
	case t.Apply.elements() > beginElements && t.Apply.isBeginning():
		stages = t.Apply.split()
	case t.Apply.elements() <= stageElements:
		stages = append(stages, t.Apply)
	default:
		stages = t.Apply.ahead()
	}
	if !t.Cleanup.Empty() {
		stages = append(stages, t.Cleanup)
	}
	return stages
}

// elements counts the elements that a batch adds.
func (b *Batch) elements() (n int) {
	for _, op := range b.Ops {
		if op, is := op.(AddElements); is {
			n += len(op.Elements)
		}
	}
	return n
}

// isBeginning reports whether a batch only creates tables and their contents, and changes no existing table.
func (b *Batch) isBeginning() bool {
	made := map[Family]bool{}
	for _, op := range b.Ops {
		switch op.(type) {
		case AddTable:
			made[op.op()] = true
		case AddCounter, AddSet, AddTimeout, SetFlowtable, AddChain, SetRules, AddElements:
		default:
			return false
		}
		if !made[op.op()] {
			return false
		}
	}
	return true
}

// split splits a batch that only creates tables. The base chains are in the last part, so that no packet is evaluated before the tables are complete.
func (b *Batch) split() []Batch {
	early := staging{most: beginElements}
	var last Batch
	base := map[string]bool{}
	for _, op := range b.Ops {
		switch op := op.(type) {
		case AddChain:
			if op.Chain.Hook != HookNone {
				base[op.Chain.Name] = true
				last.Ops = append(last.Ops, op)
				continue
			}
		case SetRules:
			if base[op.Chain] {
				last.Ops = append(last.Ops, op)
				continue
			}
		case AddElements:
			early.elements(op)
			continue
		}
		early.now.Ops = append(early.now.Ops, op)
	}
	return early.then(last)
}

// secondary are the maps that a packet looks up only after its frontend was found in a dispatch map, so that elements added early have no effect.
var secondary = map[string]bool{
	setBackends: true, setLocalBackends: true, setNPBackends: true, setLocalNPBackends: true,
	setTables: true, setLocalTables: true, setNPTables: true, setLocalNPTables: true,
}

// ahead splits a batch into several: the first ones add elements to secondary maps, the last one has all other operations. Elements of a map that the
// batch creates, or deletes elements of, stay in the last one. A batch that deletes a table is not split.
func (b *Batch) ahead() []Batch {
	type id struct {
		family Family
		set    string
	}
	busy := map[id]bool{}
	for _, op := range b.Ops {
		switch op := op.(type) {
		case AddSet:
			busy[id{op.Family, op.Set.Name}] = true
		case DeleteElements:
			busy[id{op.Family, op.Set.Name}] = true
		case DeleteTable:
			return []Batch{*b} // replaced tables and sets change at once
		}
	}
	early := staging{most: stageElements}
	var last Batch
	for _, op := range b.Ops {
		if op, is := op.(AddElements); is && secondary[op.Set.Name] && !busy[id{op.Family, op.Set.Name}] {
			early.elements(op)
			continue
		}
		last.Ops = append(last.Ops, op)
	}
	return early.then(last)
}

// staging fills batches with at most most elements each.
type staging struct {
	most int
	full []Batch
	now  Batch
	used int // the number of elements in now
}

func (s *staging) elements(op AddElements) {
	for rest := op.Elements; len(rest) > 0; {
		n := min(s.most-s.used, len(rest))
		s.now.Ops = append(s.now.Ops, AddElements{op.Family, op.Set, rest[:n]})
		rest, s.used = rest[n:], s.used+n
		if s.used == s.most {
			s.full = append(s.full, s.now)
			s.now, s.used = Batch{}, 0
		}
	}
}

// then returns the filled batches, followed by last.
func (s *staging) then(last Batch) []Batch {
	if !s.now.Empty() {
		s.full = append(s.full, s.now)
	}
	return append(s.full, last)
}
