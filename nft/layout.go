package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// affinityLife is the default timeout of the elements of affinity maps: Kubernetes' maximum of sessionAffinityConfig.clientIP.timeoutSeconds. Entries
// added by packets have the timeout of their Service, so a change of that timeout needs no new map.
const affinityLife = 24 * time.Hour

// newcomerLife is the time for which a client without an affinity entry is sent to the same endpoint again while the endpoint has not answered. It is
// longer than an answer takes. It is not longer than the initial retransmission timeout of a SYN (RFC 6298), so that the next attempt of a client
// that gave up picks an endpoint again.
const newcomerLife = time.Second

// affinitySize bounds the clients remembered for a Service port. When the map is
// full new clients are still balanced, they are only not remembered.
const affinitySize = 65535

var (
	keyFrontend  = []Type{TypeAddr, TypeProto, TypeService}
	keyNodePort  = []Type{TypeProto, TypeService}
	dataEndpoint = []Type{TypeAddr, TypeService}
	dataVerdict  = []Type{TypeVerdict}

	// frontend holds the fields that identify the frontend of a packet; nodePort holds those for a node port.
	frontend = []Field{Daddr, L4Proto, Dport}
	nodePort = []Field{L4Proto, Dport}
	// originalFrontend and originalNodePort hold the fields of the original destination of a connection. A rule must match the protocol (MatchProto)
	// before it reads them.
	originalFrontend = []Field{OriginalDaddr, L4Proto, OriginalDport}
	originalNodePort = []Field{L4Proto, OriginalDport}
)

func with[T any](list []T, more ...T) []T { return append(list[:len(list):len(list)], more...) }

// staticSets defines every set that does not belong to a single Service port.
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

