package nft

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The sets and maps of a table. A set exists while it has elements, and so does
// the rule that looks into it: nothing is asked of a packet for what nobody uses.
const (
	setServices         = "services"                 // VIP frontend : verdict
	setOutsideServices  = "outside-services"         // the same for outside clients, where they get another route
	setBackends         = "backends"                 // frontend . slot : endpoint, cluster pools
	setLocalBackends    = "local-backends"           // frontend . slot : endpoint, local pools
	setNodePorts        = "nodeports"                // node port : verdict
	setOutsideNodePorts = "outside-nodeports"        // the same for outside clients
	setNPBackends       = "nodeport-backends"        // node port . slot : endpoint, cluster pools
	setLocalNPBackends  = "local-nodeport-backends"  // node port . slot : endpoint, local pools
	setAddresses        = "addresses"                // VIPs and node-port addresses : verdict
	setNPAddresses      = "nodeport-addresses"       // the addresses on which node ports answer
	setInternalSources  = "internal-sources"         // prefixes of inside clients
	setSourceNAT        = "source-nat"               // original frontend : verdict in postrouting
	setNPSourceNAT      = "nodeport-source-nat"      // original node port : verdict in postrouting
	setRememberInput    = "remember-input"           // original frontend : verdict in input
	setNPRememberInput  = "nodeport-remember-input"  // original node port : verdict in input
	setHairpin          = "hairpin"                  // endpoint . the same endpoint
	setSameInterface    = "same-interface"           // interface . the same interface
	setOnLink           = "on-link"                  // interface . addresses of its segment
	setRestricted       = "restricted"               // frontends with source ranges
	setAllowed          = "allowed-sources"          // frontend . who may connect
	setNPRestricted     = "restricted-nodeports"     // node ports with source ranges
	setNPAllowed        = "allowed-nodeport-sources" // node port . who may connect
)

// The chains that many elements or rules go to.
const (
	chainRefuse       = "refuse"
	chainVIPReady     = "vip-ready"
	chainVIPIdle      = "vip-idle"
	chainNodePort     = "nodeport"
	chainNPSourceNAT  = "nodeport-source-nat"
	chainSameInterf   = "same-interface"
	chainHairpin      = "hairpin"
	chainMasqAlways   = "masquerade-always"
	chainMasqOutside  = "masquerade-outside"
	chainMasqSelf     = "masquerade-self"
	chainPrerouting   = "prerouting"
	chainOutput       = "output"
	chainPostrouting  = "postrouting"
	chainInput        = "input"
	prefixPick        = "pick-"
	prefixLocalPick   = "local-pick-"
	prefixNPPick      = "nodeport-pick-"
	prefixLocalNPPick = "local-nodeport-pick-"
	prefixRemember    = "remember"
)

// affinityLife is the default life of an affinity entry: Kubernetes' maximum of
// sessionAffinityConfig.clientIP.timeoutSeconds. The entries that packets make
// carry the Service's own timeout, so a change of it needs no new map.
const affinityLife = 24 * time.Hour

// affinitySize bounds the clients remembered for a Service port. When the map is
// full new clients are still balanced, they are only not remembered.
const affinitySize = 65535

var (
	keyFrontend  = []Type{TypeAddr, TypeProto, TypeService}
	keyNodePort  = []Type{TypeProto, TypeService}
	dataEndpoint = []Type{TypeAddr, TypeService}
	dataVerdict  = []Type{TypeVerdict}

	// frontend reads the frontend a packet is sent to, nodePort its node port.
	frontend = []Field{Daddr, L4Proto, Dport}
	nodePort = []Field{L4Proto, Dport}
	// originalFrontend and originalNodePort read what the client had sent to,
	// behind MatchProto.
	originalFrontend = []Field{OriginalDaddr, L4Proto, OriginalDport}
	originalNodePort = []Field{L4Proto, OriginalDport}
)

func with[T any](list []T, more ...T) []T { return append(list[:len(list):len(list)], more...) }

