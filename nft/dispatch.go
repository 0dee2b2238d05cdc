package nft

import (
	"net/netip"
	"slices"
	"strings"
)

// staticChains returns the chains that exist once in a table. Their rules depend on the box and on which sets are empty, never on the number of
// elements.
func (t *tableState) staticChains(f Family, box *Box) []Chain {
	dispatch := t.dispatch(box)
	chains := []Chain{
		{Name: chainPrerouting, Hook: HookPrerouting, Priority: PriorityDstNAT, Rules: dispatch},
		{Name: chainOutput, Hook: HookOutput, Priority: PriorityDstNAT, Rules: dispatch},
	}
	if t.has(setVIPs) {
		chains = append(chains, t.vipChains(f, box)...)
	}
	if t.has(setInsideServices) {
		chains = append(chains, Chain{Name: chainByClient, Rules: t.byClient(f, box, frontend, &vipMaps)})
	}
	if t.has(setInsideSources) {
		chains = append(chains, insideChain(box))
	}
	if t.has(setNodePorts) {
		chains = append(chains, Chain{Name: chainNodePort, Rules: []Rule{{VerdictMap{Key: nodePort, Map: setNodePorts}}}})
	}
	if t.has(setInsideNodePorts) {
		chains = append(chains, Chain{Name: chainNPByClient, Rules: t.byClient(f, box, nodePort, &nodePortMaps)})
	}
	chains = append(chains, t.egressChains(f, box)...)
	chains = append(chains, t.limitedChains()...)
	chains = append(chains, t.strayChains(f, box)...)
	chains = append(chains, t.answerChains()...)
	chains = append(append(chains, t.idleChains()...), t.fastChains()...)
	return append(chains, t.sourceChains(f, box)...)
}

// dispatch returns the rules for the first packet of a connection in prerouting and output. A frontend takes one lookup, or more if it has conditions
// on the client. Other packets to our addresses are matched with sets instead of verdict maps: whenever a verdict map changes, the kernel walks all
// verdict maps that a base chain leads to, in prerouting and again in output. NAT chains see no later packets of a connection, so refusing here
// affects new connections only.
func (t *tableState) dispatch(box *Box) []Rule {
	var rules []Rule
	if t.has(setServices) {
		rules = append(rules, Rule{VerdictMap{Key: frontend, Map: setServices}})
	}
	if t.has(setVIPs) {
		rules = append(rules, Rule{MatchSet{Key: []Field{Daddr}, Set: setVIPs}, GotoChain(chainVIP)})
	}
	if t.has(setNodePorts) {
		rules = append(rules, Rule{MatchSet{Key: []Field{Daddr}, Set: setNPAddresses}, GotoChain(chainNodePort)})
	}
	if t.has(setOpenPortRanges) { // those at VIPs are looked up there
		rules = append(rules, rangeRule())
	}
	if t.has(setOwned) {
		rules = append(rules, dropOwned(box, RefusedNotAllocated))
	}
	return rules
}

// byClient returns the rules for frontends that accept inside clients only, have source ranges, or use another route for outside clients. The box's
// own packets come here from output, and count as inside.
func (t *tableState) byClient(f Family, box *Box, key []Field, m *frontendMaps) []Rule {
	var rules []Rule
	if t.has(m.insideOnly) {
		rules = append(rules, Rule{MatchSet{Key: m.insideOnlyKey, Set: m.insideOnly}, Verdict{Kind: Jump, Chain: chainInside}})
	}
	if t.has(m.restricted) {
		restricted := Rule{
			MatchSet{Key: key, Set: m.restricted},
			MatchSet{Key: with(key, Saddr), Set: m.allowed, Negate: true},
		}
		rules = append(rules, append(restricted, box.counted(RefusedSourceRange, Verdict{Kind: Drop})...))
	}
	inside := VerdictMap{Key: key, Map: m.inside}
	if t.has(m.outside) {
		rules = append(rules,
			Rule{MatchLocalSource{}, inside},
			append(outsideClients(f, box), VerdictMap{Key: key, Map: m.outside}))
	}
	return append(rules, Rule{inside})
}

