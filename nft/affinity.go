package nft

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Session affinity of a Service port: a map of clients, a chain that recalls a client
// before an endpoint is picked, and chains that remember it where the endpoint's first
// answer passes. The cost is one lookup for any number of endpoints. Where clients get
// different pools each pool has a map, since an endpoint of the one may not serve the
// other; a client whose endpoint serves both is remembered in both, so that it meets the
// same one by every address.
//
// Only an answer makes an endpoint worth coming back to: a client that was remembered with
// its first packet would go on to an endpoint that is down for as long as it tries. Until
// the answer comes, the connections that a new client makes at the same time go to one
// endpoint all the same: a newcomer's first packet puts its endpoint into the map of the
// unanswered, where it stays for newcomerLife and is not prolonged by others. A refusal
// ends that at once.
//
// Newcomers are clients that no affinity map had when they came. Only they pay for an element in
// the map of the unanswered: clients that are remembered look into one small set instead.

func (p *compiledPort) affinityMap(pool Pool) Set { return p.clientMap("affinity", pool, affinityLife) }

func (p *compiledPort) unansweredMap(pool Pool) Set {
	return p.clientMap("unanswered", pool, newcomerLife)
}

// clientMap returns the definition of a map from clients to endpoints. Elements expire after life.
func (p *compiledPort) clientMap(name string, pool Pool, life time.Duration) Set {
	return Set{
		Name: name + pools[pool].qualifier + p.prefixText() + "/" + p.ID,
		Key:  []Type{TypeAddr}, Data: dataEndpoint, Timeout: life, Dynamic: true, Size: affinitySize,
	}
}

// prefixText returns the part of a map's name with the prefix length by which clients are grouped; "" for a map of whole addresses.
func (p *compiledPort) prefixText() string {
	if p.AffinityOptions.PrefixLen == 0 {
		return ""
	}
	return "-" + strconv.Itoa(int(p.AffinityOptions.PrefixLen))
}

// client returns the key expression for a client: the client address in field, or the prefix of it that affinity uses.
func (p *compiledPort) client(field Field) []Field {
	field.Bits = p.AffinityOptions.PrefixLen
	return []Field{field}
}

// members returns the definition of the set of a pool's endpoints. A client is stored only if its endpoint is in this set, because a removed endpoint
// may still answer earlier connections.
func (p *compiledPort) members(pool Pool) Set {
	return Set{Name: "members" + pools[pool].qualifier + "/" + p.ID, Key: dataEndpoint}
}

// inBothPools returns the definition of the set of endpoints that are in both pools. Neither pool contains the other, since topology hints and
// fallbacks select the endpoints of each pool separately.
func (p *compiledPort) inBothPools() Set { return Set{Name: "both-pools/" + p.ID, Key: dataEndpoint} }

// recall returns the name of the chain that sends clients with affinity to their stored endpoint. Node ports have separate chains, because their
// clients without a stored endpoint use other maps.
func (p *compiledPort) recall(fe *Frontend, pool Pool) string {
	name := "recall"
	if !fe.Addr.IsValid() {
		name = "nodeport-recall"
	}
	return name + pools[pool].qualifier + "/" + p.ID
}

// newcomer returns the name of the chain that stores the endpoint of a new client until the endpoint answers. Frontends of a port share the chain if
// they have the same pools and the same next chain.
func (p *compiledPort) newcomer(fe *Frontend) string {
	snat := [...]string{SNATNever: "", SNATOutside: "-outside", SNATSelf: "-self", SNATAlways: "-always"}[fe.SNAT]
	if t, idle := p.idle(); idle {
		snat += strings.Replace(t.Name(), prefixIdle, qualifierIdle, 1)
	}
	return prefixNewcomer + fe.poolsText() + snat + "/" + p.ID
}

// remember returns the name of the chain that stores the clients of a frontend in the affinity map.
func (p *compiledPort) remember(fe *Frontend) string {
	return prefixRemember + fe.poolsText() + "/" + p.ID
}

// poolsText returns the part of a chain's name that identifies the pools of a frontend.
func (fe *Frontend) poolsText() string {
	switch {
	case fe.Internal.Pool != fe.External.Pool:
		return "-both"
	case fe.Internal.Pool == PoolLocal:
		return "-local"
	}
	return ""
}

