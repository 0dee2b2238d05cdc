package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// affinityLife is the default life of an affinity entry: Kubernetes' maximum of
// sessionAffinityConfig.clientIP.timeoutSeconds. The entries that packets make
// carry the Service's own timeout, so a change of it needs no new map.
const affinityLife = 24 * time.Hour

// newcomerLife is the time for which a client without an affinity entry is sent to the same endpoint again while that has not answered. It is longer
// than an answer takes, and as short as the first retransmission of a SYN (RFC 6298), so that the next try of a client that gave up picks again.
const newcomerLife = time.Second

// affinitySize bounds the clients remembered for a Service port. When the map is
// full new clients are still balanced, they are only not remembered.
const affinitySize = 65535

var (
	keyFrontend  = []Type{TypeAddr, TypeProto, TypeService}
	keyNodePort  = []Type{TypeProto, TypeService}
	dataEndpoint = []Type{TypeAddr, TypeService}
	dataVerdict  = []Type{TypeVerdict}

	// frontend has the fields that identify the frontend of a packet, nodePort those for a node port.
	frontend = []Field{Daddr, L4Proto, Dport}
	nodePort = []Field{L4Proto, Dport}
	// originalFrontend and originalNodePort have the fields of the original destination of a connection; they follow MatchProto.
	originalFrontend = []Field{OriginalDaddr, L4Proto, OriginalDport}
	originalNodePort = []Field{L4Proto, OriginalDport}
)

func with[T any](list []T, more ...T) []T { return append(list[:len(list):len(list)], more...) }

