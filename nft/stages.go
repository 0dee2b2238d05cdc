package nft

// stageElements bounds the elements of one transaction when a change takes several. The kernel
// takes some 3 µs for each, during which no other program can change the ruleset.
const stageElements = 100_000

// Stages are the transactions that carry a transition out, one after the other: Apply and
// Cleanup, as far as there is something to do. A large Apply is several, of which none but
// the last one can be noticed by a packet. If that is interrupted, the rest is a
// transition like any other.
func (t *Transition) Stages() []Batch {
	var stages []Batch
	switch {
	case t.Apply.Empty():
	case t.Apply.elements() <= stageElements:
		stages = append(stages, t.Apply)
	case t.Apply.isBeginning():
		stages = t.Apply.split()
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

// isBeginning reports whether every table that a batch is about is made by it, from nothing.
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

// split cuts a batch that makes tables from nothing. The base chains come with the last part, so
// that no packet meets the parts before it.
func (b *Batch) split() []Batch {
	var early staging
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

// secondary are the maps in which nothing is looked up but what was found in another one
// before, so that elements that come early are not noticed.
var secondary = map[string]bool{
	setBackends: true, setLocalBackends: true, setNPBackends: true, setLocalNPBackends: true,
	setTables: true, setLocalTables: true, setNPTables: true, setLocalNPTables: true,
}

// ahead divides a batch: batches that add elements to secondary maps come first, the rest is the last one. A map that the batch creates,
// or deletes elements of, is left to the last.
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
	var early staging
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

// staging fills batches with at most stageElements elements each.
type staging struct {
	full []Batch
	now  Batch
	used int // elements of now
}

func (s *staging) elements(op AddElements) {
	for rest := op.Elements; len(rest) > 0; {
		n := min(stageElements-s.used, len(rest))
		s.now.Ops = append(s.now.Ops, AddElements{op.Family, op.Set, rest[:n]})
		rest, s.used = rest[n:], s.used+n
		if s.used == stageElements {
			s.full = append(s.full, s.now)
			s.now, s.used = Batch{}, 0
		}
	}
}

// then gives all batches, with another one behind them.
func (s *staging) then(last Batch) []Batch {
	if !s.now.Empty() {
		s.full = append(s.full, s.now)
	}
	return append(s.full, last)
}
