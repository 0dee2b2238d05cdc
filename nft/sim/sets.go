package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"svcctl.io/svcctl/nft"
)

// defaultDynamicSize is the size of a dynamic set that was declared without one
// (nft_dynset_init).
const defaultDynamicSize = 65535

type setID struct {
	family nft.Family
	name   string
}

// memory is an element that a packet added to a dynamic set.
type memory struct {
	data    string
	expires time.Time // zero: never
}

func (m memory) live(now time.Time) bool { return m.expires.IsZero() || now.Before(m.expires) }

// A lesson is an element that the rules add to a set for a packet. It is added after the packet has passed.
type lesson struct {
	set setID
	key string
	memory
}

func (h *Host) remember(lessons []lesson) {
	for _, l := range lessons {
		if h.learnt == nil {
			h.learnt = make(map[setID]map[string]memory)
		}
		if h.learnt[l.set] == nil {
			h.learnt[l.set] = make(map[string]memory)
		}
		h.learnt[l.set][l.key] = l.memory
	}
}

// Learnt returns the elements that packets have added to a set and that have not expired
// at the time of the last Send.
func (h *Host) Learnt(family nft.Family, set string) nft.Elements {
	elements := make(nft.Elements)
	for key, m := range h.learnt[setID{family, set}] {
		if m.live(h.clock) {
			elements[key] = m.data
		}
	}
	return elements
}

// Forget applies the operation to the elements that packets have added.
func (h *Host) Forget(op nft.ForgetData) {
	for key, m := range h.learnt[setID{op.Family, op.Set.Name}] {
		if slices.Contains(op.Data, m.data) {
			delete(h.learnt[setID{op.Family, op.Set.Name}], key)
		}
	}
}

func (f *flow) set(name string) *nft.SetContent {
	s := f.table.Sets[name]
	if s == nil {
		panic(fmt.Sprintf("sim: table %s has no set %s", f.family, name))
	}
	return s
}

// found is an element that a lookup found, with its set; without one there is none.
type found struct {
	nft.Element
	set *nft.SetContent
}

// lookup finds the element for the current values of fields.
func (f *flow) lookup(name string, fields []nft.Field) (found, bool) {
	s, key := f.set(name), f.key(fields)
	e, ok := f.element(s, key)
	if !ok {
		return found{}, false
	}
	return found{e, s}, true
}

func (f *flow) element(s *nft.SetContent, key string) (nft.Element, bool) {
	if s.Interval {
		return f.rangeWith(s, key)
	}
	if data, ok := s.Elements[key]; ok {
		return nft.Element{Key: key, Data: data}, true
	}
	if m, ok := f.recall(setID{f.family, s.Name}, key); ok {
		return nft.Element{Key: key, Data: m.data}, true
	}
	return nft.Element{}, false
}

// rangeWith finds the interval that contains a key: every field lies between those of
// both ends.
func (f *flow) rangeWith(s *nft.SetContent, key string) (nft.Element, bool) {
	values := nft.SplitKey(s.Key, f.family, key)
	for ends, data := range s.Elements {
		if e := nft.SplitKey(s.Key, f.family, ends); within(values, e[:len(values)], e[len(values):]) {
			return nft.Element{Key: ends, Data: data}, true
		}
	}
	return nft.Element{}, false
}

func within(values, first, last []nft.Value) bool {
	for i, v := range values {
		if v.Addr.Compare(first[i].Addr) < 0 || v.Addr.Compare(last[i].Addr) > 0 ||
			v.Num < first[i].Num || v.Num > last[i].Num {
			return false
		}
	}
	return true
}

// recall finds an element that this packet or an earlier one added.
func (f *flow) recall(set setID, key string) (memory, bool) {
	for _, l := range slices.Backward(f.learnt) {
		if l.set == set && l.key == key {
			return l.memory, l.live(f.host.clock)
		}
	}
	m, ok := f.host.learnt[set][key]
	return m, ok && m.live(f.host.clock)
}

// learn adds an element, or restarts the timeout of an existing one, whose data stays as
// it was (nft_rhash_update). It returns false if the set is full.
func (f *flow) learn(u nft.Update) bool {
	s, key, id := f.set(u.Map), f.key(u.Key), setID{f.family, u.Map}
	data := f.key(u.Data)
	if _, ok := s.Elements[key]; ok {
		return true
	}
	if old, ok := f.recall(id, key); ok && u.Add {
		return true
	} else if ok {
		data = old.data
	} else if f.full(s, id) {
		return false
	}
	m := memory{data: data}
	if life := cmp.Or(u.Timeout, s.Timeout); life > 0 {
		m.expires = f.host.clock.Add(life)
	}
	f.learnt = append(f.learnt, lesson{id, key, m})
	return true
}

// unlearn forgets an element. It is false when there is none.
func (f *flow) unlearn(d nft.Delete) bool {
	key, id := f.key(d.Key), setID{f.family, d.Set}
	_, ok := f.recall(id, key)
	f.learnt = slices.DeleteFunc(f.learnt, func(l lesson) bool { return l.set == id && l.key == key })
	if _, known := f.host.learnt[id][key]; known {
		f.learnt = append(f.learnt, lesson{id, key, memory{expires: f.host.clock}}) // not live any more
	}
	return ok
}

// full reports whether a set has no room. The kernel also counts expired elements until
// it collects them, a moment later.
func (f *flow) full(s *nft.SetContent, id setID) bool {
	size := cmp.Or(int(s.Size), defaultDynamicSize)
	n := len(s.Elements)
	for _, m := range f.host.learnt[id] {
		if m.live(f.host.clock) {
			n++
		}
	}
	for _, l := range f.learnt {
		if m, ok := f.host.learnt[id][l.key]; l.set == id && (!ok || !m.live(f.host.clock)) {
			n++
		}
	}
	return n >= size
}

// limits hold what the packets of Send have used of limits: by chain or set, and of a set by key.
type limits struct {
	buckets map[limited]bucket
	open    map[limited]uint32 // connections, none of which is closed
}

type limited struct {
	family    nft.Family
	name, key string
}

// bucket holds the time that new connections may still take, as the kernel's does (nft_limit.c): each
// takes the period of the rate divided by its count.
type bucket struct {
	left time.Duration
	at   time.Time
}

// overRate reports whether a new connection is over a rate, and takes its part if it is not.
func (f *flow) overRate(name, key string, r nft.Rate) bool {
	if !f.sent || f.isReset {
		return false
	}
	l, id, now := &f.host.limits, limited{f.family, name, key}, f.host.clock
	each := r.Per / time.Duration(r.Count)
	full := each * time.Duration(r.Burst())
	b, used := l.buckets[id]
	if !used {
		b = bucket{full, now}
	}
	b.left, b.at = min(full, b.left+now.Sub(b.at)), now
	over := b.left < each
	if !over {
		b.left -= each
	}
	if l.buckets == nil {
		l.buckets = map[limited]bucket{}
	}
	l.buckets[id] = b
	return over
}

// overConnections reports whether a client has as many open connections as it may. If it has not, this
// one is counted, provided that it is delivered.
func (f *flow) overConnections(name, key string, most uint32) bool {
	if !f.sent || f.isReset {
		return false
	}
	id := limited{f.family, name, key}
	if f.host.limits.open[id] >= most {
		return true
	}
	f.opens = append(f.opens, id)
	return false
}

// opened counts the connections of a packet that was delivered.
func (l *limits) opened(ids []limited) {
	if l.open == nil {
		l.open = map[limited]uint32{}
	}
	for _, id := range ids {
		l.open[id]++
	}
}