// addAffinity adds the port's maps and chains: for each pool in use two maps, for each
// kind of frontend its recall, newcomer and remember chains.
func (p *compiledPort) addAffinity(f *fragment, box *Box) {
	used := p.usedPools()
	for pool := range NumPools {
		if used[pool] {
			f.sets = append(f.sets, p.affinityMap(pool), p.unansweredMap(pool), p.members(pool))
			for _, ap := range p.slots[pool] {
				f.elements = append(f.elements, placed{p.members(pool).Name, AddrPortData(ap), ""})
			}
			p.addNumbers(f, pool)
		}
	}
	both := p.endpointsInBothPools()
	if len(both) > 0 {
		f.sets = append(f.sets, p.inBothPools())
	}
	for _, ap := range both {
		f.elements = append(f.elements, placed{p.inBothPools().Name, AddrPortData(ap), ""})
	}
	done := map[string]bool{}
	if p.hasLocalEndpoint(box) {
		f.answersHere++
	}
	for i := range p.Frontends {
		fe := &p.Frontends[i]
		if !p.serves(fe) {
			continue
		}
		for _, pool := range []Pool{fe.Internal.Pool, fe.External.Pool} {
			if name := p.recall(fe, pool); len(p.slots[pool]) > 0 && !done[name] {
				done[name] = true
				f.chains = append(f.chains, p.recallChain(f, fe, pool))
			}
		}
		if name := p.newcomer(fe); !done[name] {
			done[name] = true
			f.chains = append(f.chains, p.newcomerChain(f, box, fe))
		}
		if name := p.remember(fe); !done[name] {
			done[name] = true
			f.chains = append(f.chains, Chain{Name: name, Rules: p.note(box, fe, byAnswer, Verdict{Kind: Accept})})
		}
		maps := &vipMaps
		if !fe.Addr.IsValid() {
			maps = &nodePortMaps
		}
		f.elements = append(f.elements, placed{maps.answers, string(p.key(fe)), GotoChain(p.remember(fe)).String()})
		if p.AffinityOptions.Refresh {
			f.elements = append(f.elements, placed{maps.refresh, string(p.key(fe)), GotoChain(p.remember(fe)).String()})
		}
		f.use(p.Protocol)
	}
}

// endpointsInBothPools returns the endpoints that are in both pools; nil if only one pool is in use.
func (p *compiledPort) endpointsInBothPools() []netip.AddrPort {
	if p.usedPools() != [NumPools]bool{PoolCluster: true, PoolLocal: true} {
		return nil
	}
	inCluster := make(map[netip.AddrPort]bool, len(p.slots[PoolCluster]))
	for _, ap := range p.slots[PoolCluster] {
		inCluster[ap] = true
	}
	return slices.DeleteFunc(slices.Clone(p.slots[PoolLocal]), func(ap netip.AddrPort) bool { return !inCluster[ap] })
}

// recallChain returns the chain that selects the endpoint of a client. A client in the affinity map goes to its stored endpoint. A client that still
// waits for its first answer goes to its endpoint in the unanswered map. Other clients get an endpoint by load balancing.
//
//	meta l4proto tcp dnat ip to ip saddr map @affinity/default/web
//	meta l4proto tcp ip saddr @newcomers dnat ip to ip saddr map @unanswered/default/web
//	add @newcomers { ip saddr timeout 1s }
//	goto pick-3
func (p *compiledPort) recallChain(f *fragment, fe *Frontend, pool Pool) Chain {
	// Every packet here is of this protocol; nft has to read it to take the port.
	proto, client, address := MatchProto{p.Protocol}, p.client(Saddr), []Field{Saddr}
	return Chain{Name: p.recall(fe, pool), Rules: []Rule{
		{proto, DNAT{Key: client, Map: p.affinityMap(pool).Name}},
		{proto, MatchSet{Key: address, Set: setNewcomers}, DNAT{Key: client, Map: p.unansweredMap(pool).Name}},
		{Update{Map: setNewcomers, Key: address, Timeout: newcomerLife, Add: true}},
		{p.pick(f, fe, pool)},
	}}
}

// newcomerChain returns the chain that stores the endpoint of a new client until it answers, and continues with source NAT.
//
//	ip saddr != @newcomers goto masquerade-outside
//	add @unanswered/default/web { ip saddr timeout 1s : ip daddr . th dport }
//	goto masquerade-outside
func (p *compiledPort) newcomerChain(f *fragment, box *Box, fe *Frontend) Chain {
	next := p.masquerade(fe.SNAT, box)
	if next == "" {
		next = chainSameInterf
	} else {
		f.shared = append(f.shared, next)
	}
	end := GotoChain(next)
	var rules []Rule
	if t, idle := p.idle(); idle {
		rules = append(rules, Rule{SetTimeout{t}})
	}
	rules = append(rules, Rule{MatchSet{Key: []Field{Saddr}, Set: setNewcomers, Negate: true}, end})
	rules = append(rules, p.note(box, fe, byNewcomer, end)...)
	return Chain{Name: p.newcomer(fe), Rules: append(rules, Rule{end})}
}