// staticSets defines every set that is not a Service port's own.
var staticSets = []Set{
	{Name: setServices, Key: keyFrontend, Data: dataVerdict},
	{Name: setOutsideServices, Key: keyFrontend, Data: dataVerdict},
	{Name: setBackends, Key: with(keyFrontend, TypeSlot), Data: dataEndpoint},
	{Name: setLocalBackends, Key: with(keyFrontend, TypeSlot), Data: dataEndpoint},
	{Name: setNodePorts, Key: keyNodePort, Data: dataVerdict},
	{Name: setOutsideNodePorts, Key: keyNodePort, Data: dataVerdict},
	{Name: setNPBackends, Key: with(keyNodePort, TypeSlot), Data: dataEndpoint},
	{Name: setLocalNPBackends, Key: with(keyNodePort, TypeSlot), Data: dataEndpoint},
	{Name: setAddresses, Key: []Type{TypeAddr}, Data: dataVerdict},
	{Name: setNPAddresses, Key: []Type{TypeAddr}},
	{Name: setInternalSources, Key: []Type{TypeAddr}, Interval: true},
	{Name: setSourceNAT, Key: keyFrontend, Data: dataVerdict},
	{Name: setNPSourceNAT, Key: keyNodePort, Data: dataVerdict},
	{Name: setRememberInput, Key: keyFrontend, Data: dataVerdict},
	{Name: setNPRememberInput, Key: keyNodePort, Data: dataVerdict},
	{Name: setHairpin, Key: []Type{TypeAddr, TypeAddr}},
	{Name: setSameInterface, Key: []Type{TypeIface, TypeIface}},
	{Name: setOnLink, Key: []Type{TypeIface, TypeAddr}, Interval: true},
	{Name: setRestricted, Key: keyFrontend},
	{Name: setAllowed, Key: with(keyFrontend, TypeAddr), Interval: true},
	{Name: setNPRestricted, Key: keyNodePort},
	{Name: setNPAllowed, Key: with(keyNodePort, TypeAddr), Interval: true},
}

var staticSet = func() map[string]Set {
	m := make(map[string]Set, len(staticSets))
	for _, s := range staticSets {
		m[s.Name] = s
	}
	return m
}()

// poolNames are the maps and pick chains of a pool.
type poolNames struct{ backends, npBackends, pick, npPick, qualifier string }

var pools = [NumPools]poolNames{
	PoolCluster: {setBackends, setNPBackends, prefixPick, prefixNPPick, ""},
	PoolLocal:   {setLocalBackends, setLocalNPBackends, prefixLocalPick, prefixLocalNPPick, "-local"},
}

// sharedChain builds a chain that elements go to and that needs nothing but its name.
func sharedChain(name string) Chain {
	c := Chain{Name: name}
	switch name {
	case chainRefuse:
		// The reset passes the box's NAT chains itself and ends here when its
		// destination is a VIP, as it is for a client on the box that is bound to one.
		c.Rules = []Rule{
			{MatchReply{}, Verdict{Kind: Accept}},
			{MatchProto{TCP}, Reject{RejectTCPReset}},
			{Reject{RejectPortUnreachable}},
		}
	case chainMasqAlways:
		c.Rules = []Rule{{Masquerade{}}}
	case chainMasqOutside:
		c.Rules = []Rule{
			{MatchSet{Key: []Field{Saddr}, Set: setInternalSources, Negate: true}, Masquerade{}},
			{GotoChain(chainSameInterf)},
		}
	case chainMasqSelf:
		c.Rules = []Rule{{MatchLocalSource{}, Masquerade{}}, {GotoChain(chainSameInterf)}}
	default:
		c.Rules = []Rule{pickRule(name)}
	}
	return c
}