// staticSets defines every set that is not a Service port's own.
var staticSets = append(slices.Concat(egressSets, fastSets), []Set{
	{Name: setServices, Key: keyFrontend, Data: dataVerdict},
	{Name: setInsideServices, Key: keyFrontend, Data: dataVerdict},
	{Name: setOutsideServices, Key: keyFrontend, Data: dataVerdict},
	{Name: setBackends, Key: with(keyFrontend, TypeSlot), Data: dataEndpoint},
	{Name: setLocalBackends, Key: with(keyFrontend, TypeSlot), Data: dataEndpoint},
	{Name: setNodePorts, Key: keyNodePort, Data: dataVerdict},
	{Name: setInsideNodePorts, Key: keyNodePort, Data: dataVerdict},
	{Name: setOutsideNodePorts, Key: keyNodePort, Data: dataVerdict},
	{Name: setNPBackends, Key: with(keyNodePort, TypeSlot), Data: dataEndpoint},
	{Name: setLocalNPBackends, Key: with(keyNodePort, TypeSlot), Data: dataEndpoint},
	{Name: setTables, Key: with(keyFrontend, TypeSlot), Data: dataEndpoint},
	{Name: setLocalTables, Key: with(keyFrontend, TypeSlot), Data: dataEndpoint},
	{Name: setNPTables, Key: with(keyNodePort, TypeSlot), Data: dataEndpoint},
	{Name: setLocalNPTables, Key: with(keyNodePort, TypeSlot), Data: dataEndpoint},
	{Name: setPortRanges, Key: keyFrontend, Data: dataVerdict, Interval: true},
	{Name: setOpenPortRanges, Key: keyFrontend, Interval: true},
	{Name: setRangeSourceNAT, Key: keyFrontend, Data: dataVerdict, Interval: true},
	{Name: setIdleVIPs, Key: []Type{TypeAddr}},
	{Name: setNPAddresses, Key: []Type{TypeAddr}},
	{Name: setVIPs, Key: []Type{TypeAddr}},
	{Name: setUnsettled, Key: with(keyFrontend, TypeSlot)},
	{Name: setOpenNodePorts, Key: keyNodePort},
	{Name: setOpenPorts, Key: keyFrontend},
	{Name: setLimitedBy, Key: keyFrontend, Data: dataVerdict},
	{Name: setLimited, Key: keyFrontend, Data: dataVerdict},
	{Name: setLimitedOutside, Key: keyFrontend, Data: dataVerdict},
	{Name: setNPLimitedBy, Key: keyNodePort, Data: dataVerdict},
	{Name: setNPLimited, Key: keyNodePort, Data: dataVerdict},
	{Name: setNPLimitedOutside, Key: keyNodePort, Data: dataVerdict},
	{Name: setOwned, Key: []Type{TypeAddr}, Interval: true},
	{Name: setInternalSources, Key: []Type{TypeAddr}, Interval: true},
	{Name: setAdopted, Key: dataEndpoint, Data: dataEndpoint},
	{Name: setOriginal, Key: []Type{TypeAddr}, Data: dataVerdict},
	{Name: setSourceNAT, Key: keyFrontend, Data: dataVerdict},
	{Name: setNPSourceNAT, Key: keyNodePort, Data: dataVerdict},
	{Name: setAnswers, Key: keyFrontend, Data: dataVerdict},
	{Name: setNPAnswers, Key: keyNodePort, Data: dataVerdict},
	{Name: setRefresh, Key: keyFrontend, Data: dataVerdict},
	{Name: setNPRefresh, Key: keyNodePort, Data: dataVerdict},
	{Name: setOwnIdle, Key: keyFrontend, Data: dataVerdict},
	{Name: setNPOwnIdle, Key: keyNodePort, Data: dataVerdict},
	{Name: setNewcomers, Key: []Type{TypeAddr}, Timeout: newcomerLife, Dynamic: true, Size: affinitySize},
	{Name: setHairpin, Key: []Type{TypeAddr, TypeAddr}},
	{Name: setSameInterface, Key: []Type{TypeIface, TypeIface}},
	{Name: setOnLink, Key: []Type{TypeIface, TypeAddr}, Interval: true},
	{Name: setRestricted, Key: keyFrontend},
	{Name: setAllowed, Key: with(keyFrontend, TypeAddr), Interval: true},
	{Name: setNPRestricted, Key: keyNodePort},
	{Name: setNPAllowed, Key: with(keyNodePort, TypeAddr), Interval: true},
	{Name: setInsideOnly, Key: []Type{TypeAddr}},
	{Name: setNPInsideOnly, Key: keyNodePort},
	{Name: setInsideSources, Key: []Type{TypeAddr}, Interval: true},
	{Name: setInsideInterfaces, Key: []Type{TypeIface}},
}...)

// A slotMaps names the maps of a pool's endpoints for frontends of a kind (VIPs or node ports), and
// the prefix of the chains that pick from them.
type slotMaps struct {
	backends, tables string
	prefix           string // of the chains pick-N, weigh-M, hash-M and source-M
	key              []Field
}

// poolNames has the names of the maps and chains of a pool.
type poolNames struct {
	vip, nodePort slotMaps
	qualifier     string
}

var pools = [NumPools]poolNames{
	PoolCluster: {
		slotMaps{setBackends, setTables, "", frontend},
		slotMaps{setNPBackends, setNPTables, "nodeport-", nodePort}, "",
	},
	PoolLocal: {
		slotMaps{setLocalBackends, setLocalTables, "local-", frontend},
		slotMaps{setLocalNPBackends, setLocalNPTables, "local-nodeport-", nodePort}, "-local",
	},
}

// of returns the maps that a frontend's clients pick from.
func (p *poolNames) of(fe *Frontend) *slotMaps {
	if fe.Addr.IsValid() {
		return &p.vip
	}
	return &p.nodePort
}

// allSlotMaps returns the maps of all pools, for VIPs and for node ports.
func allSlotMaps() (all []*slotMaps) {
	for pool := range NumPools {
		all = append(all, &pools[pool].vip, &pools[pool].nodePort)
	}
	return all
}