// insideChain returns the chain that lets inside clients pass and drops the packets of all others.
func insideChain(box *Box) Chain {
	letIn := Verdict{Kind: Return}
	return Chain{Name: chainInside, Rules: []Rule{
		{MatchLocalSource{}, letIn},
		{MatchSet{Key: []Field{Saddr}, Set: setInsideSources}, letIn},
		{MatchSet{Key: []Field{Iif}, Set: setInsideInterfaces}, letIn},
		box.counted(RefusedInsideOnly, Verdict{Kind: Drop}),
	}}
}

// vipChains returns the chains for packets to a VIP that match no frontend: the box itself answers echo requests, as Box.Ping selects, and refuses
// everything else.
func (t *tableState) vipChains(f Family, box *Box) []Chain {
	var rules []Rule
	var chains []Chain
	if t.has(setUnsettled) {
		rules, chains = append(rules, unsettledRule(0, setUnsettled)), append(chains, unsettledChain())
	}
	if t.has(setPortRanges) {
		rules = append(rules, rangeRule())
	}
	if t.has(setInsideOnly) {
		rules = append(rules, Rule{MatchSet{Key: []Field{Daddr}, Set: setInsideOnly}, Verdict{Kind: Jump, Chain: chainInside}})
	}
	rules = append(rules, t.egressReplies(box)...)
	if box.Ping == PingWhenReady && t.has(setIdleVIPs) {
		rules = append(rules, Rule{MatchEchoRequest{}, MatchSet{Key: []Field{Daddr}, Set: setIdleVIPs}, Reject{RejectHostUnreachable}})
	}
	answer := Rule{MatchEchoRequest{}, Redirect{}}
	if box.Ping == PingNever {
		answer = Rule{MatchEchoRequest{}, Verdict{Kind: Drop}}
	}
	chains = append(chains, sharedChain(chainRefuse, f, box))
	refuse := chainRefuse
	if box.Counters {
		refuse = chainRefusePort
		chains = append(chains, sharedChain(refuse, f, box))
	}
	rules = append(rules, answer, Rule{GotoChain(refuse)})
	return append(chains, Chain{Name: chainVIP, Rules: rules})
}

// sourceChains returns the chains that decide on source NAT of connections whose destination was translated.
func (t *tableState) sourceChains(f Family, box *Box) []Chain {
	if !t.has(setHairpin) {
		return nil // no endpoint, so nothing is ever translated
	}
	same := t.sameInterface()
	rest := append(clusterIPs(f, box), same...)

	first, adopt := t.notTranslated()
	rules := []Rule{first}
	if t.has(setOriginal) {
		rules = append(rules, Rule{VerdictMap{Key: []Field{OriginalDaddr}, Map: setOriginal}})
	}
	chains := append(adopt,
		Chain{Name: chainPostrouting, Hook: HookPostrouting, Priority: PrioritySrcNAT, Rules: append(rules, rest...)},
		Chain{Name: chainSameInterf, Rules: same},
	)
	var nodePorts []Rule
	if t.has(setNPSourceNAT) {
		chains = append(chains, Chain{Name: chainNPSourceNAT, Rules: append(t.perProtocol(setNPSourceNAT, originalNodePort), same...)})
		// An address of the box may have frontends of its own, too.
		nodePorts = []Rule{{MatchSet{Key: []Field{OriginalDaddr}, Set: setNPAddresses}, GotoChain(chainNPSourceNAT)}}
	}
	if t.has(setSourceNAT) || t.has(setRangeSourceNAT) {
		var rules []Rule
		for _, set := range []string{setSourceNAT, setRangeSourceNAT} {
			if t.has(set) {
				rules = append(rules, t.perProtocol(set, originalFrontend)...)
			}
		}
		rules = append(rules, nodePorts...)
		chains = append(chains, Chain{Name: chainSourceNAT, Rules: append(rules, rest...)})
	}
	return append(chains, t.hairpinChains()...)
}