// A slotMaps names the maps with a pool's endpoints, for VIPs or for node ports, and the prefix of the chains that pick from them.
type slotMaps struct {
	backends, tables string
	prefix           string // prefix of the names of the chains pick-N, weigh-M, hash-M and source-M
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

// of returns the names of the maps that hold a frontend's endpoints.
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

// isFirstPick reports whether a chain is the chain `pick-1` of some pool. Its rules depend on which maps exist, so tableState builds it.
func isFirstPick(name string) bool {
	return slices.ContainsFunc(allSlotMaps(), func(m *slotMaps) bool { return name == m.firstPick() })
}

// fewInternalSources is the maximum number of prefixes that are listed in a rule instead of a set. Comparing a prefix takes a third of the time of a
// lookup in an interval set.
const fewInternalSources = 3

// insideClients returns the matches for clients in the internal sources, each for a separate rule. Exactly one of them matches such a client. client
// is Saddr, or Daddr for packets to the client.
func insideClients(f Family, box *Box, client Field) (matches []Statement) {
	prefixes := MergedPrefixes(box.InternalSources, f)
	if len(prefixes) > fewInternalSources {
		return []Statement{MatchSet{Key: []Field{client}, Set: setInternalSources}}
	}
	for _, p := range prefixes {
		matches = append(matches, MatchPrefix{Field: client, Prefix: p})
	}
	return matches
}

// outsideClients returns a match of clients that are not in the internal sources. It matches all clients if there are no internal sources.
func outsideClients(f Family, box *Box) Rule {
	return outside(MergedPrefixes(box.InternalSources, f), Saddr, setInternalSources)
}

// outside returns a match of addresses in none of the prefixes. If there are too many prefixes for a rule, it uses the named set, which must contain
// them.
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

// preparedPicks is the largest N for which the chain pick-N exists as soon as the map `backends` does. When a chain with a lookup in a map is added,
// the kernel walks every element of the map. So the chain for one more endpoint should exist already; adding it while the map is empty costs nothing.
const preparedPicks = 8

// pick returns the name of the chain that picks one of n slots. firstPick returns the name of pick-1, which uses the first slot.
func (m *slotMaps) pick(n int) string { return m.prefix + chainPick + strconv.Itoa(n) }
func (m *slotMaps) firstPick() string { return m.pick(1) }

// pickRules returns the rules that choose a slot and translate the destination to its endpoint. A packet looks up its frontend in one map and its
// slot in another, and the maps may change between the two lookups. Then the slot may be missing, but the first slot exists as long as the frontend
// has endpoints. If the first slot is missing too, the client is refused. firstPickRules also looks into the tables, if there are any, because the
// frontend may have changed between slots and a table.
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

// The sets and maps of a table, with their keys and data as in nft (key : data). A set exists only while it has elements, and so does the rule that
// looks it up: no packet pays for a feature that no Service uses.
const (
	setServices         = "services"                 // VIP frontend : verdict
	setInsideServices   = "inside-services"          // VIP frontend : verdict for inside clients, if the verdict depends on the client
	setOutsideServices  = "outside-services"         // VIP frontend : verdict for outside clients, if it differs from that for inside clients
	setBackends         = "backends"                 // frontend . slot : endpoint, cluster pools
	setLocalBackends    = "local-backends"           // frontend . slot : endpoint, local pools
	setNodePorts        = "nodeports"                // node port : verdict
	setInsideNodePorts  = "inside-nodeports"         // node port : verdict for inside clients, if the verdict depends on the client
	setOutsideNodePorts = "outside-nodeports"        // node port : verdict for outside clients, if it differs from that for inside clients
	setNPBackends       = "nodeport-backends"        // node port . slot : endpoint, cluster pools
	setLocalNPBackends  = "local-nodeport-backends"  // node port . slot : endpoint, local pools
	setVIPs             = "vips"                     // addresses that are dedicated to Services
	setOwned            = "owned"                    // ranges of addresses reserved for Services
	setIdleVIPs         = "idle-vips"                // VIPs without an endpoint
	setNPAddresses      = "nodeport-addresses"       // the addresses on which node ports answer
	setInternalSources  = "internal-sources"         // prefixes of inside clients, if there are too many to list in a rule
	setOriginal         = "original-addresses"       // original destination address : verdict in postrouting
	setSourceNAT        = "source-nat"               // original destination frontend : verdict in postrouting
	setNPSourceNAT      = "nodeport-source-nat"      // original destination node port : verdict in postrouting
	setAnswers          = "answers"                  // original frontend : verdict for an endpoint's first reply
	setNPAnswers        = "nodeport-answers"         // original node port : verdict for an endpoint's first reply
	setRefresh          = "refresh"                  // original frontend : verdict for every reply, for affinity with Refresh
	setNPRefresh        = "nodeport-refresh"         // original node port : verdict for every reply, for affinity with Refresh
	setNewcomers        = "newcomers"                // clients without an affinity entry, for newcomerLife
	setHairpin          = "hairpin"                  // pairs of an endpoint's address with itself
	setSameInterface    = "same-interface"           // pairs of an interface with itself
	setOnLink           = "on-link"                  // interface . connected addresses
	setRestricted       = "restricted"               // frontends with source ranges
	setAllowed          = "allowed-sources"          // frontend . clients that may connect
	setNPRestricted     = "restricted-nodeports"     // node ports with source ranges
	setNPAllowed        = "allowed-nodeport-sources" // node port . clients that may connect
	setInsideOnly       = "inside-only"              // addresses that only inside clients may connect to
	setNPInsideOnly     = "inside-only-nodeports"    // node ports that only inside clients may connect to
	setInsideSources    = "inside-sources"           // prefixes of clients that reach inside-only addresses and node ports
	setInsideInterfaces = "inside-interfaces"        // interfaces from which all clients reach inside-only addresses and node ports
	setTables           = "tables"                   // frontend . slot : endpoint, of tables by weights or hashes, cluster pools
	setLocalTables      = "local-tables"             // frontend . slot : endpoint, for tables by weights or hashes, local pools
	setNPTables         = "nodeport-tables"          // node port . slot : endpoint, for tables by weights or hashes, cluster pools
	setLocalNPTables    = "local-nodeport-tables"    // node port . slot : endpoint, for tables by weights or hashes, local pools
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

// Names of the sets and chains of limits, see sourceset.go.
const (
	setLimitedBy          = "limited-by"                // VIP frontend : jump to the chain of its limits
	setNPLimitedBy        = "nodeport-limited-by"       // node port : jump to the chain of its limits
	setLimited            = "limited-services"          // VIP frontend : verdict for packets within its limits
	setLimitedOutside     = "limited-outside-services"  // VIP frontend : verdict for packets of outside clients within its limits
	setNPLimited          = "limited-nodeports"         // node port : verdict for packets within its limits
	setNPLimitedOutside   = "limited-outside-nodeports" // node port : verdict for packets of outside clients within its limits
	chainLimited          = "limited"                   // looks up limited-by, then limited-services
	chainLimitedOutside   = "limited-outside"           // looks up limited-by, then limited-outside-services
	chainNPLimited        = "nodeport-limited"          // looks up nodeport-limited-by, then limited-nodeports
	chainNPLimitedOutside = "nodeport-limited-outside"  // looks up nodeport-limited-by, then limited-outside-nodeports
	chainRefuseClient     = "refuse-client"             // refuses a client with too many connections
	prefixLimits          = "limits"                    // prefix of the chain that applies limits; the limits and the port's ID follow
	prefixClientRates     = "client-rates-"             // prefix of the set of recent clients with their rates; the limit and the port's ID follow
	prefixClientConns     = "client-connections-"       // prefix of the set of clients with their connections; the limit and the port's ID follow
)

// The sets and chains of idle timeouts, see affinity.go.
const (
	setOwnIdle   = "idle-timeouts"          // original frontend : verdict in input, if the box itself is an endpoint
	setNPOwnIdle = "nodeport-idle-timeouts" // original node port : verdict in input, if the box itself is an endpoint

	chainInput    = "input"
	prefixIdle    = "idle-"
	prefixOnlySYN = "only-syn/"
	qualifierIdle = "-idle-"
	idleMap       = "/only" // suffix of a timeout's name, in the name of the chain that only sets the timeout
)

// The sets and chains for packets without a connection (strays), see recover.go.
const (
	setOpenNodePorts = "open-nodeports" // node ports, to match packets without a connection
	setOpenPorts     = "open-ports"     // frontends that use only a port of their address, not all of it

	chainInvalid = "invalid"
	chainStray   = "stray"
)

// The set and chain of adopted connections, see rule.go.
const (
	setAdopted = "adopted" // endpoint : frontend that its segments are translated to
	chainAdopt = "adopt"
)

// The sets and chains of ranges of ports, see portrange.go.
const (
	setPortRanges     = "port-ranges"      // VIP frontend with a range of ports : verdict
	setOpenPortRanges = "open-port-ranges" // ranges that use only some ports of their address, not all of it
	setRangeSourceNAT = "range-source-nat" // original frontend, a range of ports : verdict in postrouting

	chainRange        = "range"          // prefix of the chain and of the map of a pool's endpoints; the pool's qualifier and the port's ID follow
	chainRangeClients = "range-clients-" // prefix of the chain that checks the client; a number and the port's ID follow
	suffixAdmitted    = "-in"            // suffix of the number, in the name of the chain for clients admitted by source sets
	setRangeSources   = "range-sources-" // prefix of the set of clients that may connect; a number and the port's ID follow
)

// Names of source sets and of the chains that check clients, in sourceset.go.
const (
	prefixSourceSet   = "source-set/"
	prefixAdmit       = "admit/"
	prefixAdmitRanges = "admit-ranges/"
	qualifierNodePort = "nodeport-"
)

// Parts of the names of chains that draw a slot of a table, between the prefix of the pool and the number of slots.
const (
	chainWeigh  = "weigh-"
	chainHash   = "hash-"
	chainSource = "source-"
	withHoles   = "-holes" // suffix of the number of slots, for a table with holes
)

// chainRefusePort refuses packets to a VIP that match no frontend, if the box has counters.
const chainRefusePort = "refuse-port"