// noting is the kind of packet that causes a client and its endpoint to be stored.
type noting uint8

const (
	byNewcomer noting = iota // the first packet of a new client: stores into the unanswered map
	byAnswer                 // an answer of the endpoint: stores into the affinity map
)

// note returns the rules that store a client of the frontend with its endpoint. They add it to the map of the pool that selected the endpoint, or to
// the maps of both pools if the endpoint is in both. A rule after which no other rule is needed ends with the verdict end.
//
//	ip saddr . th sport @both-pools/default/web update @affinity-local/default/web { ... }
//	ip saddr . th sport @members/default/web update @affinity/default/web { ip daddr timeout 3h : ip saddr . th sport }
func (p *compiledPort) note(box *Box, fe *Frontend, by noting, end Verdict) []Rule {
	inside, outside := p.update(fe.Internal.Pool, by), p.update(fe.External.Pool, by)
	rules := p.noteForOthers(by)
	if len(p.endpointsInBothPools()) > 0 {
		both := MatchSet{Key: inside.Data, Set: p.inBothPools().Name}
		rules = append(rules,
			Rule{both, p.update(PoolCluster, by)},
			Rule{both, p.update(PoolLocal, by), end})
	}
	client, local := Saddr, Statement(MatchLocalSource{})
	var toInside, toOutside Rule // what must hold of an endpoint in either pool
	if by == byAnswer {
		client, local = Daddr, MatchLocalDest{}
		toInside = Rule{MatchSet{Key: inside.Data, Set: p.members(fe.Internal.Pool).Name}}
		toOutside = Rule{MatchSet{Key: outside.Data, Set: p.members(fe.External.Pool).Name}}
	}
	if fe.Internal.Pool != fe.External.Pool {
		for _, match := range append([]Statement{local}, insideClients(p.Family, box, client)...) {
			rules = append(rules, with(with(Rule{match}, toInside...), []Statement{inside, end}...))
			if toInside != nil {
				rules = append(rules, Rule{match, end})
			}
		}
	}
	return append(rules, with(toOutside, Statement(outside)))
}

func (p *compiledPort) update(pool Pool, by noting) Update {
	if by == byAnswer {
		return Update{Map: p.affinityMap(pool).Name, Key: p.client(Daddr), Data: []Field{Saddr, Sport}, Timeout: p.Affinity}
	}
	return Update{Map: p.unansweredMap(pool).Name, Key: p.client(Saddr), Data: []Field{Daddr, Dport}, Timeout: newcomerLife, Add: true}
}

// answerChains returns the base chains for the first packets of endpoints; nil if no Service port has affinity. They see only packets of connections
// that are not yet assured: from a client the first packet and the one that makes the connection assured, from an endpoint the SYN-ACK, or UDP
// answers in the first 2 seconds (see strayChains).
//
// A TCP reset or an ICMP error does not count as an answer. It removes the client from the set newcomers, so that load balancing selects an endpoint
// again for the next attempt.
func (t *tableState) answerChains() []Chain {
	if !t.hasAffinity() {
		return nil
	}
	answer := []Rule{{MatchNotDNAT{}, Verdict{Kind: Return}}}
	for _, proto := range [...]Protocol{TCP, UDP, SCTP} {
		if t.protocols[proto] == 0 {
			continue
		}
		accepts := map[Protocol]Statement{TCP: MatchSYN{}, UDP: MatchProto{UDP}, SCTP: MatchInitAck{}}[proto]
		if t.has(setAnswers) {
			answer = append(answer, Rule{accepts, VerdictMap{Key: originalFrontend, Map: setAnswers}})
		}
		if t.has(setNPAnswers) {
			answer = append(answer, Rule{
				accepts, MatchSet{Key: []Field{OriginalDaddr}, Set: setNPAddresses}, VerdictMap{Key: originalNodePort, Map: setNPAnswers},
			})
		}
	}
	answer = append(answer, Rule{MatchRST{}, GotoChain(chainRefused)}, Rule{MatchICMP{}, GotoChain(chainRefused)})
	chains := []Chain{
		{Name: chainRefused, Rules: []Rule{{Delete{Set: setNewcomers, Key: []Field{Daddr}}}}},
		{Name: chainAnswer, Rules: answer},
	}
	if t.answersHere > 0 {
		chains = append(chains, Chain{Name: chainOwnAnswers, Hook: HookOutput, Priority: PriorityStray, Filter: true, Rules: t.answerRules()})
	}
	if t.refreshes() {
		chains = append(chains, t.refreshChain())
	}
	return chains
}

