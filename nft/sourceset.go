package nft

import (
	"maps"
	"slices"
	"strings"
)

// Limits of names that become names of chains and sets.
const (
	MaxSourceSetName = 24 // bytes of a name
	MaxSourceSets    = 8  // sets that a Service may name
)

func sourceSetName(name string) string { return prefixSourceSet + name }

func (s *SourceSet) definition() Set {
	return Set{Name: sourceSetName(s.Name), Key: []Type{TypeAddr}, Interval: true}
}

func (r Range) element() Element { return Element{Key: AddrKey(r.First) + AddrKey(r.Last)} }

func (s *SourceSet) elements(f Family) []Element {
	list := make([]Element, len(s.ranges[f]))
	for i, r := range s.ranges[f] {
		list[i] = r.element()
	}
	return list
}

// difference gives the elements to delete and to add to make one set into another.
func (s *SourceSet) difference(now *SourceSet, f Family) (deletes, adds []Element) {
	old, wanted := s.ranges[f], now.ranges[f]
	for len(old) > 0 || len(wanted) > 0 {
		switch {
		case len(old) > 0 && len(wanted) > 0 && old[0] == wanted[0]:
			old, wanted = old[1:], wanted[1:]
		case len(wanted) == 0 || len(old) > 0 && !wanted[0].First.Less(old[0].First):
			deletes, old = append(deletes, old[0].element()), old[1:]
		default:
			adds, wanted = append(adds, wanted[0].element()), wanted[1:]
		}
	}
	return deletes, adds
}

// useSourceSets counts the frontends of a fragment that look into a set: once more, or once less.
func (t *tableState) useSourceSets(f *fragment, by int) {
	for _, s := range f.sourceSets {
		uses := t.sourceUses[s.Name]
		if uses == nil {
			uses = map[*SourceSet]int{}
			t.sourceUses[s.Name] = uses
		}
		if uses[s] += by; uses[s] == 0 {
			delete(uses, s)
		}
		t.sourcesTouched[s.Name] = true
	}
}

// settleSourceSets makes the sets that frontends look into, and their elements, those of now.
// The work is that of reading the sets of which the content changed.
func (t *tableState) settleSourceSets(f Family) {
	for name := range t.sourcesTouched {
		var now *SourceSet
		for s := range t.sourceUses[name] {
			if now == nil || s.Version > now.Version {
				now = s
			}
		}
		was, set := t.sourceSets[name], sourceSetName(name)
		switch {
		case now == was:
			continue
		case now == nil:
			t.keepSet(set)
			delete(t.sets, set)
			delete(t.tallies, set)
			delete(t.sourceSets, name)
			delete(t.sourceUses, name)
			if t.listsDropped {
				t.setChanges = append(t.setChanges, setChange{was.definition(), was.elements(f), nil})
			}
			continue
		case was == nil:
			t.keepSet(set)
			t.sets[set] = now.definition()
			was = &SourceSet{}
		}
		t.sourceSets[name] = now
		t.tally(set).count = now.Len(f)
		if !t.discard {
			deletes, adds := was.difference(now, f)
			t.setChanges = append(t.setChanges, setChange{now.definition(), deletes, adds})
		}
	}
}

// emitSourceSets appends what settleSourceSets found.
func (t *tableState) emitSourceSets(d *tableDiff) {
	for _, c := range t.setChanges {
		if t.set(c.set.Name) == nil {
			d.dropAll(&elementChange{set: c.set, elements: c.deletes, sorted: true})
			continue
		}
		if len(c.adds) > 0 {
			d.addAll(&elementChange{set: c.set, elements: c.adds, sorted: true})
		}
		if len(c.deletes) > 0 {
			d.deleteAll(&elementChange{set: c.set, elements: c.deletes, sorted: true})
		}
	}
}

// sourceElements gives the elements of all source sets.
func (t *tableState) sourceElements(f Family, yield func(string, Element) bool) bool {
	for _, name := range slices.Sorted(maps.Keys(t.sourceSets)) {
		set := sourceSetName(name)
		for _, e := range t.sourceSets[name].elements(f) {
			if !yield(set, e) {
				return false
			}
		}
	}
	return true
}

// admission selects the clients of a frontend with source sets, in a chain that the dispatch goes
// to before it goes to by-client. Frontends of the same sets share the chain.
type admission struct {
	nodePort bool
	ranges   bool // those of allowed-sources may connect too
	setNames
}

// setNames are the names of SourceSets, sorted, each once.
type setNames struct{ allow, deny []string }

