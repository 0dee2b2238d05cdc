package nft

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Service port with an idle timeout has its connections forgotten after that much silence. The
// first packet of a connection is given a timeout object in postrouting (or in input, where the endpoint is the box itself); established packets pay
// nothing. One object serves all Service ports of a protocol and a timeout.
//
// Connection tracking takes what comes later for the middle of a connection that it has not seen,
// and would start a new one, at any endpoint. So of TCP only a SYN gets to an endpoint, and the
// client of a connection that is forgotten is answered by a reset.

// parseTimeout reads a name back.
func parseTimeout(name string) (t Timeout, ok bool) {
	text, ok := strings.CutPrefix(name, prefixIdle)
	protocol, seconds, cut := strings.Cut(text, "-")
	n, err := strconv.ParseUint(seconds, 10, 32)
	t.Protocol, t.Idle = map[string]Protocol{"tcp": TCP, "udp": UDP}[protocol], time.Duration(n)*time.Second
	return t, ok && cut && err == nil && t.Protocol != 0
}

// idle is the port's timeout; ok is false when it has none.
func (p *compiledPort) idle() (t Timeout, ok bool) {
	return Timeout{p.Protocol, p.Idle}, p.Idle > 0 && p.Protocol != SCTP
}

// onlySYN gives the verdict by which the dispatch sends clients to a chain. Of TCP with an idle
// timeout, only packets that begin a connection get there.
func (p *compiledPort) onlySYN(f *fragment, to Verdict) Verdict {
	if _, idle := p.idle(); !idle || p.Protocol != TCP {
		return to
	}
	f.shared = append(f.shared, prefixOnlySYN+to.Chain, chainRefuse)
	return GotoChain(prefixOnlySYN + to.Chain)
}

// idleChain names the chain that sets the timeout and goes on to another one.
func idleChain(t Timeout, next string) string { return t.Name() + "/" + next }

// idleRules returns the rules of a chain whose name begins with a timeout or with the prefix of the
// rule for SYNs:
//
//	chain idle-tcp-60/masquerade-always {
//		ct timeout set "idle-tcp-60"
//		goto masquerade-always
//	}
//	chain only-syn/pick-3 {
//		tcp flags ! syn goto refuse
//		goto pick-3
//	}
func idleRules(chain string) (rules []Rule, is bool) {
	if next, is := strings.CutPrefix(chain, prefixOnlySYN); is {
		return []Rule{{MatchNoSYN{}, GotoChain(chainRefuse)}, {GotoChain(next)}}, true
	}
	name, next, _ := strings.Cut(chain, "/")
	t, is := parseTimeout(name)
	if !is {
		return nil, false
	}
	rules = []Rule{{SetTimeout{t}}}
	if "/"+next != idleMap {
		rules = append(rules, Rule{GotoChain(next)})
	}
	return rules, true
}

// addIdle adds what a frontend with an idle timeout needs where its endpoints are the box itself.
func (p *compiledPort) addIdle(f *fragment, box *Box, fe *Frontend) {
	t, idle := p.idle()
	if !idle || !p.serves(fe) {
		return
	}
	f.timeouts = append(f.timeouts, t)
	if !p.leadsToBox(box, fe) {
		return
	}
	set, chain := setOwnIdle, t.Name()+idleMap
	if !fe.Addr.IsValid() {
		set = setNPOwnIdle
	}
	f.elements = append(f.elements, placed{set, string(p.key(fe)), GotoChain(chain).String()})
	f.shared = append(f.shared, chain)
	f.use(p.Protocol)
}

// leadsToBox reports whether an endpoint that clients of a frontend get is the box itself.
func (p *compiledPort) leadsToBox(box *Box, fe *Frontend) bool {
	for _, pool := range []Pool{fe.Internal.Pool, fe.External.Pool} {
		endpoints := p.chosen(fe, pool)
		if p.Affinity > 0 { // a client that is remembered may have another one
			endpoints = p.slots[pool]
		}
		if slices.ContainsFunc(endpoints, func(ap netip.AddrPort) bool { return slices.Contains(box.LocalAddresses, ap.Addr()) }) {
			return true
		}
	}
	return false
}

// idleChains give connections to the box itself their timeout.
//
//	chain input {
//		type nat hook input priority 100; policy accept;
//		ct status ! dnat return
//		meta l4proto tcp ct original ip daddr . meta l4proto . ct original proto-dst vmap @idle-timeouts
//	}
func (t *tableState) idleChains() []Chain {
	var rules []Rule
	if t.has(setOwnIdle) {
		rules = t.perProtocol(setOwnIdle, originalFrontend)
	}
	if t.has(setNPOwnIdle) {
		for _, r := range t.perProtocol(setNPOwnIdle, originalNodePort) {
			rules = append(rules, Rule{r[0], MatchSet{Key: []Field{OriginalDaddr}, Set: setNPAddresses}, r[1]})
		}
	}
	if rules == nil {
		return nil
	}
	rules = append([]Rule{{MatchNotDNAT{}, Verdict{Kind: Return}}}, rules...)
	return []Chain{{Name: chainInput, Hook: HookInput, Priority: PrioritySrcNAT, Rules: rules}}
}

// useTimeouts changes the use counts of the timeouts of a fragment by 1 or -1.
func (t *tableState) useTimeouts(f *fragment, by int) {
	for _, timeout := range f.timeouts {
		name := timeout.Name()
		if _, kept := t.oldTimeouts[name]; !kept {
			t.oldTimeouts[name] = t.timeoutUses[name] > 0
		}
		t.timeouts[name] = timeout
		if t.timeoutUses[name] += by; t.timeoutUses[name] == 0 {
			delete(t.timeoutUses, name)
			delete(t.timeouts, name)
		}
	}
}

// emitTimeouts notes the timeouts that came and went.
func (t *tableState) emitTimeouts(d *tableDiff) {
	for _, name := range sortedKeys(t.oldTimeouts) {
		timeout, is := t.timeouts[name]
		switch was := t.oldTimeouts[name]; {
		case is && !was:
			d.created = append(d.created, AddTimeout{d.family, timeout})
		case was && !is:
			d.gone = append(d.gone, DeleteTimeout{d.family, name})
		}
	}
}

// recoverIdle reads the timeout of a frontend back from its verdict in postrouting: the chain
// "idle-tcp-60/masquerade-always", or with affinity "newcomer-always-idle-tcp-60/default/web".
func recoverIdle(verdict string) time.Duration {
	name, _, _ := strings.Cut(strings.TrimPrefix(verdict, "goto "), "/")
	if _, rest, is := strings.Cut(name, qualifierIdle); is {
		name = prefixIdle + rest
	}
	t, _ := parseTimeout(name)
	return t.Idle
}