// pickRule is the one rule of a pick chain: choose a slot and go to its endpoint.
//
//	dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 5 map @backends
func pickRule(name string) Rule {
	for _, p := range pools {
		if n, ok := strings.CutPrefix(name, p.npPick); ok {
			return Rule{DNAT{Key: with(nodePort, numgenOf(n)), Map: p.npBackends}}
		}
		if n, ok := strings.CutPrefix(name, p.pick); ok {
			return Rule{DNAT{Key: with(frontend, numgenOf(n)), Map: p.backends}}
		}
	}
	panic("nft: no shared chain is called " + name)
}

func numgenOf(n string) Field {
	mod, err := strconv.ParseUint(n, 10, 32)
	if err != nil {
		panic(fmt.Sprintf("nft: pick chain of %q slots: %v", n, err))
	}
	return Numgen(uint32(mod))
}

// staticChains are the chains that exist once in a table: what they hold depends
// on the box and on which sets have elements, never on how many.
func (t *tableState) staticChains(f Family, box *Box) []Chain {
	chains := []Chain{
		{Name: chainPrerouting, Hook: HookPrerouting, Priority: PriorityDstNAT, Rules: t.dispatch(f, box, HookPrerouting)},
		{Name: chainOutput, Hook: HookOutput, Priority: PriorityDstNAT, Rules: t.dispatch(f, box, HookOutput)},
	}
	if t.has(setAddresses) {
		chains = append(chains, vipChains(box.Ping)...)
	}
	if t.has(setNodePorts) {
		chains = append(chains, Chain{Name: chainNodePort, Rules: t.nodePortDispatch()})
	}
	if rules := t.postrouting(); rules != nil {
		chains = append(chains, Chain{Name: chainPostrouting, Hook: HookPostrouting, Priority: PrioritySrcNAT, Rules: rules})
	}
	if t.has(setNPSourceNAT) {
		rules := t.perProtocol(setNPSourceNAT, originalNodePort)
		chains = append(chains, Chain{Name: chainNPSourceNAT, Rules: append(rules, Rule{GotoChain(chainSameInterf)})})
	}
	chains = append(chains, t.hairpinChains()...)
	if rules := t.input(); rules != nil {
		chains = append(chains, Chain{Name: chainInput, Hook: HookInput, Priority: PrioritySrcNAT, Rules: rules})
	}
	return chains
}

// dispatch is what a connection's first packet meets in prerouting and output. A
// frontend is found by one lookup; everything else that is sent to an address of
// ours is found by a second one. These are NAT chains, so a connection's other
// packets are not asked anything here, and refusing is part of the dispatch.
func (t *tableState) dispatch(f Family, box *Box, hook Hook) []Rule {
	var rules []Rule
	if t.has(setRestricted) {
		rules = append(rules, Rule{
			MatchSet{Key: frontend, Set: setRestricted},
			MatchSet{Key: with(frontend, Saddr), Set: setAllowed, Negate: true},
			Verdict{Kind: Drop},
		})
	}
	if hook == HookPrerouting && t.has(setOutsideServices) {
		rules = append(rules, t.outside(VerdictMap{Key: frontend, Map: setOutsideServices}))
	}
	if t.has(setServices) {
		rules = append(rules, Rule{VerdictMap{Key: frontend, Map: setServices}})
	}
	if t.has(setAddresses) {
		rules = append(rules, Rule{VerdictMap{Key: []Field{Daddr}, Map: setAddresses}})
	}
	for _, p := range box.ServiceRanges {
		if familyOf(p.Addr()) == f {
			rules = append(rules, Rule{MatchPrefix{Field: Daddr, Prefix: p.Masked()}, Verdict{Kind: Drop}})
		}
	}
	return rules
}

// outside is a rule that internal sources pass by. Without internal sources
// everybody is outside.
func (t *tableState) outside(vmap VerdictMap) Rule {
	if !t.has(setInternalSources) {
		return Rule{vmap}
	}
	return Rule{MatchSet{Key: []Field{Saddr}, Set: setInternalSources, Negate: true}, vmap}
}