// isFirstPick reports whether a chain is `pick-1` of some pool, which tableState makes:
// its rules depend on which maps exist.
func isFirstPick(name string) bool {
	return slices.ContainsFunc(allSlotMaps(), func(m *slotMaps) bool { return name == m.firstPick() })
}

// fewInternalSources bounds the prefixes that a rule names itself. Comparing a prefix costs a
// packet a third of a lookup in an interval set.
const fewInternalSources = 3

// insideClients returns matches, exactly one of which matches a client that is an internal source. client is Saddr, or Daddr of packets to the
// client.
func insideClients(f Family, box *Box, client Field) (matches []Statement) {
	prefixes := mergedPrefixes(box.InternalSources, f)
	if len(prefixes) > fewInternalSources {
		return []Statement{MatchSet{Key: []Field{client}, Set: setInternalSources}}
	}
	for _, p := range prefixes {
		matches = append(matches, MatchPrefix{Field: client, Prefix: p})
	}
	return matches
}

// outsideClients matches clients that are no internal source; without internal sources it matches
// all.
func outsideClients(f Family, box *Box) Rule {
	return outside(mergedPrefixes(box.InternalSources, f), Saddr, setInternalSources)
}

// outside returns a match of addresses in none of the prefixes; if they are too many for a rule, it looks into the set with their ranges.
func outside(prefixes []netip.Prefix, address Field, set string) Rule {
	if len(prefixes) > fewInternalSources {
		return Rule{MatchSet{Key: []Field{address}, Set: set, Negate: true}}
	}
	rule := make(Rule, 0, len(prefixes)+2) // with room for what follows
	for _, p := range prefixes {
		rule = append(rule, MatchPrefix{Field: address, Prefix: p, Negate: true})
	}
	return rule
}

// preparedPicks is the largest N whose chain pick-N exists as soon as the map `backends` does. The kernel looks at every element of a map when a
// chain that looks into it is new, so a Service that gets one endpoint more should find the chain for it. While the map is empty that costs nothing.
const preparedPicks = 8

// pick returns the name of the chain that picks one of n slots; firstPick that of pick-1, for the first slot.
func (m *slotMaps) pick(n int) string { return m.prefix + chainPick + strconv.Itoa(n) }
func (m *slotMaps) firstPick() string { return m.pick(1) }

// pickRules returns the rules that choose a slot and translate to its endpoint. A packet looks up its frontend in one map and its slot in
// another, and a change may fall between the two: then the slot may be gone, while the first slot exists as long as the frontend has any.
// If it has none any more, the client is refused. firstPickRules looks into the tables as well, if there are any: the frontend may have
// changed its kind in between.
//
//	chain pick-5 {
//		dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 5 map @backends
//		goto pick-1
//	}
//	chain pick-1 {
//		dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 1 map @backends
//		dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 1 map @tables
//		goto refuse
//	}
func pickRules(name string) []Rule {
	for _, m := range allSlotMaps() {
		if n, is := strings.CutPrefix(name, m.prefix+chainPick); is {
			return []Rule{{DNAT{Key: with(m.key, numgenOf(n)), Map: m.backends}}, {GotoChain(m.firstPick())}}
		}
		if form := strings.TrimPrefix(name, m.prefix); strings.HasSuffix(form, withHoles) && slices.Contains(tableForms, form) {
			return drawRules(form, m)
		}
	}
	panic("nft: no shared chain is called " + name)
}

// firstPickRules returns the rules of `pick-1`.
func (t *tableState) firstPickRules(m *slotMaps) (rules []Rule) {
	for _, set := range []string{m.backends, m.tables} {
		if t.has(set) {
			rules = append(rules, Rule{DNAT{Key: with(m.key, Numgen(1)), Map: set}})
		}
	}
	return append(rules, Rule{GotoChain(chainRefuse)})
}

func numgenOf(n string) Field {
	mod, err := strconv.ParseUint(n, 10, 32)
	if err != nil {
		panic(fmt.Sprintf("nft: pick chain of %q slots: %v", n, err))
	}
	return Numgen(uint32(mod))
}

