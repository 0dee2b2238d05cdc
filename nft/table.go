package nft

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// tableState is the table of one family with what is needed to change it: how
// often shared things are used, and what the change under way has touched.
type tableState struct {
	Table
	exists   bool                // whether the family needs a table at all
	existed  bool                // the same, before the change under way
	hairpin  map[string]int      // how many use an element of the hairpin set beside the first one
	vips     map[netip.Addr]uses // by VIP
	original map[netip.Addr]int  // addresses with elements in source-nat
	// nodeAddrs are the node-port addresses in the map of original addresses.
	nodeAddrs []netip.Addr
	shared    map[string]int   // shared chains
	protocols map[Protocol]int // protocols of frontends in the maps of postrouting and input

	// The change under way. Where nothing was before it, only the order is kept in which
	// elements came.
	fresh   bool
	order   map[string][]string // by set
	before  map[placed]string   // elements as they were; data of placed is not used
	created map[placed]bool     // touched elements that were not there
	chains  map[string]*Chain   // chains as they were, nil if they were not there
	sets    map[string]*SetContent
	forget  []forgotten
	caps    []CapTimeouts
}

type uses struct{ frontends, ready int }

type forgotten struct {
	set  Set
	gone []netip.AddrPort
}

func newTableState() *tableState {
	return &tableState{
		Table:     Table{Sets: map[string]*SetContent{}, Chains: map[string]*Chain{}},
		hairpin:   map[string]int{},
		vips:      map[netip.Addr]uses{},
		original:  map[netip.Addr]int{},
		shared:    map[string]int{},
		protocols: map[Protocol]int{},
	}
}

func (t *tableState) begin() {
	t.existed = t.exists
	t.fresh, t.order = len(t.Sets)+len(t.Chains) == 0, map[string][]string{}
	t.before = map[placed]string{}
	t.created = map[placed]bool{}
	t.chains = map[string]*Chain{}
	t.sets = map[string]*SetContent{}
	t.forget, t.caps = nil, nil
}

// companions are sets that rules name for the sake of another set's elements: they
// are there, even empty, for as long as that one has any.
var companions = map[string]string{
	setNPAddresses: setNodePorts,
	setAllowed:     setRestricted,
	setNPAllowed:   setNPRestricted,
}

// has tells whether a set is to be there: it has elements, or its companion has.
func (t *tableState) has(set string) bool {
	if of, ok := companions[set]; ok {
		set = of
	}
	s := t.Sets[set]
	return s != nil && len(s.Elements) > 0
}

// touch records an element as it was before the change.
func (t *tableState) touch(set, key string) {
	if t.fresh {
		return
	}
	id := placed{set: set, key: key}
	if _, ok := t.before[id]; ok || t.created[id] {
		return
	}
	if s := t.Sets[set]; s != nil {
		if data, ok := s.Elements[key]; ok {
			t.before[id] = data
			return
		}
	}
	t.created[id] = true
}

func (t *tableState) putElement(set, key, data string) {
	t.touch(set, key)
	s := t.Sets[set]
	if s == nil {
		s = &SetContent{Set: staticSet[set], Elements: Elements{}}
		t.keepSet(set)
		t.Sets[set] = s
	}
	if t.fresh {
		t.order[set] = append(t.order[set], key)
	}
	s.Elements[key] = data
}

func (t *tableState) deleteElement(set, key string) {
	t.touch(set, key)
	if s := t.Sets[set]; s != nil {
		delete(s.Elements, key)
	}
}

// keepSet and keepChain record a set or chain as it was before the change.
func (t *tableState) keepSet(name string) {
	if _, ok := t.sets[name]; !ok {
		t.sets[name] = t.Sets[name]
	}
}

func (t *tableState) keepChain(name string) {
	if _, ok := t.chains[name]; !ok {
		t.chains[name] = t.Chains[name]
	}
}

func (t *tableState) setChain(c Chain) {
	t.keepChain(c.Name)
	t.Chains[c.Name] = &c
}

