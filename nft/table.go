package nft

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

func (t *tableState) add(f *fragment, family Family, box *Box) {
	for _, s := range f.sets {
		t.keepSet(s.Name)
		t.sets[s.Name] = s
	}
	for _, e := range f.elements {
		t.put(e)
	}
	for _, a := range f.endpoints {
		key := a.As16()
		if t.endpoints[key]++; t.endpoints[key] == 1 {
			t.put(placed{set: setHairpin, key: t.pairKey(a)})
		}
	}
	t.use(f, 1)
	for _, name := range f.shared {
		if t.shared[name]++; t.shared[name] == 1 {
			t.keepChain(name) // also the first pick, for finish
			if !isFirstPick(name) {
				t.setChain(sharedChain(name, family, box))
			}
		}
	}
	for _, c := range f.chains {
		t.setChain(c)
	}
}

func (t *tableState) remove(f *fragment) {
	for _, e := range f.elements {
		t.delete(e)
	}
	for _, a := range f.endpoints {
		key := a.As16()
		if t.endpoints[key]--; t.endpoints[key] == 0 {
			delete(t.endpoints, key)
			t.delete(placed{set: setHairpin, key: t.pairKey(a)})
		}
	}
	t.use(f, -1)
	for _, name := range f.shared {
		if t.shared[name]--; t.shared[name] == 0 {
			delete(t.shared, name)
			t.keepChain(name)
			if !isFirstPick(name) {
				t.dropChain(name)
			}
		}
	}
	for _, s := range f.sets {
		t.keepSet(s.Name)
		delete(t.sets, s.Name)
	}
	for _, c := range f.chains {
		t.dropChain(c.Name)
	}
}

// use adds by (1 or -1) to the use counts of the addresses, ports, protocols and other shared objects of a fragment.
func (t *tableState) use(f *fragment, by int32) {
	t.concerned = true
	for _, v := range f.vips {
		u := t.touch(v.addr)
		if v.named {
			u.named += by
		} else {
			u.frontends += by
		}
		if v.ready {
			u.ready += by
		}
		t.addresses[v.addr] = u
	}
	for _, a := range f.original {
		u := t.touch(a)
		u.sourceNAT += by
		t.addresses[a] = u
	}
	for _, a := range f.insideOnly {
		u := t.touch(a)
		u.inside += by
		t.addresses[a] = u
	}
	for _, key := range f.hosted {
		if t.hosted[key] += int(by); t.hosted[key] == 0 {
			delete(t.hosted, key)
		}
	}
	t.answersHere += int(by) * f.answersHere
	t.limits += int(by) * f.limits
	t.useSourceSets(f, int(by))
	t.useTimeouts(f, int(by))
	t.useAdopted(f, int(by))
	t.useEgress(f.egress, by > 0)
	for proto := range f.uses {
		t.protocols[proto] += int(by)
	}
}

// finish updates the parts that depend on the whole table and, if tr is not nil, appends the operations of the change to tr. moved reports whether
// the box may have been replaced.
func (t *tableState) finish(f Family, box *Box, moved bool, tr *Transition) {
	if !moved && !t.concerned {
		return
	}
	t.settleFrom = cmp.Or(box.SettleFrom, settleFrom)
	t.setBoxElements(f, box)
	t.settleAddresses()
	t.settleAdopted()
	t.settleEgress()
	t.setInsideElements(f, box)
	t.settleSourceSets(f)
	for _, s := range staticSets {
		switch _, is := t.sets[s.Name]; {
		case !is && t.has(s.Name):
			t.keepSet(s.Name)
			t.sets[s.Name] = s.on(box)
		case is && !t.has(s.Name):
			t.keepSet(s.Name)
			delete(t.sets, s.Name)
		}
	}
	// Which chains there are, and their rules, depends on the box, on which sets and shared chains there are, and on kinds.
	if moved || len(t.oldSets)+len(t.oldChains) > 0 || t.kinds() != t.oldKinds {
		t.setStaticChains(f, box)
		t.setTimeouts()
		t.setFlowtable(box)
		t.setCounters(box)
		t.preparePicks(f, box)
		t.prepareDraws()
	}
	if tr != nil {
		t.emit(f, tr)
	}
	for _, n := range t.tallies {
		n.all = nil
	}
	t.change.clear()
}

// kinds records properties of the Service ports in use. Chains depend on them, but they cannot be derived from the sets.
type kinds struct{ tcp, udp, sctp, answersHere, limits bool }

func (u *uses) kinds() kinds {
	return kinds{u.protocols[TCP] > 0, u.protocols[UDP] > 0, u.protocols[SCTP] > 0, u.answersHere > 0, u.limits > 0}
}