// answerRules returns the rules of the chain that sees answers of endpoints: the first answer of a connection goes to chainAnswer, and
// later ones to chainRefresh if a port has AffinityOptions.Refresh, else they are accepted.
func (t *tableState) answerRules() []Rule {
	established := Verdict{Kind: Accept}
	if t.refreshes() {
		established = GotoChain(chainRefresh)
	}
	return []Rule{{MatchAssured{}, established}, {MatchReply{}, GotoChain(chainAnswer)}}
}

// refreshes reports whether a Service port in the table has AffinityOptions.Refresh.
func (t *tableState) refreshes() bool { return t.count(setRefresh)+t.count(setNPRefresh) > 0 }

// refreshChain returns the chain in which answers of established connections restart the timeout of their clients' affinity entries.
//
//	ct direction reply meta l4proto tcp ct original ip daddr . meta l4proto . ct original proto-dst vmap @refresh
func (t *tableState) refreshChain() Chain {
	var rules []Rule
	for _, proto := range [...]Protocol{TCP, UDP, SCTP} {
		if t.protocols[proto] == 0 {
			continue
		}
		reply := Rule{MatchReply{}, MatchProto{proto}}
		if t.has(setRefresh) {
			rules = append(rules, with(reply, Statement(VerdictMap{Key: originalFrontend, Map: setRefresh})))
		}
		if t.has(setNPRefresh) {
			rules = append(rules, append(reply[:len(reply):len(reply)],
				MatchSet{Key: []Field{OriginalDaddr}, Set: setNPAddresses}, VerdictMap{Key: originalNodePort, Map: setNPRefresh}))
		}
	}
	return Chain{Name: chainRefresh, Rules: rules}
}

// noteForOthers returns the rules that store a client and its endpoint for the other ports of the Service (AffinityOptions.WholeService).
//
//	ip saddr @members-8443/default/web/https update @affinity/default/web/https { ip daddr timeout 3h : ip saddr . 8443 }
func (p *compiledPort) noteForOthers(by noting) (rules []Rule) {
	endpoint := Saddr
	if by == byNewcomer {
		endpoint = Daddr
	}
	for _, o := range p.others {
		for pool, used := range o.usedPools() {
			if !used {
				continue
			}
			for _, port := range o.numbers(Pool(pool)) {
				update := o.update(Pool(pool), by)
				update.Data = []Field{endpoint, {Kind: FieldPort, Port: port}}
				rules = append(rules, Rule{MatchSet{Key: []Field{endpoint}, Set: o.number(Pool(pool), port).Name}, update})
			}
		}
	}
	return rules
}

// Affinity of a whole Service: where an endpoint answers a client at one port, the client is
// remembered for the others too, with the same address and their own number. An element can take
// an address from a packet, and a number from the rule: so there is a set of addresses for each number that
// endpoints of a port have, mostly one, and a rule.

// remembersWith returns the ports in all, other than p, for which a client of p is stored with its endpoint too (AffinityOptions.WholeService).
func (p *compiledPort) remembersWith(all []*compiledPort) (others []*compiledPort) {
	if p.Affinity == 0 || !p.AffinityOptions.WholeService {
		return nil
	}
	for _, o := range all {
		if o != p && o.Family == p.Family && o.Affinity > 0 && o.AffinityOptions == p.AffinityOptions {
			others = append(others, o)
		}
	}
	return others
}

// number returns the definition of the set that holds the addresses of a pool's endpoints with this port number.
func (p *compiledPort) number(pool Pool, port uint16) Set {
	return Set{Name: "members" + pools[pool].qualifier + "-" + strconv.Itoa(int(port)) + "/" + p.ID, Key: []Type{TypeAddr}}
}

// numbers returns the distinct port numbers of a pool's endpoints, sorted.
func (p *compiledPort) numbers(pool Pool) []uint16 {
	var list []uint16
	for _, ap := range p.slots[pool] {
		if !slices.Contains(list, ap.Port()) {
			list = append(list, ap.Port())
		}
	}
	slices.Sort(list)
	return list
}