func (t *tableState) add(f *fragment, family Family, box *Box) {
	for _, s := range f.sets {
		t.keepSet(s.Name)
		t.Sets[s.Name] = &SetContent{Set: s, Elements: Elements{}}
	}
	for _, e := range f.elements {
		t.putElement(e.set, e.key, e.data)
	}
	for _, key := range f.hairpin {
		if s := t.Sets[setHairpin]; s != nil && holds(s.Elements, key, "") {
			t.hairpin[key]++
		} else {
			t.putElement(setHairpin, key, "")
		}
	}
	for _, v := range f.vips {
		u := t.vips[v.addr]
		u.frontends++
		if v.ready {
			u.ready++
		}
		t.setVIP(v.addr, u)
	}
	for _, addr := range f.original {
		if t.original[addr]++; t.original[addr] == 1 {
			t.putElement(setOriginal, AddrKey(addr), GotoChain(chainSourceNAT).String())
		}
	}
	for _, name := range f.shared {
		if t.shared[name]++; t.shared[name] == 1 {
			t.setChain(sharedChain(name, family, box))
		}
	}
	for proto := range f.uses {
		t.protocols[proto]++
	}
	for _, c := range f.chains {
		t.setChain(c)
	}
}

func (t *tableState) remove(f *fragment) {
	for _, e := range f.elements {
		t.deleteElement(e.set, e.key)
	}
	for _, key := range f.hairpin {
		switch more := t.hairpin[key]; more {
		case 0:
			t.deleteElement(setHairpin, key)
		case 1:
			delete(t.hairpin, key)
		default:
			t.hairpin[key] = more - 1
		}
	}
	for _, v := range f.vips {
		u := t.vips[v.addr]
		u.frontends--
		if v.ready {
			u.ready--
		}
		t.setVIP(v.addr, u)
	}
	for _, addr := range f.original {
		if t.original[addr]--; t.original[addr] == 0 {
			delete(t.original, addr)
			t.deleteElement(setOriginal, AddrKey(addr))
		}
	}
	for _, name := range f.shared {
		if t.shared[name]--; t.shared[name] == 0 {
			delete(t.shared, name)
			t.dropChain(name)
		}
	}
	for proto := range f.uses {
		t.protocols[proto]--
	}
	for _, s := range f.sets {
		t.keepSet(s.Name)
		delete(t.Sets, s.Name)
	}
	for _, c := range f.chains {
		t.dropChain(c.Name)
	}
}

func (t *tableState) dropChain(name string) {
	t.keepChain(name)
	delete(t.Chains, name)
}

// setVIP counts the uses of a VIP and says whether anybody serves it.
func (t *tableState) setVIP(addr netip.Addr, u uses) {
	before := t.vips[addr]
	t.vips[addr] = u
	if u.frontends == 0 {
		delete(t.vips, addr)
	}
	t.keep(setVIPs, addr, before.frontends > 0, u.frontends > 0)
	t.keep(setIdleVIPs, addr, before.isIdle(), u.isIdle())
}

// isIdle tells whether nobody serves an address that there is.
func (u uses) isIdle() bool { return u.frontends > 0 && u.ready == 0 }

// keep puts an address into a set, or takes it out, if it was not, or was, in it before.
func (t *tableState) keep(set string, addr netip.Addr, was, is bool) {
	switch {
	case is && !was:
		t.putElement(set, AddrKey(addr), "")
	case was && !is:
		t.deleteElement(set, AddrKey(addr))
	}
}

// finish brings what depends on the whole table up to date and appends what the
// change comes to, if somebody wants to know.
func (t *tableState) finish(f Family, box *Box, tr *Transition) {
	t.setBoxElements(f, box)
	for _, s := range staticSets {
		switch set := t.Sets[s.Name]; {
		case set == nil && t.has(s.Name):
			t.keepSet(s.Name)
			t.Sets[s.Name] = &SetContent{Set: s, Elements: Elements{}}
		case set != nil && len(set.Elements) == 0 && !t.has(s.Name):
			t.keepSet(s.Name)
			delete(t.Sets, s.Name)
		}
	}
	t.setStaticChains(f, box)
	t.preparePicks(f, box)
	if tr != nil {
		t.emit(f, tr)
	}
	// After a large change these are large.
	t.order, t.before, t.created, t.chains, t.sets = nil, nil, nil, nil, nil
}