// clusterIPs returns the rules that masquerade outside clients of all addresses in the service ranges. Frontends with a different source NAT have an
// element in a map. ICMP is excluded, because the box answers pings of VIPs itself.
func clusterIPs(f Family, box *Box) (rules []Rule) {
	if !box.hasInternalSources(f) {
		return nil
	}
	for _, p := range box.ServiceRanges {
		if FamilyOf(p.Addr()) == f {
			rules = append(rules, append(outsideClients(f, box), MatchNotICMP{}, MatchPrefix{Field: OriginalDaddr, Prefix: p.Masked()}, Masquerade{}))
		}
	}
	return rules
}

// sameInterface returns the rule for connections that leave by the interface they arrived on. It matches the pair of interfaces first, because that
// set is small and stays in the CPU cache.
func (t *tableState) sameInterface() []Rule {
	if !t.has(setSameInterface) {
		return nil
	}
	return []Rule{{MatchSet{Key: []Field{Iif, Oif}, Set: setSameInterface}, GotoChain(chainHairpin)}}
}

func (t *tableState) hairpinChains() []Chain {
	if !t.has(setSameInterface) {
		return nil
	}
	hairpin := Chain{Name: chainHairpin, Rules: []Rule{{MatchSet{Key: []Field{Saddr, Daddr}, Set: setHairpin}, Masquerade{}}}}
	if t.has(setOnLink) {
		hairpin.Rules = append(hairpin.Rules, Rule{MatchSet{Key: []Field{{Kind: FieldIif, Ranged: true}, Saddr}, Set: setOnLink}, Masquerade{}})
	}
	return []Chain{hairpin}
}

// sharedChain builds a chain that elements of several ports lead to. It depends only on its name, the family and the box.
func sharedChain(name string, f Family, box *Box) Chain {
	c := Chain{Name: name}
	switch name {
	case chainRefuse, chainRefusePort, chainRefuseClient:
		// The reset passes the box's NAT chains itself and ends here when its
		// destination is a VIP, as it is for a client on the box that is bound to one.
		c.Rules = []Rule{
			{MatchReply{}, Verdict{Kind: Accept}},
			{MatchProto{TCP}, Reject{RejectTCPReset}},
			{Reject{RejectPortUnreachable}},
		}
		if counts := box.counted(reasons[name]); counts != nil {
			c.Rules = slices.Insert(c.Rules, 1, Rule(counts))
		}
	case chainMasqAlways:
		c.Rules = []Rule{{Masquerade{}}}
	case chainMasqOutside:
		c.Rules = []Rule{
			append(outsideClients(f, box), Masquerade{}),
			{GotoChain(chainSameInterf)},
		}
	case chainMasqSelf:
		c.Rules = []Rule{{MatchLocalSource{}, Masquerade{}}, {GotoChain(chainSameInterf)}}
	default:
		if a, is := parseAdmission(name); is {
			c.Rules = a.rules(box)
		} else if rules, is := idleRules(name); is {
			c.Rules = rules
		} else if to, is := strings.CutPrefix(name, prefixEgressTo); is {
			c.Rules = egressTo(parseSetNames(to))
		} else {
			c.Rules = pickRules(name)
		}
	}
	return c
}

