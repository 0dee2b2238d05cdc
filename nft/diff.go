package nft

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
)

func diffTable(f Family, have *Table, want *content, tr *Transition) {
	if want == nil {
		if have != nil {
			tr.Apply.Ops = append(tr.Apply.Ops, DeleteTable{f})
		}
		return
	}
	if have != nil && (!compatible(have, want) || anyForeign(have.Flowtables, want.flowtables)) {
		tr.Apply.Ops = append(tr.Apply.Ops, DeleteTable{f})
		have = nil
	}
	if have == nil {
		tr.Apply.Ops = append(tr.Apply.Ops, AddTable{f})
		have = &Table{}
	}
	d := tableDiff{family: f}
	have = d.remake(have, want)
	d.counters(have.Counters, want.counters)
	for name, set := range have.Sets {
		if _, ok := want.sets[name]; !ok {
			d.set(&set.Set, nil)
		}
	}
	for name, set := range want.sets {
		if have.Sets[name] == nil {
			d.set(nil, &set)
		}
	}
	d.elements(have, want)
	d.timeouts(have.Timeouts, want.timeouts)
	d.flowtables(have.Flowtables, want.flowtables)
	for name, chain := range have.Chains {
		d.chain(chain, want.chains[name])
	}
	for name, chain := range want.chains {
		if have.Chains[name] == nil {
			d.chain(nil, chain)
		}
	}
	d.appendTo(tr)
}

// compatible reports whether have can be changed into want without replacing it.
func compatible(have *Table, want *content) bool {
	for name, set := range want.sets {
		if old := have.Sets[name]; old != nil {
			set.Counted = old.Counted // see remake
			if !reflect.DeepEqual(old.Set, set) {
				return false
			}
		}
	}
	for name, timeout := range want.timeouts {
		if old, there := have.Timeouts[name]; there && old != timeout {
			return false
		}
	}
	for name, chain := range want.chains {
		if old := have.Chains[name]; old != nil && (old.Hook != chain.Hook || old.Priority != chain.Priority || old.Filter != chain.Filter) {
			return false
		}
	}
	return true
}

// remake replaces maps that need counters and have none, or the reverse, because an existing map cannot get a counter. The rules that use these maps
// are deleted in the same transaction. It returns the table without these maps.
func (d *tableDiff) remake(have *Table, want *content) *Table {
	rest := *have
	for _, name := range sortedKeys(want.sets) {
		set := want.sets[name]
		if old := have.Sets[name]; old == nil || old.Counted == set.Counted {
			continue
		}
		if len(d.remade) == 0 {
			rest.Sets = maps.Clone(have.Sets)
		}
		delete(rest.Sets, name)
		d.remade = append(d.remade, name)
		for _, chain := range sortedKeys(want.chains) {
			if have.Chains[chain] != nil && !slices.Contains(d.emptied, chain) && slices.ContainsFunc(want.chains[chain].Rules, func(r Rule) bool {
				return slices.ContainsFunc(r, func(s Statement) bool {
					verdicts, isMap := s.(VerdictMap)
					sources, isSNAT := s.(SourceMap)
					return isMap && verdicts.Map == name || isSNAT && sources.Map == name
				})
			}) {
				d.emptied = append(d.emptied, chain)
			}
		}
	}
	return &rest
}

// counters adds missing counters and deletes unwanted ones.
func (d *tableDiff) counters(have, want []string) {
	for _, name := range want {
		if !slices.Contains(have, name) {
			d.created = append(d.created, AddCounter{d.family, name})
		}
	}
	for _, name := range have {
		if !slices.Contains(want, name) {
			d.gone = append(d.gone, DeleteCounter{d.family, name})
		}
	}
}

// tableDiff collects the difference between two states of a table, in any order,
// and puts it into the order that the kernel can follow. It has more than 15 fields: one for each kind of
// operation.
type tableDiff struct {
	family        Family
	created, gone []Op     // counters, timeouts and flowtables
	remade        []string // sets that are deleted and created again
	emptied       []string // chains whose rules are removed first, because they refer to sets in remade
	newSets       []Set
	goneSets      []string
	newChains     []Chain
	rules         []Chain
	deletedChains []string
	deletes       map[string]*elementChange
	adds          map[string]*elementChange
	dropped       map[string]*elementChange // elements that are removed together with their sets
	forget        []ForgetData
	caps          []CapTimeouts
}

