package forecast

import (
	"cmp"
	"slices"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/nft"
)

// Tables lists what a transition of the Compiler of a nft.Fork changes, in the order of nft.Families, the parts of a
// table by their names.
func Tables(tr *nft.Transition, p nft.Printer) []wire.PlannedTable {
	all := tables{printer: p, of: map[nft.Family]*table{}}
	for _, batch := range []nft.Batch{tr.Apply, tr.Cleanup} {
		for _, op := range batch.Ops {
			all.take(op)
		}
	}
	for _, dropped := range tr.Dropped {
		all.elements(dropped.Family, &dropped.Set, dropped.Elements, false)
	}
	list := []wire.PlannedTable{}
	for _, f := range nft.Families {
		if t := all.of[f]; t != nil {
			list = append(list, t.planned(f, p))
		}
	}
	return list
}

// tables collects the operations by what they are about.
type tables struct {
	printer nft.Printer
	of      map[nft.Family]*table
}

type table struct {
	did            string
	sets           map[string]*set
	chains, others map[string]*wire.PlannedChain
}

// set has what changes of a set: elements by their keys.
type set struct {
	did        string
	definition nft.Set
	gone, come map[string]nft.Element
	order      []string // of the keys
	forgotten  []string
	capped     wire.Duration
}

func (a *tables) table(f nft.Family) *table {
	t := a.of[f]
	if t == nil {
		t = &table{sets: map[string]*set{}, chains: map[string]*wire.PlannedChain{}, others: map[string]*wire.PlannedChain{}}
		a.of[f] = t
	}
	return t
}

func (t *table) set(name string) *set {
	s := t.sets[name]
	if s == nil {
		s = &set{gone: map[string]nft.Element{}, come: map[string]nft.Element{}}
		t.sets[name] = s
	}
	return s
}

// named notes what happens to a chain, or to anything else that has a name. A new one stays new, and one that is emptied
// to be deleted is deleted.
func named(in map[string]*wire.PlannedChain, name, did string) *wire.PlannedChain {
	c := in[name]
	if c == nil {
		c = &wire.PlannedChain{Name: name, Did: did}
		in[name] = c
	}
	if did == wire.Deleted {
		c.Did, c.Rules = did, nil
	}
	return c
}

// take takes one operation.
func (a *tables) take(op nft.Op) {
	switch op := op.(type) {
	case nft.AddTable:
		a.table(op.Family).did = wire.Added
	case nft.DeleteTable:
		a.table(op.Family).did = wire.Deleted
	case nft.AddCounter:
		named(a.table(op.Family).others, "counter "+op.Name, wire.Added)
	case nft.DeleteCounter:
		named(a.table(op.Family).others, "counter "+op.Name, wire.Deleted)
	case nft.AddTimeout:
		named(a.table(op.Family).others, "ct timeout "+op.Timeout.Name(), wire.Added)
	case nft.DeleteTimeout:
		named(a.table(op.Family).others, "ct timeout "+op.Name, wire.Deleted)
	case nft.AddSet:
		s := a.table(op.Family).set(op.Set.Name)
		s.did, s.definition = wire.Added, op.Set
	case nft.DeleteSet:
		a.table(op.Family).set(op.Name).did = wire.Deleted
	case nft.AddChain:
		named(a.table(op.Family).chains, op.Chain.Name, wire.Added)
	case nft.SetRules:
		c := named(a.table(op.Family).chains, op.Chain, wire.Changed)
		c.Rules = nil
		for _, r := range op.Rules {
			c.Rules = append(c.Rules, r.Text(op.Family))
		}
	case nft.DeleteChain:
		named(a.table(op.Family).chains, op.Name, wire.Deleted)
	case nft.AddElements:
		a.elements(op.Family, &op.Set, op.Elements, true)
	case nft.DeleteElements:
		a.elements(op.Family, &op.Set, op.Elements, false)
	case nft.ForgetData:
		s := a.table(op.Family).set(op.Set.Name)
		s.definition = op.Set
		for _, data := range op.Data {
			s.forgotten = append(s.forgotten, a.printer.Data(op.Set, op.Family, data))
		}
	case nft.CapTimeouts:
		s := a.table(op.Family).set(op.Set.Name)
		s.definition, s.capped = op.Set, wire.Duration(op.Timeout)
	default:
		panic("forecast: operation of no kind")
	}
}

// elements notes elements that come or go.
func (a *tables) elements(f nft.Family, in *nft.Set, elements []nft.Element, come bool) {
	s := a.table(f).set(in.Name)
	s.definition = *in
	for _, e := range elements {
		_, goes := s.gone[e.Key]
		if _, comes := s.come[e.Key]; !goes && !comes {
			s.order = append(s.order, e.Key)
		}
		if come {
			s.come[e.Key] = e
		} else {
			s.gone[e.Key] = e
		}
	}
}

// planned returns the table for the answer.
func (t *table) planned(f nft.Family, p nft.Printer) wire.PlannedTable {
	out := wire.PlannedTable{Family: f.String(), Did: t.did, Sets: []wire.PlannedSet{}}
	for name, s := range t.sets {
		out.Sets = append(out.Sets, s.planned(name, f, p))
	}
	slices.SortFunc(out.Sets, func(a, b wire.PlannedSet) int { return cmp.Compare(a.Name, b.Name) })
	out.Chains, out.Others = sorted(t.chains), sorted(t.others)
	return out
}

func sorted(chains map[string]*wire.PlannedChain) (list []wire.PlannedChain) {
	for _, c := range chains {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b wire.PlannedChain) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func (s *set) planned(name string, f nft.Family, p nft.Printer) wire.PlannedSet {
	out := wire.PlannedSet{Name: name, Did: s.did, Forgotten: s.forgotten, Capped: s.capped}
	text := func(e nft.Element) string { return p.Element(s.definition, f, e) }
	slices.Sort(s.order)
	for _, key := range s.order {
		gone, goes := s.gone[key]
		come, comes := s.come[key]
		switch {
		case !goes:
			out.Added = append(out.Added, text(come))
		case !comes:
			out.Removed = append(out.Removed, text(gone))
		default:
			out.Changed = append(out.Changed, wire.ElementChange{From: text(gone), To: text(come)})
		}
	}
	return out
}
