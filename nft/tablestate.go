package nft

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// tableState is the table of one family: the chains and sets that there are, how often shared
// things are used, and what the change under way has touched. It holds no elements but the few that
// describe the box: the others belong to the Service ports, and are computed again when all are
// asked for.
type tableState struct {
	sets       map[string]Set
	chains     map[string]*Chain
	counters   []string
	exists     bool                  // whether the family needs a table at all
	existed    bool                  // the same, before the change under way
	tallies    map[string]*tally     // elements, by set
	box        map[string]Elements   // the sets that describe the box
	nodeAddrs  []netip.Addr          // node-port addresses in postrouting
	sourceSets map[string]*SourceSet // those that are there
	timeouts   map[string]Timeout    // those that are there
	tells      bool                  // the elements that go with their sets are told (Transition.Dropped)
	uses
	change
}

// uses counts how often Service ports use what they share.
type uses struct {
	endpoints map[[16]byte]int32         // an element of the hairpin set
	addresses map[netip.Addr]addressUses // what is sent to
	hosted    map[string]int             // frontends that are taken from the host: node ports, and ports of its addresses
	shared    map[string]int             // shared chains
	protocols map[Protocol]int           // protocols of frontends in the maps of postrouting and answer
	// answersHere counts the Service ports whose clients are remembered by answers of the box.
	answersHere int
	// limits counts the Service ports with limits.
	limits      int
	sourceUses  map[string]map[*SourceSet]int // frontends that look into a source set, by its name
	timeoutUses map[string]int                // frontends that use a timeout, by its name
	adopters    map[string]map[string]int     // frontends that adopt an endpoint, by its key
}

// addressUses counts the users of an address that clients connect to.
type addressUses struct {
	frontends int32 // as a VIP that is wholly Services'
	named     int32 // frontends that take their port alone
	ready     int32 // those of both with endpoints
	sourceNAT int32 // frontends with an element in source-nat
	inside    int32 // frontends that only clients inside reach
	node      bool  // a node-port address, for postrouting
}

// isVIP reports whether Services have the address, or ports of it. Node ports do not answer
// there.
func (u addressUses) isVIP() bool { return u.frontends+u.named > 0 }

func newTableState() *tableState {
	return &tableState{
		sets:       map[string]Set{},
		chains:     map[string]*Chain{},
		tallies:    map[string]*tally{},
		box:        map[string]Elements{},
		sourceSets: map[string]*SourceSet{},
		timeouts:   map[string]Timeout{},
		uses: uses{
			endpoints:   map[[16]byte]int32{},
			addresses:   map[netip.Addr]addressUses{},
			hosted:      map[string]int{},
			shared:      map[string]int{},
			protocols:   map[Protocol]int{},
			sourceUses:  map[string]map[*SourceSet]int{},
			timeoutUses: map[string]int{},
			adopters:    map[string]map[string]int{},
		},
	}
}

// companions are sets that rules name for the sake of another set's elements: they
// are there, even empty, for as long as that one has any.
var companions = map[string]string{
	setNPAddresses: setNodePorts,
	setAllowed:     setRestricted,
	setNPAllowed:   setNPRestricted,
}

// has reports whether a set is to be there: it has elements, or its companion has.
func (t *tableState) has(set string) bool {
	switch set {
	case setNewcomers:
		return t.hasAffinity()
	case setInsideSources, setInsideInterfaces:
		return t.hasInsideOnly()
	}
	return t.count(set)+t.count(companions[set]) > 0
}

// hasInsideOnly reports whether anything is there that only clients inside reach.
func (t *tableState) hasInsideOnly() bool { return t.count(setInsideOnly)+t.count(setNPInsideOnly) > 0 }

func (t *tableState) setChain(c Chain) {
	t.keepChain(c.Name)
	t.chains[c.Name] = &c
}

func (t *tableState) dropChain(name string) {
	t.keepChain(name)
	delete(t.chains, name)
}

// sortedKeys is for output that must not depend on the order of a map.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// change collects what one Update changes in a table. Removals come before additions.
type change struct {
	discard        bool               // the caller wants no Transition
	fresh          bool               // nothing was there before, so nothing goes
	deleted, added map[element]string // the data of elements
	touched        map[netip.Addr]addressUses
	oldChains      map[string]*Chain // chains as they were, nil if they were not there
	oldSets        map[string]*Set
	oldCounters    []string
	forget         []forgotten
	caps           []CapTimeouts
	// sourcesTouched are the source sets that frontends came to or left, setChanges what they
	// become by that.
	sourcesTouched map[string]bool
	setChanges     []setChange
	oldTimeouts    map[string]bool // whether a timeout was there
	// oldAdopted are the frontends that endpoints were adopted for, "" for none, by their keys.
	oldAdopted map[string]string
	keeper
}

func (t *tableState) tally(set string) *tally {
	n := t.tallies[set]
	if n == nil {
		n = &tally{}
		t.tallies[set] = n
	}
	return n
}

func (t *tableState) count(set string) int {
	if n := t.tallies[set]; n != nil {
		return n.count
	}
	return 0
}

// keepSet and keepChain record a set or chain as it was before the change.
func (t *tableState) keepSet(name string) {
	if _, ok := t.oldSets[name]; ok {
		return
	}
	t.oldSets[name] = nil
	if s, ok := t.sets[name]; ok {
		t.oldSets[name] = &s
	}
}

func (t *tableState) keepChain(name string) {
	if _, ok := t.oldChains[name]; !ok {
		t.oldChains[name] = t.chains[name]
	}
}

// set is the definition of a set, nil if there is none of the name.
func (t *tableState) set(name string) *Set {
	if s, ok := t.sets[name]; ok {
		return &s
	}
	return nil
}

// element names an element of a table.
type element struct{ set, key string }

type forgotten struct {
	set       Set
	endpoints []netip.AddrPort
}

// tally counts the elements of a set.
type tally struct {
	count int
	all   []Element // in a fresh table: they themselves, in their order
}

// setChange lists the elements of a source set that go and come in one table.
type setChange struct {
	set           Set
	deletes, adds []Element
}

// content is a wanted table. Its elements are made one after the other, each once, so that they
// are never all in memory.
type content struct {
	sets     map[string]Set
	chains   map[string]*Chain
	timeouts map[string]Timeout
	counters []string
	elements iter.Seq2[string, Element] // by set; not those that packets add
	count    func(set string) int       // how many of them a set has
	sorted   bool                       // those of a set come in an order that is the same each time
}

// hasAffinity reports whether clients of any Service port are remembered.
func (t *tableState) hasAffinity() bool { return t.count(setAnswers)+t.count(setNPAnswers) > 0 }

// perProtocol looks a key with `ct original proto-dst` up, in one rule a protocol:
// nft can only read that field back behind the protocol it belongs to.
func (t *tableState) perProtocol(set string, key []Field) []Rule {
	var rules []Rule
	for _, proto := range [...]Protocol{TCP, UDP, SCTP} {
		if t.protocols[proto] > 0 {
			rules = append(rules, Rule{MatchProto{proto}, VerdictMap{Key: key, Map: set}})
		}
	}
	return rules
}