// setBoxElements sets the elements of the sets that describe the box. There are only a few for each address and interface, so all of them are
// compared.
func (t *tableState) setBoxElements(f Family, box *Box) {
	want := map[string]Elements{setNPAddresses: {}, setInternalSources: {}, setSameInterface: {}, setOnLink: {}, setOwned: elementsOf(mergeRanges(box.Owned, f)), setEgressInside: t.egressInsideElements(f, box)}
	var nodeAddrs []netip.Addr
	if t.has(setNodePorts) {
		for _, a := range box.NodePortAddresses {
			if FamilyOf(a) == f && !t.addresses[a].isVIP() {
				want[setNPAddresses][AddrKey(a)] = ""
				if t.has(setNPSourceNAT) {
					nodeAddrs = append(nodeAddrs, a)
				}
			}
		}
	}
	if internal := mergePrefixes(box.InternalSources, f); len(MergedPrefixes(box.InternalSources, f)) > fewInternalSources {
		want[setInternalSources] = elementsOf(internal)
	}
	if t.has(setHairpin) {
		for _, i := range box.Interfaces {
			key := Key(nil).Iface(i.Index)
			want[setSameInterface][string(key.Iface(i.Index))] = ""
			if box.MasqueradeOnLink {
				for _, r := range mergePrefixes(i.Prefixes, f) {
					first := string(key.Addr(r.First)) // the next call writes to the same place
					want[setOnLink][first+string(key.Addr(r.Last))] = ""
				}
			}
		}
	}
	for name, elements := range want {
		t.setElements(name, elements)
	}
	for _, a := range slices.Concat(t.nodeAddrs, nodeAddrs) { // in the map original-addresses of postrouting, which holds VIPs too
		uses := t.touch(a)
		uses.node = slices.Contains(nodeAddrs, a)
		t.addresses[a] = uses
	}
	t.nodeAddrs = nodeAddrs
}

// setInsideElements makes the elements of the sets of inside clients, which exist while a Service refers to them. It must run after settleAddresses.
func (t *tableState) setInsideElements(f Family, box *Box) {
	sources, interfaces := Elements{}, Elements{}
	if t.hasInsideOnly() {
		sources = elementsOf(mergePrefixes(slices.Concat(box.InternalSources, box.InsideSources), f))
		for _, i := range box.Interfaces {
			if i.Inside {
				interfaces[string(Key(nil).Iface(i.Index))] = ""
			}
		}
	}
	t.setElements(setInsideSources, sources)
	t.setElements(setInsideInterfaces, interfaces)
}

// setElements replaces the elements of a set that describes the box. It works in the order of keys, because nft lists the ranges of a set in the
// order in which they were added.
func (t *tableState) setElements(set string, elements Elements) {
	for _, key := range sortedKeys(t.box[set]) {
		if _, ok := elements[key]; !ok {
			t.delete(placed{set: set, key: key})
		}
	}
	for _, key := range sortedKeys(elements) {
		if _, ok := t.box[set][key]; !ok {
			t.put(placed{set: set, key: key})
		}
	}
	t.box[set] = elements
}

// sourceNAT returns the frontend's verdict in postrouting. If the port has affinity, it leads to the chain that stores new clients, otherwise to the
// chain for the frontend's source NAT. sourceNAT returns false if no element is needed: no connection reaches an endpoint, or the rules of clusterIPs
// have the same effect.
func (p *compiledPort) sourceNAT(f *fragment, box *Box, fe *Frontend) (string, bool) {
	if !p.serves(fe) {
		return "", false
	}
	if p.Affinity > 0 {
		return GotoChain(p.newcomer(fe)).String(), true
	}
	chain := p.masquerade(fe.SNAT, box)
	byRange := chainMasqOutside // what becomes of a client where there is no element
	if !box.hasInternalSources(p.Family) || !box.inServiceRange(fe.Addr) {
		byRange = ""
	}
	timeout, idle := p.idle()
	if chain == byRange && !idle {
		return "", false
	}
	if chain == "" {
		chain = chainSameInterf
	} else {
		f.shared = append(f.shared, chain)
	}
	if idle {
		chain = timeout.Name() + "/" + chain
		f.shared = append(f.shared, chain)
	}
	return GotoChain(chain).String(), true
}
