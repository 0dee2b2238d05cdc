package nft

import (
	"strconv"
	"strings"
	"time"
)

// A Service port may be limited in the new connections that it gets, altogether and of each client,
// and in the open ones of a client. Its frontends lead to a chain that all limited ones share, so
// that others pay nothing: that one jumps to the chain of the port's own limits, and goes on to where
// the frontend would have led. All frontends of a port in a family share its limits.
//
// A client over a rate gets no answer: no connection is left behind, so the SYN that a TCP client
// sends again is checked again. A client with too many connections is refused.

// limitedSize bounds the clients that the limits of a Service port count. When the set is full other
// clients are not limited.
const limitedSize = 65535

// clientRateLife is for how long the rate of a client is kept after its last new connection: longer
// than the slowest rate, one a minute, takes to be full again.
const clientRateLife = 2 * time.Minute

// word is the rate in a name, "100s".
func (r Rate) word() string {
	return strconv.FormatUint(uint64(r.Count), 10) + r.String()[strings.IndexByte(r.String(), '/')+1:][:1]
}

func parseRateWord(word string) (r Rate, ok bool) {
	if word == "" {
		return r, false
	}
	n, err := strconv.ParseUint(word[:len(word)-1], 10, 32)
	per := map[byte]time.Duration{'s': time.Second, 'm': time.Minute}[word[len(word)-1]]
	return Rate{uint32(n), per}, err == nil && n > 0 && per != 0
}

// chain names the chain of a port's limits: "limits-r100s-c10s-n20/default/web".
func (l Limits) chain(id string) string {
	name := prefixLimits
	if l.Rate.Count > 0 {
		name += "-r" + l.Rate.word()
	}
	if l.ClientRate.Count > 0 {
		name += "-c" + l.ClientRate.word() + prefixWord(l.ClientRatePrefix)
	}
	if l.ClientConnections > 0 {
		name += "-n" + strconv.FormatUint(uint64(l.ClientConnections), 10) + prefixWord(l.ClientConnectionsPrefix)
	}
	return name + "/" + id
}

// prefixWord is the length of clients' prefixes in a name, behind their limit: "-p64"; "" for whole addresses.
func prefixWord(bits uint8) string {
	if bits == 0 {
		return ""
	}
	return "-p" + strconv.Itoa(int(bits))
}

// parseLimits reads the name of a chain back.
func parseLimits(chain string) (l Limits, id string, ok bool) {
	name, id, _ := strings.Cut(chain, "/")
	words, ok := strings.CutPrefix(name, prefixLimits+"-")
	var bits *uint8 // of the limit before
	for _, word := range strings.Split(words, "-") {
		if word == "" || !ok {
			return l, id, false
		}
		switch kind, value := word[0], word[1:]; kind {
		case 'r':
			l.Rate, ok = parseRateWord(value)
		case 'c':
			l.ClientRate, ok = parseRateWord(value)
			bits = &l.ClientRatePrefix
		case 'p':
			n, err := strconv.ParseUint(value, 10, 7)
			if bits == nil || err != nil || n == 0 {
				return l, id, false
			}
			*bits, bits = uint8(n), nil
		default:
			n, err := strconv.ParseUint(value, 10, 32)
			l.ClientConnections, ok = uint32(n), err == nil && kind == 'n'
			bits = &l.ClientConnectionsPrefix
		}
	}
	return l, id, ok
}

// addLimits adds the chain of the port's limits, and the sets of its clients. Each limit has a set of its own: the
// elements of one keep the limit that they were made with.
//
//	chain limits-r100s-c10s-n20/default/web {
//		add @client-connections-20/default/web { ip saddr ct count over 20 } goto refuse-client
//		update @client-rates-10s/default/web { ip saddr timeout 2m limit rate over 10/second burst 10 packets } counter name "client-rate-limit" drop
//		limit rate over 100/second burst 100 packets counter name "rate-limit" drop
//	}
//
// The rate of all is asked last, so that what a client sends over its own does not count.
func (p *compiledPort) addLimits(f *fragment, box *Box) {
	l := p.Limits
	client := func(bits uint8) []Field {
		field := Saddr
		field.Bits = bits
		return []Field{field}
	}
	var rules []Rule
	if l.ClientConnections > 0 {
		set := Set{Name: prefixClientConns + strconv.FormatUint(uint64(l.ClientConnections), 10) + prefixWord(l.ClientConnectionsPrefix) + "/" + p.ID, Key: []Type{TypeAddr}, Dynamic: true, Size: limitedSize}
		f.sets = append(f.sets, set)
		f.shared = append(f.shared, chainRefuseClient)
		rules = append(rules, Rule{Update{Map: set.Name, Key: client(l.ClientConnectionsPrefix), Add: true, Connections: l.ClientConnections}, GotoChain(chainRefuseClient)})
	}
	drop := func(over Statement, reason string) {
		rules = append(rules, append(Rule{over}, box.counted(reason, Verdict{Kind: Drop})...))
	}
	if l.ClientRate.Count > 0 {
		set := Set{Name: prefixClientRates + l.ClientRate.word() + prefixWord(l.ClientRatePrefix) + "/" + p.ID, Key: []Type{TypeAddr}, Dynamic: true, Timeout: clientRateLife, Size: limitedSize}
		f.sets = append(f.sets, set)
		drop(Update{Map: set.Name, Key: client(l.ClientRatePrefix), Timeout: clientRateLife, Rate: l.ClientRate}, RefusedClientRate)
	}
	if l.Rate.Count > 0 {
		drop(Over{l.Rate}, RefusedRate)
	}
	f.chains = append(f.chains, Chain{Name: l.chain(p.ID), Rules: rules})
	f.limits++
}

// limited gives the verdict by which the dispatch sends a frontend's clients on, after its limits if it has any.
func (p *compiledPort) limited(f *fragment, to limitedMap, frontend, verdict string) (first string, limited bool) {
	if !p.Limits.Any() || !strings.HasPrefix(verdict, "goto ") || verdict == GotoChain(chainRefuse).String() {
		return verdict, false
	}
	f.elements = append(f.elements, placed{to.set, frontend, verdict})
	return GotoChain(to.chain).String(), true
}

// jumpToLimits has clients pass the limits of the port.
func (p *compiledPort) jumpToLimits() Verdict {
	return Verdict{Kind: Jump, Chain: p.Limits.chain(p.ID)}
}

// limitedChains lead to the limits of a frontend, and from there to where it leads.
//
//	chain limited {
//		ip daddr . meta l4proto . th dport vmap @limited-by
//		ip daddr . meta l4proto . th dport vmap @limited-services
//	}
func (t *tableState) limitedChains() (chains []Chain) {
	for _, c := range []struct {
		key  []Field
		maps *limitedMaps
	}{{frontend, &vipMaps.limits}, {nodePort, &nodePortMaps.limits}} {
		for _, to := range []limitedMap{c.maps.inside, c.maps.outside} {
			if t.has(to.set) {
				chains = append(chains, Chain{Name: to.chain, Rules: []Rule{{VerdictMap{Key: c.key, Map: c.maps.by}}, {VerdictMap{Key: c.key, Map: to.set}}}})
			}
		}
	}
	return chains
}

// limitsRule is the rule that has the clients of a range pass its limits, if it has any.
func (p *compiledPort) limitsRule() []Rule {
	if !p.Limits.Any() {
		return nil
	}
	return []Rule{{p.jumpToLimits()}}
}