// setStaticChains makes the chains that exist once. They are few and cheap to
// build, so all are built and compared. Chains of elements keep theirs.
func (t *tableState) setStaticChains(f Family, box *Box) {
	t.exists = len(t.Sets) > 0 || slices.ContainsFunc(box.ServiceRanges, func(p netip.Prefix) bool { return familyOf(p.Addr()) == f })
	want := map[string]Chain{}
	if t.exists {
		for _, c := range t.staticChains(f, box) {
			want[c.Name] = c
		}
	}
	for _, name := range staticChainNames {
		c, ok := want[name]
		switch {
		case ok:
			t.setChain(c)
		case t.Chains[name] != nil && t.shared[name] == 0:
			t.dropChain(name)
		}
	}
}

// preparePicks keeps the pick chains that are there before somebody uses them.
func (t *tableState) preparePicks(f Family, box *Box) {
	for n := range preparedPicks {
		name := preparedPick(n)
		switch is := t.Chains[name] != nil; {
		case !is && t.has(setBackends):
			t.setChain(sharedChain(name, f, box))
		case is && !t.has(setBackends):
			t.dropChain(name)
		}
	}
}

var staticChainNames = []string{
	chainRefuse, chainVIP, chainByClient, chainNodePort, chainNPByClient,
	chainSourceNAT, chainNPSourceNAT, chainSameInterf, chainHairpin,
	chainPrerouting, chainOutput, chainPostrouting, chainInput, chainStray, chainInvalid,
}

// emit appends the difference between the table as it was and as it is.
func (t *tableState) emit(f Family, tr *Transition) {
	if !t.exists {
		if t.existed {
			tr.Apply.Ops = append(tr.Apply.Ops, DeleteTable{f})
		}
		return
	}
	if !t.existed {
		tr.Apply.Ops = append(tr.Apply.Ops, AddTable{f})
	}
	d := tableDiff{family: f}
	for name, old := range t.sets {
		d.set(old, t.Sets[name])
	}
	for name, old := range t.chains {
		d.chain(old, t.Chains[name])
	}
	t.emitElements(&d)
	for _, x := range t.forget {
		if old := t.sets[x.set.Name]; t.Sets[x.set.Name] != nil && old != nil {
			d.forget = append(d.forget, x.op(f))
		}
	}
	for _, c := range t.caps {
		if t.Sets[c.Set.Name] != nil && t.sets[c.Set.Name] != nil {
			d.caps = append(d.caps, c)
		}
	}
	d.appendTo(tr)
}

func (t *tableState) emitElements(d *tableDiff) {
	if t.fresh {
		t.emitAll(d)
		return
	}
	for id, old := range t.before {
		s := t.Sets[id.set]
		if s == nil {
			continue // goes with its set
		}
		data, ok := s.Elements[id.key]
		if ok && data == old {
			continue
		}
		d.delete(s.Set, Element{id.key, old})
		if ok {
			d.add(s.Set, Element{id.key, data})
		}
	}
	for id := range t.created {
		if s := t.Sets[id.set]; s != nil {
			if data, ok := s.Elements[id.key]; ok {
				d.add(s.Set, Element{id.key, data})
			}
		}
	}
}

// emitAll adds every element, in the order of the Services they belong to.
func (t *tableState) emitAll(d *tableDiff) {
	for _, name := range sortedKeys(t.order) {
		s, keys := t.Sets[name], t.order[name]
		if s == nil {
			continue
		}
		if len(keys) > len(s.Elements) { // some were put several times, or are gone again
			keys = slices.Compact(slices.Sorted(slices.Values(keys)))
		}
		list := make([]Element, 0, len(keys))
		for _, key := range keys {
			if data, ok := s.Elements[key]; ok {
				list = append(list, Element{key, data})
			}
		}
		d.addAll(s.Set, list)
	}
}

func (x *forgotten) op(f Family) ForgetData {
	op := ForgetData{Family: f, Set: x.set}
	for _, ap := range x.gone {
		op.Data = append(op.Data, AddrPortData(ap))
	}
	return op
}

// sortedKeys is for output that must not depend on the order of a map.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