type elementChange struct {
	set      Set
	elements []Element
	sorted   bool // the order of elements is deterministic
}

func (d *tableDiff) set(old, now *Set) {
	switch {
	case old == nil && now != nil:
		d.newSets = append(d.newSets, *now)
	case old != nil && now == nil:
		d.goneSets = append(d.goneSets, old.Name)
	}
}

func (d *tableDiff) chain(old, now *Chain) {
	switch {
	case old == nil && now == nil:
	case now == nil:
		d.deletedChains = append(d.deletedChains, old.Name)
	case old == nil:
		d.newChains = append(d.newChains, *now)
		d.rules = append(d.rules, *now)
	case old.Marks == nil && !reflect.DeepEqual(old.Rules, now.Rules), slices.Contains(d.emptied, now.Name),
		old.Marks != nil && !slices.EqualFunc(old.Marks, now.Rules, func(mark uint64, r Rule) bool { return mark == r.Mark(d.family) }): // it was read from the kernel
		d.rules = append(d.rules, *now)
	}
}

// elements compares the elements of have with the wanted ones. Sets that are empty in have are filled without a comparison, which saves time after
// another program flushed the ruleset.
func (d *tableDiff) elements(have *Table, want *content) {
	all := map[string]*elementChange{}
	found := map[string]int{} // elements that are there, with whatever data
	var set string            // the last one, and what there is of it
	var there Elements
	for name, e := range want.elements {
		if name != set {
			set, there = name, have.elements(name)
		}
		if len(there) == 0 {
			if all[name] == nil {
				all[name] = &elementChange{set: want.sets[name], sorted: want.sorted, elements: make([]Element, 0, want.counts[name])}
			}
			all[name].elements = append(all[name].elements, e)
			continue
		}
		data, is := there[e.Key]
		if is {
			found[name]++
		}
		if is && data != e.Data {
			d.delete(want.sets[name], Element{e.Key, data})
		}
		if !is || data != e.Data {
			d.add(want.sets[name], e)
		}
	}
	for _, change := range all {
		put(&d.adds, change)
	}
	d.superfluous(have, want, found)
}

// elements returns the elements of a set, nil if there is no such set, or no table.
func (t *Table) elements(set string) Elements {
	if t == nil || t.Sets[set] == nil {
		return nil
	}
	return t.Sets[set].Elements
}

// superfluous deletes the elements of have that are not wanted. found has the number of wanted elements in have, by set.
func (d *tableDiff) superfluous(have *Table, want *content, found map[string]int) {
	tooMany := map[string]map[string]bool{} // by set, the keys that are wanted
	for name, old := range have.Sets {
		if now, ok := want.sets[name]; ok && !now.Dynamic && len(old.Elements) > found[name] {
			tooMany[name] = make(map[string]bool, found[name])
		}
	}
	if len(tooMany) == 0 {
		return
	}
	for name, e := range want.elements {
		if wanted := tooMany[name]; wanted != nil {
			wanted[e.Key] = true
		}
	}
	for name, wanted := range tooMany {
		for key, data := range have.Sets[name].Elements {
			if !wanted[key] {
				d.delete(want.sets[name], Element{key, data})
			}
		}
	}
}

// put stores all, the change of one set's elements, in changes under the name of the set.
func put(changes *map[string]*elementChange, all *elementChange) {
	if *changes == nil {
		*changes = map[string]*elementChange{}
	}
	(*changes)[all.set.Name] = all
}

func (d *tableDiff) delete(s Set, e Element) { d.deletes = record(d.deletes, s, e) }
func (d *tableDiff) add(s Set, e Element)    { d.adds = record(d.adds, s, e) }

