package nft

// Strays are packets that conntrack calls invalid: they lie outside of their connection's
// window, or belong to none. No connection means no translation. Sent to a VIP such a
// packet, or to an address that is set aside for Services, would leave the box by its
// default route, and come back from a router that routes the address here, again and again;
// or, where the box has the address itself, be answered by a reset. Sent by an endpoint it
// would reach the client from an address that it never talked to, and the client's reset
// would end the connection. So strays are dropped where they touch a Service, and only there.
//
// This is the one chain that sees every packet, and all that it asks of one is its
// conntrack state. With affinity it also finds first answers: there the first question is
// whether the connection is assured, which is all that is asked of established ones.

// strayChains are the chains about strays; none while there are neither Services nor addresses for them.
func (t *tableState) strayChains(box *Box) []Chain {
	var rules []Rule
	drop := func(of ...Statement) {
		rules = append(rules, append(of, box.counted(RefusedStray, Verdict{Kind: Drop})...))
	}
	if t.has(setVIPs) {
		drop(MatchSet{Key: []Field{Daddr}, Set: setVIPs})
	}
	if t.has(setOwned) {
		rules = append(rules, dropOwned(box, RefusedStray))
	}
	if t.has(setOpenPorts) {
		drop(MatchSet{Key: frontend, Set: setOpenPorts})
	}
	if t.has(setOpenPortRanges) {
		drop(MatchSet{Key: frontend, Set: setOpenPortRanges})
	}
	if t.has(setOpenNodePorts) {
		drop(
			MatchSet{Key: []Field{Daddr}, Set: setNPAddresses},
			MatchSet{Key: nodePort, Set: setOpenNodePorts},
		)
	}
	if t.has(setHairpin) {
		// The set of endpoints with themselves is a set of endpoints. A SYN-ACK passes: to a
		// box that sees one direction alone of other connections of an endpoint, it belongs to
		// nothing.
		drop(MatchNoSYN{}, MatchSet{Key: []Field{Saddr, Saddr}, Set: setHairpin})
	}
	if rules == nil {
		return nil
	}
	base := []Rule{{MatchInvalid{}, GotoChain(chainStray)}}
	if t.hasAffinity() {
		answers := t.answerRules()
		base = []Rule{answers[0], base[0], answers[1]}
	}
	return []Chain{
		{Name: chainStray, Rules: rules},
		{Name: chainInvalid, Hook: HookPrerouting, Priority: PriorityStray, Filter: true, Rules: base},
	}
}

// dropOwned ends what is sent to an address of ours that no Service has.
func dropOwned(box *Box, reason string) Rule {
	return append(Rule{MatchSet{Key: []Field{Daddr}, Set: setOwned}}, box.counted(reason, Verdict{Kind: Drop})...)
}