// The sets and maps of a table. A set exists while it has elements, and so does the rule that looks
// into it: no packet pays for a feature that no Service uses.
const (
	setServices         = "services"                 // VIP frontend : verdict
	setInsideServices   = "inside-services"          // VIP frontend : verdict for inside clients, where the client matters
	setOutsideServices  = "outside-services"         // the same for outside clients, where they have another route
	setBackends         = "backends"                 // frontend . slot : endpoint, cluster pools
	setLocalBackends    = "local-backends"           // frontend . slot : endpoint, local pools
	setNodePorts        = "nodeports"                // node port : verdict
	setInsideNodePorts  = "inside-nodeports"         // node port : verdict for inside clients, where the client matters
	setOutsideNodePorts = "outside-nodeports"        // the same for outside clients
	setNPBackends       = "nodeport-backends"        // node port . slot : endpoint, cluster pools
	setLocalNPBackends  = "local-nodeport-backends"  // node port . slot : endpoint, local pools
	setVIPs             = "vips"                     // the addresses that Services are reached by
	setOwned            = "owned"                    // ranges of addresses that are for Services alone
	setIdleVIPs         = "idle-vips"                // VIPs without an endpoint
	setNPAddresses      = "nodeport-addresses"       // the addresses on which node ports answer
	setInternalSources  = "internal-sources"         // prefixes of inside clients, where they are too many for a rule
	setOriginal         = "original-addresses"       // original address : verdict in postrouting
	setSourceNAT        = "source-nat"               // original frontend : verdict in postrouting
	setNPSourceNAT      = "nodeport-source-nat"      // original node port : verdict in postrouting
	setAnswers          = "answers"                  // original frontend : verdict for an endpoint's first answer
	setNPAnswers        = "nodeport-answers"         // original node port : verdict for an endpoint's first answer
	setRefresh          = "refresh"                  // original frontend : verdict for every answer, of affinity that is refreshed
	setNPRefresh        = "nodeport-refresh"         // the same of original node ports
	setNewcomers        = "newcomers"                // clients that no affinity map had, for newcomerLife
	setHairpin          = "hairpin"                  // endpoint . the same endpoint
	setSameInterface    = "same-interface"           // interface . the same interface
	setOnLink           = "on-link"                  // interface . addresses of its segment
	setRestricted       = "restricted"               // frontends with source ranges
	setAllowed          = "allowed-sources"          // frontend . clients that may connect
	setNPRestricted     = "restricted-nodeports"     // node ports with source ranges
	setNPAllowed        = "allowed-nodeport-sources" // node port . clients that may connect
	setInsideOnly       = "inside-only"              // addresses that only clients inside reach
	setNPInsideOnly     = "inside-only-nodeports"    // node ports that only clients inside reach
	setInsideSources    = "inside-sources"           // prefixes of clients that reach inside-only addresses and node ports
	setInsideInterfaces = "inside-interfaces"        // interfaces whose clients all reach them
	setTables           = "tables"                   // frontend . slot : endpoint, of tables by weights or hashes, cluster pools
	setLocalTables      = "local-tables"             // the same, local pools
	setNPTables         = "nodeport-tables"          // node port . slot : endpoint, cluster pools
	setLocalNPTables    = "local-nodeport-tables"    // the same, local pools
)

// The chains that many elements or rules go to.
const (
	chainRefuse      = "refuse"
	chainVIP         = "vip"
	chainInside      = "inside"
	chainNodePort    = "nodeport"
	chainByClient    = "by-client"
	chainNPByClient  = "nodeport-by-client"
	chainSourceNAT   = "source-nat"
	chainNPSourceNAT = "nodeport-source-nat"
	chainSameInterf  = "same-interface"
	chainHairpin     = "hairpin"
	chainMasqAlways  = "masquerade-always"
	chainMasqOutside = "masquerade-outside"
	chainMasqSelf    = "masquerade-self"
	chainPrerouting  = "prerouting"
	chainOutput      = "output"
	chainPostrouting = "postrouting"
	chainAnswer      = "answer"
	chainOwnAnswers  = "own-answers"
	chainRefresh     = "refresh"
	chainRefused     = "refused"
	chainPick        = "pick-"
	prefixRemember   = "remember"
	prefixNewcomer   = "newcomer"
)

