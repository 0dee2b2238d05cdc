package nft

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits of the names of source sets, which become parts of names of chains and sets.
const (
	MaxSourceSetName = 24 // maximum length of a name in bytes
	MaxSourceSets    = 8  // maximum number of source sets of a Service
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

// difference returns the elements to delete and to add to change s into now.
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

// useSourceSets adds by (1 or -1) to the uses of each source set of a fragment.
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

// settleSourceSets updates the interval sets of source sets after their uses changed. It compares only the contents of source sets that were
// replaced.
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

// emitSourceSets adds the element changes recorded by settleSourceSets to d.
func (t *tableState) emitSourceSets(d *tableDiff) {
	for _, c := range t.setChanges {
		if t.set(c.set.Name) == nil {
			put(&d.dropped, &elementChange{set: c.set, elements: c.deletes, sorted: true})
			continue
		}
		if len(c.adds) > 0 {
			put(&d.adds, &elementChange{set: c.set, elements: c.adds, sorted: true})
		}
		if len(c.deletes) > 0 {
			put(&d.deletes, &elementChange{set: c.set, elements: c.deletes, sorted: true})
		}
	}
}

// sourceElements yields the elements of all source sets.
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

// admission describes a chain that checks clients against source sets, between the dispatch and by-client. Frontends with the same source sets share
// the chain.
type admission struct {
	nodePort bool
	ranges   bool // clients in allowed-sources may connect too
	setNames
}

// setNames holds the names of SourceSets, sorted and without duplicates.
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

// chain returns the part of a chain's name that lists the sets, allowed ones before "//" and denied ones after it: "office/vpn//scanners",
// "//scanners".
func (n setNames) chain() string {
	text := strings.Join(n.allow, "/")
	if len(n.deny) > 0 {
		text += "//" + strings.Join(n.deny, "/")
	}
	return text
}

// parseSetNames is the inverse of setNames.chain.
func parseSetNames(chain string) setNames {
	allow, deny, _ := strings.Cut(chain, "//")
	split := func(s string) []string {
		return slices.DeleteFunc(strings.Split(s, "/"), func(name string) bool { return name == "" })
	}
	return setNames{split(allow), split(deny)}
}

// chain returns the name of the chain of an admission: "admit/office", "nodeport-admit-ranges/office/vpn//scanners", "admit///scanners".
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

// parseAdmission is the inverse of admission.chain; false for other chains.
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

// rules returns the rules that send permitted clients on to by-client and drop the others.
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

// Admits reports whether a client may connect to a frontend, by its source ranges, its source sets and InsideOnly. It returns true if that depends on
// the interface to which the client is connected.
func (b *Box) Admits(fe *Frontend, client netip.Addr) bool {
	has := func(p netip.Prefix) bool { return p.Contains(client) }
	inside := func(i Interface) bool { return i.Inside }
	if fe.InsideOnly && !b.IsInside(client) && !slices.ContainsFunc(b.InsideSources, has) && !slices.ContainsFunc(b.Interfaces, inside) {
		return false
	}
	listed := slices.ContainsFunc(fe.Sources, has)
	if fe.Sets == nil {
		return fe.Sources == nil || listed
	}
	contains := func(s *SourceSet) bool { return s.Contains(client) }
	if slices.ContainsFunc(fe.Sets.Deny, contains) {
		return false
	}
	return listed || slices.ContainsFunc(fe.Sets.Allow, contains) || fe.Sources == nil && len(fe.Sets.Allow) == 0
}

// sourceSets recovers the source sets with the given names; equal names share one SourceSet.
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

// RecoverSourceSet reads a source set back from a ruleset, with version 0. It returns nil if no table has the set. The set is empty for a family in
// which no frontend refers to it.
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

// A Service port may be limited in the new connections that it gets, altogether and of each client,
// and in the open ones of a client. Its frontends lead to a chain that all limited ones share, so
// that others pay nothing: that one jumps to the chain of the port's own limits, and goes on to where
// the frontend would have led. All frontends of a port in a family share its limits.
//
// A client over a rate gets no answer: no connection is left behind, so the SYN that a TCP client
// sends again is checked again. A client with too many connections is refused.

// limitedSize is the maximum number of clients that each limit of a Service port counts. When the set is full, further clients are not limited.
const limitedSize = 65535

// clientRateLife is the time for which a client's rate is kept after its last new connection. It is longer than the slowest token bucket (one
// connection per minute) takes to refill.
const clientRateLife = 2 * time.Minute

// word returns the rate in the form used in chain names: "100s" for 100 per second.
func (r Rate) word() string {
	return strconv.FormatUint(uint64(r.Count), 10) + r.String()[strings.IndexByte(r.String(), '/')+1:][:1]
}

func parseRateWord(word string) (r Rate, ok bool) {
	if word == "" {
		return r, false
	}
	n, err := strconv.ParseUint(word[:len(word)-1], 10, 32)
	per := map[byte]time.Duration{'s': time.Second, 'm': time.Minute}[word[len(word)-1]]
	return Rate{uint32(n), per}, err == nil && n > 0 && per != 0
}

// chain returns the name of the chain for the limits of the port with the given ID, such as "limits-r100s-c10s-n20/default/web".
func (l Limits) chain(id string) string {
	name := prefixLimits
	if l.Rate.Count > 0 {
		name += "-r" + l.Rate.word()
	}
	if l.ClientRate.Count > 0 {
		name += "-c" + l.ClientRate.word() + prefixWord(l.ClientRatePrefix)
	}
	if l.ClientConnections > 0 {
		name += "-n" + strconv.FormatUint(uint64(l.ClientConnections), 10) + prefixWord(l.ClientConnectionsPrefix)
	}
	return name + "/" + id
}

// prefixWord returns the part of a chain or set name for the prefix length of clients, such as "-p64"; "" for whole addresses.
func prefixWord(bits uint8) string {
	if bits == 0 {
		return ""
	}
	return "-p" + strconv.Itoa(int(bits))
}

// parseLimits is the inverse of Limits.chain; false for other chains.
func parseLimits(chain string) (l Limits, id string, ok bool) {
	name, id, _ := strings.Cut(chain, "/")
	words, ok := strings.CutPrefix(name, prefixLimits+"-")
	var bits *uint8 // of the limit before
	for _, word := range strings.Split(words, "-") {
		if word == "" || !ok {
			return l, id, false
		}
		switch kind, value := word[0], word[1:]; kind {
		case 'r':
			l.Rate, ok = parseRateWord(value)
		case 'c':
			l.ClientRate, ok = parseRateWord(value)
			bits = &l.ClientRatePrefix
		case 'p':
			n, err := strconv.ParseUint(value, 10, 7)
			if bits == nil || err != nil || n == 0 {
				return l, id, false
			}
			*bits, bits = uint8(n), nil
		default:
			n, err := strconv.ParseUint(value, 10, 32)
			l.ClientConnections, ok = uint32(n), err == nil && kind == 'n'
			bits = &l.ClientConnectionsPrefix
		}
	}
	return l, id, ok
}

// addLimits adds the chain of the port's limits, and the sets of its clients. Each limit has a separate set, because existing elements of a set keep
// their limit.
//
//	chain limits-r100s-c10s-n20/default/web {
//		add @client-connections-20/default/web { ip saddr ct count over 20 } goto refuse-client
//		update @client-rates-10s/default/web { ip saddr timeout 2m limit rate over 10/second burst 10 packets } counter name "client-rate-limit" drop
//		limit rate over 100/second burst 100 packets counter name "rate-limit" drop
//	}
//
// The rate of all clients is checked last, so that connections over a limit per client do not count against it.
func (p *compiledPort) addLimits(f *fragment, box *Box) {
	l := p.Limits
	client := func(bits uint8) []Field {
		field := Saddr
		field.Bits = bits
		return []Field{field}
	}
	var rules []Rule
	if l.ClientConnections > 0 {
		set := Set{Name: prefixClientConns + strconv.FormatUint(uint64(l.ClientConnections), 10) + prefixWord(l.ClientConnectionsPrefix) + "/" + p.ID, Key: []Type{TypeAddr}, Dynamic: true, Size: limitedSize}
		f.sets = append(f.sets, set)
		f.shared = append(f.shared, chainRefuseClient)
		rules = append(rules, Rule{Update{Map: set.Name, Key: client(l.ClientConnectionsPrefix), Add: true, Connections: l.ClientConnections}, GotoChain(chainRefuseClient)})
	}
	drop := func(over Statement, reason string) {
		rules = append(rules, append(Rule{over}, box.counted(reason, Verdict{Kind: Drop})...))
	}
	if l.ClientRate.Count > 0 {
		set := Set{Name: prefixClientRates + l.ClientRate.word() + prefixWord(l.ClientRatePrefix) + "/" + p.ID, Key: []Type{TypeAddr}, Dynamic: true, Timeout: clientRateLife, Size: limitedSize}
		f.sets = append(f.sets, set)
		drop(Update{Map: set.Name, Key: client(l.ClientRatePrefix), Timeout: clientRateLife, Rate: l.ClientRate}, RefusedClientRate)
	}
	if l.Rate.Count > 0 {
		drop(Over{l.Rate}, RefusedRate)
	}
	f.chains = append(f.chains, Chain{Name: l.chain(p.ID), Rules: rules})
	f.limits++
}

// limited returns the verdict for a frontend in its dispatch map, and whether limits apply to it. If they do, it leads to the chain of limits, and
// the given verdict becomes an element of the map that this chain looks up last. Limits do not apply to a verdict that refuses or drops.
func (p *compiledPort) limited(f *fragment, to limitedMap, frontend, verdict string) (first string, limited bool) {
	if !p.Limits.Any() || !strings.HasPrefix(verdict, "goto ") || verdict == GotoChain(chainRefuse).String() {
		return verdict, false
	}
	f.elements = append(f.elements, placed{to.set, frontend, verdict})
	return GotoChain(to.chain).String(), true
}

// jumpToLimits returns the verdict that jumps to the chain of the port's limits.
func (p *compiledPort) jumpToLimits() Verdict {
	return Verdict{Kind: Jump, Chain: p.Limits.chain(p.ID)}
}

// limitedChains returns the chains that apply the limits of a frontend and then its verdict.
//
//	chain limited {
//		ip daddr . meta l4proto . th dport vmap @limited-by
//		ip daddr . meta l4proto . th dport vmap @limited-services
//	}
func (t *tableState) limitedChains() (chains []Chain) {
	for _, c := range []struct {
		key  []Field
		maps *limitedMaps
	}{{frontend, &vipMaps.limits}, {nodePort, &nodePortMaps.limits}} {
		for _, to := range []limitedMap{c.maps.inside, c.maps.outside} {
			if t.has(to.set) {
				chains = append(chains, Chain{Name: to.chain, Rules: []Rule{{VerdictMap{Key: c.key, Map: c.maps.by}}, {VerdictMap{Key: c.key, Map: to.set}}}})
			}
		}
	}
	return chains
}

// limitsRule returns the rule that applies the port's limits to the clients of a range of ports; nil if the port has no limits.
func (p *compiledPort) limitsRule() []Rule {
	if !p.Limits.Any() {
		return nil
	}
	return []Rule{{p.jumpToLimits()}}
}