// addNumbers adds, for each port number of this port's endpoints, the set of their addresses. The rules of other ports look up endpoints in these
// sets.
func (p *compiledPort) addNumbers(f *fragment, pool Pool) {
	if len(p.others) == 0 {
		return
	}
	for _, port := range p.numbers(pool) {
		f.sets = append(f.sets, p.number(pool, port))
	}
	for _, ap := range p.slots[pool] {
		f.elements = append(f.elements, placed{p.number(pool, ap.Port()).Name, AddrKey(ap.Addr()), ""})
	}
}

// parsePrefix parses the name of an affinity map into the prefix length of clients and the ID of the Service port. ok is false for maps of whole
// addresses and for other sets.
func parsePrefix(set string) (bits uint8, id string, ok bool) {
	kind, id, _ := strings.Cut(set, "/")
	if !strings.HasPrefix(kind, "affinity") {
		return 0, "", false
	}
	n, err := strconv.ParseUint(kind[strings.LastIndexByte(kind, '-')+1:], 10, 8)
	return uint8(n), id, err == nil
}

// A Service port with an idle timeout has its connections forgotten after that much silence. The
// first packet of a connection is given a timeout object in postrouting (or in input, where the endpoint is the box itself); established packets pay
// nothing. One object serves all Service ports of a protocol and a timeout.
//
// Connection tracking takes what comes later for the middle of a connection that it has not seen,
// and would start a new one, at any endpoint. So of TCP only a SYN gets to an endpoint, and the
// client of a connection that is forgotten is answered by a reset.

// parseTimeout parses the name of a timeout object, such as "idle-tcp-60".
func parseTimeout(name string) (t Timeout, ok bool) {
	text, ok := strings.CutPrefix(name, prefixIdle)
	protocol, seconds, cut := strings.Cut(text, "-")
	n, err := strconv.ParseUint(seconds, 10, 32)
	t.Protocol, t.Idle = map[string]Protocol{"tcp": TCP, "udp": UDP}[protocol], time.Duration(n)*time.Second
	return t, ok && cut && err == nil && t.Protocol != 0
}

// idle returns the port's idle timeout; ok is false if it has none.
func (p *compiledPort) idle() (t Timeout, ok bool) {
	return Timeout{p.Protocol, p.Idle}, p.Idle > 0 && p.Protocol != SCTP
}

// onlySYN returns the verdict by which the dispatch map sends clients to a chain. For a TCP port with an idle timeout the verdict leads through a
// chain that lets only SYN packets pass.
func (p *compiledPort) onlySYN(f *fragment, to Verdict) Verdict {
	if _, idle := p.idle(); !idle || p.Protocol != TCP {
		return to
	}
	f.shared = append(f.shared, prefixOnlySYN+to.Chain, chainRefuse)
	return GotoChain(prefixOnlySYN + to.Chain)
}

// idleRules returns the rules of a chain whose name begins with the name of a timeout object, or with the prefix for chains that accept only SYN
// packets. It returns false for other chains.
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

// addIdle adds the idle timeout of a frontend. If the box itself is one of the endpoints, it also adds the map element that sets the timeout in the
// chain input.
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

// leadsToBox reports whether the box itself is one of the endpoints that clients of a frontend can get.
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

// idleChains returns the chain that sets the idle timeout of connections to an endpoint on the box itself; nil if there are none.
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

// useTimeouts adds the argument by (1 or -1) to the use counts of the timeouts in a fragment.
func (t *tableState) useTimeouts(f *fragment, by int) {
	for _, timeout := range f.timeouts {
		if t.timeoutUses[timeout] += by; t.timeoutUses[timeout] == 0 {
			delete(t.timeoutUses, timeout)
		}
	}
}

// setTimeouts sets the table's timeout objects to those in use. They change only together with chains, which have them in their names.
func (t *tableState) setTimeouts() {
	t.timeouts = make(map[string]Timeout, len(t.timeoutUses))
	for timeout := range t.timeoutUses {
		t.timeouts[timeout.Name()] = timeout
	}
}

// recoverIdle returns the idle timeout that a frontend's verdict in postrouting implies, from the name of the chain: "idle-tcp-60/masquerade-always",
// or with affinity "newcomer-always-idle-tcp-60/default/web". It returns 0 if there is none.
func recoverIdle(verdict string) time.Duration {
	name, _, _ := strings.Cut(strings.TrimPrefix(verdict, "goto "), "/")
	if _, rest, is := strings.Cut(name, qualifierIdle); is {
		name = prefixIdle + rest
	}
	t, _ := parseTimeout(name)
	return t.Idle
}