// setStaticChains updates the chains that exist once in a table. They are few, so all of them are built and compared. An unwanted chain stays as long
// as an element goes to it.
func (t *tableState) setStaticChains(f Family, box *Box) {
	t.exists = len(t.sets) > 0
	want := map[string]Chain{}
	if t.exists {
		for _, c := range t.staticChains(f, box) {
			want[c.Name] = c
		}
	}
	for _, name := range staticChainNames {
		switch c, ok := want[name]; {
		case ok:
			t.setChain(c)
		case t.chains[name] != nil && t.shared[name] == 0:
			t.dropChain(name)
		}
	}
}

// preparePicks adds the chains pick-2 to pick-N in advance of their use (see preparedPicks), and deletes them with the map.
func (t *tableState) preparePicks(f Family, box *Box) {
	for n := 2; n <= preparedPicks; n++ {
		name := pools[PoolCluster].vip.pick(n)
		switch is := t.chains[name] != nil; {
		case !is && t.has(setBackends):
			t.setChain(sharedChain(name, f, box))
		case is && !t.has(setBackends):
			t.dropChain(name)
		}
	}
}

// prepareDraws adds or deletes the chains that depend on which maps of slots exist. These are `pick-1` and, while there is a map of tables, the
// chains that draw from a table, one for each size (see preparedPicks).
func (t *tableState) prepareDraws() {
	for _, m := range allSlotMaps() {
		needed := t.shared[m.firstPick()] > 0 || m.backends == setBackends && t.has(setBackends)
		switch is := t.chains[m.firstPick()] != nil; {
		case needed:
			t.setChain(Chain{Name: m.firstPick(), Rules: t.firstPickRules(m)})
		case is:
			t.dropChain(m.firstPick())
		}
		if t.has(m.tables) == (t.chains[m.prefix+tableForms[0]] != nil) {
			continue // all forms are there, or none
		}
		for _, form := range tableForms {
			if strings.HasSuffix(form, withHoles) {
				continue // it is there while a port uses it
			}
			if t.has(m.tables) {
				t.setChain(Chain{Name: m.prefix + form, Rules: drawRules(form, m)})
			} else {
				t.dropChain(m.prefix + form)
			}
		}
	}
}

var staticChainNames = []string{
	chainRefuse, chainRefusePort, chainVIP, chainInside, chainByClient, chainNodePort, chainNPByClient,
	chainSourceNAT, chainNPSourceNAT, chainSameInterf, chainHairpin,
	chainPrerouting, chainOutput, chainPostrouting, chainStray, chainInvalid, chainRefused, chainAnswer, chainOwnAnswers, chainRefresh, chainInput,
	chainLimited, chainLimitedOutside, chainNPLimited, chainNPLimitedOutside, chainAdopt, chainEgress, chainFastAdd, chainFastBoth, chainFastPath, setUnsettled,
}

// tableState is the state of the table of one family: its chains and sets, the use counts of shared objects, and the pending change. Of the elements
// it holds only the few that describe the box. All others are computed from the Service ports when needed.
type tableState struct {
	sets         map[string]Set
	chains       map[string]*Chain
	counters     []string
	exists       bool                  // whether the family needs a table
	existed      bool                  // the value of exists before the pending change
	tallies      map[string]*tally     // counts of elements, by set
	box          map[string]Elements   // elements of the sets that describe the box
	nodeAddrs    []netip.Addr          // node-port addresses with an element in setOriginal
	sourceSets   map[string]*SourceSet // the source sets in the table, by name
	timeouts     map[string]Timeout    // the timeout objects in the table, by name
	flowtables   map[string]Flowtable  // the flowtable of the fast path, if any, by name
	wereFast     map[string]Flowtable  // the value of flowtables before the pending change
	listsDropped bool                  // record elements that are deleted together with their sets (Transition.Dropped)
	uses
	change
}

// uses counts how many Service ports or frontends use each shared object.
type uses struct {
	endpoints map[[16]byte]int32         // uses of an element in the hairpin set, by the endpoint's address
	addresses map[netip.Addr]addressUses // uses of an address by frontends
	hosted    map[string]int             // frontends on ports of the host (node ports, and ports of host addresses), by key
	shared    map[string]int             // uses of a shared chain, by name
	protocols map[Protocol]int           // frontends in the maps of postrouting and answer, by protocol
	// answersHere counts the Service ports with affinity entries that are added by replies of the box itself.
	answersHere int
	// limits counts the Service ports with limits.
	limits      int
	sourceUses  map[string]map[*SourceSet]int // frontends that refer to a source set, by its name
	timeoutUses map[Timeout]int               // frontends that use a timeout object
	adopters    map[string]map[string]int     // uses by frontends that adopt an endpoint, by the keys of the endpoint and the frontend
	egress      egressUses
}

