package nft

import "slices"

// staticChains are the chains that exist once in a table: what they hold depends
// on the box and on which sets have elements, never on how many.
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
	chains = append(chains, t.limitedChains()...)
	chains = append(chains, t.strayChains(box)...)
	chains = append(chains, t.answerChains()...)
	chains = append(chains, t.idleChains()...)
	return append(chains, t.sourceChains(f, box)...)
}

// dispatch returns the rules for a connection's first packet in prerouting and output. A
// frontend is found by one lookup, and only those that ask more about a packet make it
// pay for more. What else is sent to an address of ours is found by sets: the kernel walks
// every map of verdicts that a base chain leads to whenever one changes, in prerouting and
// again in output. These are NAT chains, so a connection's other packets are not asked
// anything here, and refusing is part of the dispatch.
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

// byClient returns the rules for frontends that only clients inside reach, that have source
// ranges, or another route for outside clients. The box's own packets come here from output,
// and count as inside.
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

// insideChain lets those through that may reach what only clients inside reach. The others
// get no answer.
func insideChain(box *Box) Chain {
	letIn := Verdict{Kind: Return}
	return Chain{Name: chainInside, Rules: []Rule{
		{MatchLocalSource{}, letIn},
		{MatchSet{Key: []Field{Saddr}, Set: setInsideSources}, letIn},
		{MatchSet{Key: []Field{Iif}, Set: setInsideInterfaces}, letIn},
		box.counted(RefusedInsideOnly, Verdict{Kind: Drop}),
	}}
}

// vipChains returns the chains for packets to a VIP that no frontend took: the box itself answers
// an echo request, all else is refused.
func (t *tableState) vipChains(f Family, box *Box) []Chain {
	var rules []Rule
	if t.has(setPortRanges) {
		rules = append(rules, rangeRule())
	}
	if t.has(setInsideOnly) {
		rules = append(rules, Rule{MatchSet{Key: []Field{Daddr}, Set: setInsideOnly}, Verdict{Kind: Jump, Chain: chainInside}})
	}
	if box.Ping == PingWhenReady && t.has(setIdleVIPs) {
		rules = append(rules, Rule{MatchEchoRequest{}, MatchSet{Key: []Field{Daddr}, Set: setIdleVIPs}, Reject{RejectHostUnreachable}})
	}
	answer := Rule{MatchEchoRequest{}, Redirect{}}
	if box.Ping == PingNever {
		answer = Rule{MatchEchoRequest{}, Verdict{Kind: Drop}}
	}
	chains := []Chain{sharedChain(chainRefuse, f, box)}
	refuse := chainRefuse
	if box.Counters {
		refuse = chainRefusePort
		chains = append(chains, sharedChain(refuse, f, box))
	}
	rules = append(rules, answer, Rule{GotoChain(refuse)})
	return append(chains, Chain{Name: chainVIP, Rules: rules})
}

// sourceChains decide about the source of connections whose destination changed.
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

// clusterIPs masquerades outside clients of whatever is in the service ranges. What is
// treated in another way there has an element. The box's own pings of VIPs, which it
// answers itself, keep their address.
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

// sameInterface finds connections that leave where they came in. The interface pair is
// looked at first: it is a tiny set that stays in the cache.
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
		hairpin.Rules = append(hairpin.Rules, Rule{MatchSet{Key: []Field{Iif, Saddr}, Set: setOnLink}, Masquerade{}})
	}
	return []Chain{hairpin}
}

// sharedChain builds a chain that elements go to and that depends on nothing but its
// name and the box.
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
		} else {
			c.Rules = pickRules(name)
		}
	}
	return c
}