func (s *SourceSets) names() setNames {
	names := func(sets []*SourceSet) (list []string) {
		for _, s := range sets {
			list = append(list, s.Name)
		}
		slices.Sort(list)
		return slices.Compact(list)
	}
	return setNames{names(s.Allow), names(s.Deny)}
}

// chain is how they stand in the name of a chain: "office/vpn//scanners", "//scanners".
func (n setNames) chain() string {
	text := strings.Join(n.allow, "/")
	if len(n.deny) > 0 {
		text += "//" + strings.Join(n.deny, "/")
	}
	return text
}

// parseSetNames reads them back.
func parseSetNames(chain string) setNames {
	allow, deny, _ := strings.Cut(chain, "//")
	split := func(s string) []string {
		return slices.DeleteFunc(strings.Split(s, "/"), func(name string) bool { return name == "" })
	}
	return setNames{split(allow), split(deny)}
}

// admissionOf gives the admission of a frontend with source sets; ranges reports that it has elements in
// allowed-sources.
func admissionOf(fe *Frontend, ranges bool) admission {
	return admission{!fe.Addr.IsValid(), ranges, fe.Sets.names()}
}

// chain names it: "admit/office", "nodeport-admit-ranges/office/vpn//scanners", "admit///scanners".
func (a admission) chain() string {
	name := prefixAdmit
	if a.ranges {
		name = prefixAdmitRanges
	}
	if a.nodePort {
		name = qualifierNodePort + name
	}
	return name + a.setNames.chain()
}

// parseAdmission reads the name of a chain back.
func parseAdmission(chain string) (a admission, is bool) {
	chain, a.nodePort = strings.CutPrefix(chain, qualifierNodePort)
	names, is := strings.CutPrefix(chain, prefixAdmit)
	if !is {
		if names, is = strings.CutPrefix(chain, prefixAdmitRanges); !is {
			return a, false
		}
		a.ranges = true
	}
	a.setNames = parseSetNames(names)
	return a, true
}

// rules let the clients of a frontend on to by-client, or not.
//
//	chain admit-ranges/office//scanners {
//		ip saddr @source-set/scanners drop
//		ip saddr @source-set/office goto by-client
//		ip daddr . meta l4proto . th dport . ip saddr @allowed-sources goto by-client
//		drop
//	}
func (a admission) rules(box *Box) (rules []Rule) {
	maps, key := &vipMaps, frontend
	if a.nodePort {
		maps, key = &nodePortMaps, nodePort
	}
	client, on := []Field{Saddr}, GotoChain(maps.byClient)
	for _, name := range a.deny {
		rules = append(rules, append(Rule{MatchSet{Key: client, Set: sourceSetName(name)}}, box.counted(RefusedSourceRange, Verdict{Kind: Drop})...))
	}
	for _, name := range a.allow {
		rules = append(rules, Rule{MatchSet{Key: client, Set: sourceSetName(name)}, on})
	}
	if a.ranges {
		rules = append(rules, Rule{MatchSet{Key: with(key, Saddr), Set: maps.allowed}, on})
	}
	if a.ranges || len(a.allow) > 0 {
		return append(rules, box.counted(RefusedSourceRange, Verdict{Kind: Drop}))
	}
	return append(rules, Rule{on})
}

// sourceSets reads a source set of each name back, once.
func (r *recovery) sourceSets(names []string) (sets []*SourceSet) {
	for _, name := range names {
		if r.sets[name] == nil {
			r.sets[name] = RecoverSourceSet(Ruleset{r.family: r.table}, name)
		}
		if r.sets[name] != nil {
			sets = append(sets, r.sets[name])
		}
	}
	return sets
}

// RecoverSourceSet reads a source set back from a ruleset, with version 0; nil when no table has it.
// A family in which no frontend named it is empty.
func RecoverSourceSet(have Ruleset, name string) *SourceSet {
	var s *SourceSet
	for _, f := range Families {
		if have[f] == nil || have[f].Sets[sourceSetName(name)] == nil {
			continue
		}
		if s == nil {
			s = NewSourceSet(name, 0, nil)
		}
		for key := range have[f].elements(sourceSetName(name)) {
			if ends := SplitKey([]Type{TypeAddr}, f, key); len(ends) == 2 {
				s.ranges[f] = append(s.ranges[f], Range{ends[0].Addr, ends[1].Addr})
			}
		}
		slices.SortFunc(s.ranges[f], func(a, b Range) int { return a.First.Compare(b.First) })
	}
	return s
}