// nodePortDispatch is reached with a destination on which node ports answer, from
// prerouting and from output. The box's own packets take it too and count as inside.
func (t *tableState) nodePortDispatch() []Rule {
	var rules []Rule
	if t.has(setNPRestricted) {
		rules = append(rules, Rule{
			MatchSet{Key: nodePort, Set: setNPRestricted},
			MatchSet{Key: with(nodePort, Saddr), Set: setNPAllowed, Negate: true},
			Verdict{Kind: Drop},
		})
	}
	inside := VerdictMap{Key: nodePort, Map: setNodePorts}
	if t.has(setOutsideNodePorts) {
		rules = append(rules,
			Rule{MatchLocalSource{}, inside},
			t.outside(VerdictMap{Key: nodePort, Map: setOutsideNodePorts}))
	}
	return append(rules, Rule{inside})
}

// vipChains are where a packet to a VIP ends that no frontend took: an echo
// request is answered by the box itself, all else is refused.
func vipChains(ping Ping) []Chain {
	answer := Rule{MatchEchoRequest{}, Redirect{}}
	idle := Rule{MatchEchoRequest{}, Reject{RejectHostUnreachable}}
	switch ping {
	case PingAlways:
		idle = answer
	case PingNever:
		answer = Rule{MatchEchoRequest{}, Verdict{Kind: Drop}}
		idle = answer
	}
	refuse := Rule{GotoChain(chainRefuse)}
	return []Chain{
		sharedChain(chainRefuse),
		{Name: chainVIPReady, Rules: []Rule{answer, refuse}},
		{Name: chainVIPIdle, Rules: []Rule{idle, refuse}},
	}
}

// postrouting decides about the source of connections whose destination changed.
func (t *tableState) postrouting() []Rule {
	if !t.has(setHairpin) {
		return nil // no endpoint, so nothing is ever translated
	}
	rules := []Rule{{MatchNotDNAT{}, Verdict{Kind: Return}}}
	if t.has(setSourceNAT) {
		rules = append(rules, t.perProtocol(setSourceNAT, originalFrontend)...)
	}
	if t.has(setNPSourceNAT) {
		rules = append(rules, Rule{MatchSet{Key: []Field{OriginalDaddr}, Set: setNPAddresses}, GotoChain(chainNPSourceNAT)})
	}
	if t.has(setSameInterface) {
		rules = append(rules, Rule{MatchSet{Key: []Field{Iif, Oif}, Set: setSameInterface}, GotoChain(chainHairpin)})
	}
	return rules
}

// hairpinChains decide about connections that leave where they came in. The
// interface pair is looked at first: it is a tiny set that stays in the cache.
func (t *tableState) hairpinChains() []Chain {
	if !t.has(setHairpin) {
		return nil
	}
	same := Chain{Name: chainSameInterf}
	if !t.has(setSameInterface) {
		return []Chain{same}
	}
	same.Rules = []Rule{{MatchSet{Key: []Field{Iif, Oif}, Set: setSameInterface}, GotoChain(chainHairpin)}}
	hairpin := Chain{Name: chainHairpin, Rules: []Rule{{MatchSet{Key: []Field{Saddr, Daddr}, Set: setHairpin}, Masquerade{}}}}
	if t.has(setOnLink) {
		hairpin.Rules = append(hairpin.Rules, Rule{MatchSet{Key: []Field{Iif, Saddr}, Set: setOnLink}, Masquerade{}})
	}
	return []Chain{same, hairpin}
}

// input remembers the clients of endpoints that are the box itself.
func (t *tableState) input() []Rule {
	if !t.has(setRememberInput) && !t.has(setNPRememberInput) {
		return nil
	}
	rules := []Rule{{MatchNotDNAT{}, Verdict{Kind: Return}}}
	if t.has(setRememberInput) {
		rules = append(rules, t.perProtocol(setRememberInput, originalFrontend)...)
	}
	if t.has(setNPRememberInput) {
		for _, r := range t.perProtocol(setNPRememberInput, originalNodePort) {
			rules = append(rules, append(Rule{MatchSet{Key: []Field{OriginalDaddr}, Set: setNPAddresses}}, r...))
		}
	}
	return rules
}

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