// addressUses counts the uses of an address that clients connect to.
type addressUses struct {
	frontends int32 // frontends with the whole address for Services
	named     int32 // frontends that use only their port of the address
	ready     int32 // frontends of either kind that have endpoints
	sourceNAT int32 // frontends with an element in source-nat
	inside    int32 // frontends that only inside clients may connect to
	node      bool  // whether it is a node-port address with an element for postrouting
}

// isVIP reports whether frontends use the address or ports of it. Node ports do not answer at a VIP.
func (u addressUses) isVIP() bool { return u.frontends+u.named > 0 }

func newTableState() *tableState {
	t := &tableState{
		sets:       map[string]Set{},
		chains:     map[string]*Chain{},
		tallies:    map[string]*tally{},
		box:        map[string]Elements{},
		sourceSets: map[string]*SourceSet{},
		uses: uses{
			endpoints:   map[[16]byte]int32{},
			addresses:   map[netip.Addr]addressUses{},
			hosted:      map[string]int{},
			shared:      map[string]int{},
			protocols:   map[Protocol]int{},
			sourceUses:  map[string]map[*SourceSet]int{},
			timeoutUses: map[Timeout]int{},
			adopters:    map[string]map[string]int{},
			egress:      egressUses{map[string]map[string]bool{}, map[string]placed{}},
		},
	}
	t.change.clear()
	return t
}

// companions maps a set to its companion, another set. While the companion has elements, there are rules that refer to both sets, so the first set
// must exist even if it is empty. setIdleVIPs has a companion because the kernel walks the elements of all maps when a rule is added or removed,
// which should not delay the first Service that loses its endpoints.
var companions = map[string]string{
	setIdleVIPs:    setVIPs,
	setNPAddresses: setNodePorts,
	setBackends:    setUnsettled, // whose chain goes on to the chains with a lookup there
	setAllowed:     setRestricted,
	setNPAllowed:   setNPRestricted,
}

// has reports whether a set must exist, because it or its companion has elements.
func (t *tableState) has(set string) bool {
	switch set {
	case setNewcomers:
		return t.hasAffinity()
	case setUnsettled:
		return t.count(setUnsettled) > 0 || t.count(setBackends) > 0 && t.count(setServices) >= t.settleFrom
	case setFastOther:
		return t.hasFast()
	case setInsideSources, setInsideInterfaces:
		return t.hasInsideOnly()
	}
	return t.count(set)+t.count(companions[set]) > 0
}

// hasInsideOnly reports whether any frontend accepts inside clients only.
func (t *tableState) hasInsideOnly() bool { return t.count(setInsideOnly)+t.count(setNPInsideOnly) > 0 }

func (t *tableState) setChain(c Chain) {
	t.keepChain(c.Name)
	t.chains[c.Name] = &c
}

func (t *tableState) dropChain(name string) {
	t.keepChain(name)
	delete(t.chains, name)
}

// sortedKeys returns the keys of a map in order, so that output does not depend on the order of the map.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	if len(m) == 0 {
		return nil // most of them are
	}
	return slices.Sorted(maps.Keys(m))
}

// former holds values from before a change. concerned is set if the change affects Services of the family, unsettles if it may make frontends wait
// (see unsettled.go). settleFrom is Box.SettleFrom or its default.
type former struct {
	oldCounters []string
	oldTimeouts map[string]Timeout
	oldKinds    kinds
	concerned   bool
	large       bool // the maps of the change are not reused by the next one
	unsettles   bool
	settleFrom  int
}

// change collects the changes that one Update makes to a table. Deletions come before additions.
type change struct {
	discard        bool               // no Transition is needed
	fresh          bool               // the table was empty before, so nothing needs to be deleted
	deleted, added map[element]string // data of deleted and added elements
	touched        map[netip.Addr]addressUses
	oldChains      map[string]*Chain // previous versions of changed chains; nil for new ones
	oldSets        map[string]*Set
	former
	forget []forgotten
	caps   []CapTimeouts
	// sourcesTouched holds the names of source sets with changed uses; setChanges holds the resulting changes of elements.
	sourcesTouched map[string]bool
	setChanges     []setChange
	// oldAdopted holds, by endpoint, the frontend that an endpoint was adopted for before the change; "" for none.
	oldAdopted map[string]string
	keeper
}