func record(m map[string]*elementChange, s Set, e Element) map[string]*elementChange {
	if m == nil {
		m = map[string]*elementChange{}
	}
	if m[s.Name] == nil {
		m[s.Name] = &elementChange{set: s}
	}
	m[s.Name].elements = append(m[s.Name].elements, e)
	return m
}

// appendTo appends the operations: additions first, because elements and rules refer to them, and deletions last, because deleted elements and rules
// referred to them.
func (d *tableDiff) appendTo(tr *Transition) {
	slices.SortFunc(d.newSets, func(a, b Set) int { return cmp.Compare(a.Name, b.Name) })
	byName := func(a, b Chain) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(d.newChains, byName)
	slices.SortFunc(d.rules, byName)
	slices.Sort(d.goneSets)
	slices.Sort(d.deletedChains)
	slices.SortFunc(d.forget, func(a, b ForgetData) int { return cmp.Compare(a.Set.Name, b.Set.Name) })
	slices.SortFunc(d.caps, func(a, b CapTimeouts) int { return cmp.Compare(a.Set.Name, b.Set.Name) })
	ops := append(tr.Apply.Ops, d.created...)
	for _, name := range d.emptied {
		ops = append(ops, SetRules{Family: d.family, Chain: name})
	}
	for _, name := range d.remade {
		ops = append(ops, DeleteSet{d.family, name})
	}
	for _, s := range d.newSets {
		ops = append(ops, AddSet{d.family, s})
	}
	for _, c := range d.newChains {
		ops = append(ops, AddChain{d.family, Chain{Name: c.Name, Hook: c.Hook, Priority: c.Priority, Filter: c.Filter}})
	}
	for _, c := range d.rules {
		ops = append(ops, SetRules{d.family, c.Name, c.Rules})
	}
	for _, name := range sortedKeys(d.deletes) {
		ops = append(ops, DeleteElements{d.family, d.deletes[name].set, d.deletes[name].inOrder()})
	}
	for _, name := range sortedKeys(d.adds) {
		ops = append(ops, AddElements{d.family, d.adds[name].set, d.adds[name].inOrder()})
	}
	for _, f := range d.forget {
		ops = append(ops, f)
	}
	for _, c := range d.caps {
		ops = append(ops, c)
	}
	tr.Apply.Ops = ops
	tr.Forget = append(tr.Forget, d.forget...)
	d.tellDropped(tr)

	// A chain that goes may refer to another one or to a set that goes: empty them first.
	for _, name := range d.deletedChains {
		tr.Cleanup.Ops = append(tr.Cleanup.Ops, SetRules{Family: d.family, Chain: name})
	}
	for _, name := range d.goneSets {
		tr.Cleanup.Ops = append(tr.Cleanup.Ops, DeleteSet{d.family, name})
	}
	for _, name := range d.deletedChains {
		tr.Cleanup.Ops = append(tr.Cleanup.Ops, DeleteChain{d.family, name})
	}
	tr.Cleanup.Ops = append(tr.Cleanup.Ops, d.gone...)
}

// tellDropped appends to tr.Dropped the elements that are deleted together with their sets.
func (d *tableDiff) tellDropped(tr *Transition) {
	for _, name := range sortedKeys(d.dropped) {
		tr.Dropped = append(tr.Dropped, DeleteElements{d.family, d.dropped[name].set, d.dropped[name].inOrder()})
	}
}

func (c *elementChange) inOrder() []Element {
	if !c.sorted {
		slices.SortFunc(c.elements, func(a, b Element) int { return strings.Compare(a.Key, b.Key) })
	}
	return c.elements
}

// timeouts compares the timeout objects of two states of a table.
func (d *tableDiff) timeouts(have, want map[string]Timeout) {
	for _, name := range sortedKeys(have) {
		if _, wanted := want[name]; !wanted {
			d.gone = append(d.gone, DeleteTimeout{d.family, name})
		}
	}
	for _, name := range sortedKeys(want) {
		if _, there := have[name]; !there {
			d.created = append(d.created, AddTimeout{d.family, want[name]})
		}
	}
}
