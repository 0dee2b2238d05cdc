package nft

import (
	"maps"
	"net/netip"
	"slices"
)

func (t *tableState) begin(heard bool) {
	t.existed, t.wereFast = t.exists, t.flowtables
	t.change = change{
		discard: !heard,
		fresh:   len(t.sets)+len(t.chains) == 0,
		deleted: map[element]string{}, added: map[element]string{},
		touched:   map[netip.Addr]addressUses{},
		oldChains: map[string]*Chain{},
		oldSets:   map[string]*Set{},
		former:    former{oldCounters: t.counters, oldKinds: t.kinds()},

		sourcesTouched: map[string]bool{},
		oldTimeouts:    map[string]bool{},
		oldAdopted:     map[string]string{},
	}
}

// put notes that an element comes. One that goes with the same data stays.
func (t *tableState) put(e placed) {
	n := t.tally(e.set)
	n.count++
	if t.discard {
		return
	}
	if t.fresh {
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

// delete notes that an element goes, which must be there.
func (t *tableState) delete(e placed) {
	t.tally(e.set).count--
	if t.discard {
		return
	}
	t.deleted[element{e.set, e.key}] = e.data
}

// touch records the uses of an address as they were before the change, and gives those of
// now.
func (t *tableState) touch(a netip.Addr) addressUses {
	uses := t.addresses[a]
	if _, ok := t.touched[a]; !ok && !t.fresh {
		t.touched[a] = uses
	}
	return uses
}

// settleAddresses takes the elements of touched addresses away, or adds them, as they are
// used now.
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

// elements appends those that an address has because of its uses.
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

// emit appends the difference between the table as it was and as it is.
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
	t.emitTimeouts(&d)
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
			d.addAll(&elementChange{set: t.sets[name], elements: n.all, sorted: true})
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