// clear resets a change, except for forget and caps, which Adopt reads later.
func (c *change) clear() {
	if c.large || c.deleted == nil {
		c.deleted, c.added, c.touched = map[element]string{}, map[element]string{}, map[netip.Addr]addressUses{}
	}
	clear(c.deleted)
	clear(c.added)
	clear(c.touched)
	*c = change{
		forget: c.forget, caps: c.caps, deleted: c.deleted, added: c.added, touched: c.touched, oldChains: map[string]*Chain{}, oldSets: map[string]*Set{},
		sourcesTouched: map[string]bool{}, oldAdopted: map[string]string{},
	}
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

// keepSet records the version of a set from before the change; keepChain does the same for a chain.
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

// set returns the definition of a set, or nil if no set has the name.
func (t *tableState) set(name string) *Set {
	if s, ok := t.sets[name]; ok {
		return &s
	}
	return nil
}

// element identifies an element of a table by set and key.
type element struct{ set, key string }

type forgotten struct {
	set       Set
	endpoints []netip.AddrPort
}

// tally counts the elements of a set. For a table that was empty before the change, it also records them.
type tally struct {
	count int
	all   []Element // the elements in order, if the table was empty before the change
}

// setChange lists the deleted and added elements of a source set in one table.
type setChange struct {
	set           Set
	deletes, adds []Element
}

// content is the wanted content of a table. Its elements are generated one by one, so that they are never all in memory.
type content struct {
	sets       map[string]Set
	chains     map[string]*Chain
	timeouts   map[string]Timeout
	flowtables map[string]Flowtable
	counters   []string
	elements   iter.Seq2[string, Element] // yields the name of a set and an element, without the elements that packets add
	counts     map[string]int             // number of elements by set
	sorted     bool                       // the order of a set's elements is deterministic
}

// hasAffinity reports whether any Service port has session affinity.
func (t *tableState) hasAffinity() bool { return t.count(setAnswers)+t.count(setNPAnswers) > 0 }

// perProtocol returns one rule for each protocol that looks up a key with `ct original proto-dst`. nft can read that field back only after a match of
// its protocol.
func (t *tableState) perProtocol(set string, key []Field) []Rule {
	var rules []Rule
	for _, proto := range [...]Protocol{TCP, UDP, SCTP} {
		if t.protocols[proto] > 0 {
			rules = append(rules, Rule{MatchProto{proto}, VerdictMap{Key: key, Map: set}})
		}
	}
	return rules
}

// Set is the definition of a set or, if Data is not nil, of a map.
type Set struct {
	Name     string
	Key      []Type
	Data     []Type        // nil for a set; {TypeVerdict} for a verdict map
	Interval bool          // keys are ranges; see Elements
	Timeout  time.Duration // default timeout of elements; 0 if elements cannot expire
	Dynamic  bool          // packets add the elements, so From does not change them
	Size     uint32        // maximum number of elements; 0 means no limit
	Counted  bool          // each element has a counter of the packets that matched it
}

// Elements maps the keys of a set's elements to their data ("" for sets), as bytes in the form that the kernel holds. In a concatenation every field
// is padded to a multiple of 4 bytes. The data of a verdict map is the text of the verdict (Verdict.String). The key of an interval set is the first
// key of the range followed by the last one, both inclusive and of the same length; ranges of a set never overlap.
type Elements map[string]string

// elementsOf returns the elements of a set with ranges.
func elementsOf(ranges []Range) Elements {
	elements := make(Elements, len(ranges))
	for _, r := range ranges {
		elements[r.element().Key] = ""
	}
	return elements
}

// SetContent is a set with its elements.
type SetContent struct {
	Set
	Elements Elements
}

// Hook is a netfilter hook of a base chain.
type Hook uint8

const (
	HookNone Hook = iota // not a base chain
	HookPrerouting
	HookInput
	HookForward
	HookOutput
	HookPostrouting
)

// The priorities of NAT chains (netfilter's NF_IP_PRI_NAT_DST and NF_IP_PRI_NAT_SRC).
const (
	PriorityDstNAT = -100
	PrioritySrcNAT = 100
)

// PriorityStray is the priority of the filter chain for packets without a connection: after the NAT
// chains, which do not see such packets.
const PriorityStray = PriorityDstNAT + 10

// Chain is a list of rules. Every base chain has the policy accept.
type Chain struct {
	Name     string
	Hook     Hook
	Priority int
	Filter   bool // a base chain of type filter, which sees every packet; the others are of type nat
	Rules    []Rule
	// Marks are the marks (Rule.Mark) of the rules of a chain read from the kernel, which does not return Rules. The mark of another program's rule
	// is 0.
	Marks []uint64
}

// Table is the ruleset of one family.
type Table struct {
	Sets   map[string]*SetContent
	Chains map[string]*Chain
	// Timeouts are the timeout objects, by name. An object read from the kernel that this product could not have made is the zero Timeout.
	Timeouts map[string]Timeout
	// Flowtables are the flowtables, by name.
	Flowtables map[string]Flowtable
	// Counters are the names of the counters that rules use, sorted.
	Counters []string
}

// TableName is the name of our table in both families.
const TableName = "svcctl"

// Ruleset holds the product's tables, one for each family. A family without a table is absent or nil.
type Ruleset map[Family]*Table