// The sets and chains of limits, see sourceset.go.
const (
	setLimitedBy          = "limited-by"                // VIP frontend : jump to its limits
	setNPLimitedBy        = "nodeport-limited-by"       // node port : the same
	setLimited            = "limited-services"          // VIP frontend : verdict for packets within its limits
	setLimitedOutside     = "limited-outside-services"  // the same for outside clients
	setNPLimited          = "limited-nodeports"         // node port : verdict for packets within its limits
	setNPLimitedOutside   = "limited-outside-nodeports" // the same for outside clients
	chainLimited          = "limited"                   // looks up limited-by, then limited-services; the next three: the other maps
	chainLimitedOutside   = "limited-outside"           //
	chainNPLimited        = "nodeport-limited"          //
	chainNPLimitedOutside = "nodeport-limited-outside"  //
	chainRefuseClient     = "refuse-client"             // refuses a client with too many connections
	prefixLimits          = "limits"                    // before the limits and an ID: the chain that applies them
	prefixClientRates     = "client-rates-"             // before the limit and an ID: the set of recent clients with their rates
	prefixClientConns     = "client-connections-"       // before the limit and an ID: the set of clients with their connections
)

// The sets and chains of idle timeouts, see affinity.go.
const (
	setOwnIdle   = "idle-timeouts"          // original frontend : verdict in input, where the box is an endpoint
	setNPOwnIdle = "nodeport-idle-timeouts" // the same of original node ports

	chainInput    = "input"
	prefixIdle    = "idle-"
	prefixOnlySYN = "only-syn/"
	qualifierIdle = "-idle-"
	idleMap       = "/only" // after the name of a timeout: the chain that only sets it
)

// The sets and chains for packets without a connection (strays), see recover.go.
const (
	setOpenNodePorts = "open-nodeports" // the node ports
	setOpenPorts     = "open-ports"     // frontends that take their port of an address, not all of it

	chainInvalid = "invalid"
	chainStray   = "stray"
)

// The set and chain of adopted connections, see rule.go.
const (
	setAdopted = "adopted" // endpoint : frontend
	chainAdopt = "adopt"
)

// The sets and chains of ranges of ports, see portrange.go.
const (
	setPortRanges     = "port-ranges"      // VIP frontend, a range of ports : verdict
	setOpenPortRanges = "open-port-ranges" // ranges that take their ports of an address, not all of it
	setRangeSourceNAT = "range-source-nat" // original frontend, a range of ports : verdict in postrouting

	chainRange        = "range"          // before the qualifier of a pool and an ID: the chain and the map of its endpoints
	chainRangeClients = "range-clients-" // before a number and an ID: the chain that checks the client
	suffixAdmitted    = "-in"            // after the number: the chain of clients that source sets admit
	setRangeSources   = "range-sources-" // before a number and an ID: the set of clients that may connect
)

// Names of source sets and of the chains that check clients, in sourceset.go.
const (
	prefixSourceSet   = "source-set/"
	prefixAdmit       = "admit/"
	prefixAdmitRanges = "admit-ranges/"
	qualifierNodePort = "nodeport-"
)

// The parts of names of chains that draw a slot of a table, between the prefix of the pool and the size.
const (
	chainWeigh  = "weigh-"
	chainHash   = "hash-"
	chainSource = "source-"
	withHoles   = "-holes" // after the size: the table has holes
)

// chainRefusePort refuses packets to a VIP that match no frontend, if the box counts.
const chainRefusePort = "refuse-port"
