package sim

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"svcctl.io/svcctl/nft"
)

// verdict is the effect of a statement, a rule or a chain on a packet.
type verdict struct {
	kind  verdictKind
	chain string         // the target of toChain or callChain
	with  nft.RejectWith // the answer, for rejected
}

type verdictKind uint8

const (
	goesOn    verdictKind = iota // continue with the next statement, then the next rule, then the calling chain
	noMatch                      // skip the rest of the rule
	returned                     // skip the rest of the chain
	accepted                     // end of the base chain
	dropped                      // the packet is dropped
	rejected                     // the packet is dropped and the sender gets an answer
	toChain                      // goto
	callChain                    // jump
)

// maxDepth bounds the nesting of chains by jump or goto (NFT_JUMP_STACK_SIZE).
const maxDepth = 16

// chain evaluates the rules of a chain. After the last rule, evaluation continues in the calling chain. A goto does not return to the chain that it
// left, but to the caller of that chain.
func (f *flow) chain(c *nft.Chain, depth int) verdict {
	if depth > maxDepth {
		panic("sim: chains nest too deep at " + c.Name)
	}
	for _, r := range c.Rules {
		v := f.rule(c, r)
		switch v.kind {
		case noMatch, goesOn:
			continue
		case returned:
			return verdict{kind: goesOn}
		case toChain:
			return f.chain(f.chainNamed(v.chain), depth+1)
		case callChain:
			if v = f.chain(f.chainNamed(v.chain), depth+1); v.kind == goesOn {
				continue
			}
		}
		return v
	}
	return verdict{kind: goesOn}
}

func (f *flow) chainNamed(name string) *nft.Chain {
	c := f.table.Chains[name]
	if c == nil {
		panic(fmt.Sprintf("sim: table %s has no chain %s", f.family, name))
	}
	return c
}

// rule runs the statements of a rule until one does not match or gives a verdict.
func (f *flow) rule(c *nft.Chain, r nft.Rule) verdict {
	var elements []found
	f.in = c.Name
	for _, s := range r {
		v, element := f.statement(s)
		if v.kind == noMatch {
			return v
		}
		if element.set != nil {
			elements = append(elements, element)
		}
		if v.kind != goesOn {
			f.trace = append(f.trace, matched{f.family, c.Name, r, elements})
			return v
		}
	}
	f.trace = append(f.trace, matched{f.family, c.Name, r, elements})
	return verdict{kind: goesOn}
}

// statement runs a statement and returns its verdict, and the element of a lookup.
func (f *flow) statement(s nft.Statement) (v verdict, element found) {
	switch s := s.(type) {
	case nft.MatchProto:
		return match(f.protocol() == uint32(s.Proto)), found{}
	case nft.MatchPrefix:
		return match(s.Prefix.Contains(f.read(s.Field).Addr) != s.Negate), found{}
	case nft.MatchNotDNAT:
		return match(!f.dnated), found{}
	case nft.MatchLocalSource:
		return match(f.host.IsLocal(f.packet.Saddr)), found{}
	case nft.MatchLocalDest:
		return match(f.host.IsLocal(f.packet.Daddr)), found{}
	case nft.MatchInvalid, nft.MatchNoSYN, nft.MatchAssured, nft.MatchFast: // first packets and first answers are neither
		return match(false), found{}
	case nft.MatchReply:
		return match(f.isReset || f.isAnswer), found{}
	case nft.MatchSYN:
		return match(f.packet.Proto == nft.TCP && !f.isReset), found{}
	case nft.MatchRST:
		return match(f.isReset), found{}
	case nft.MatchInitAck:
		return match(f.packet.Proto == nft.SCTP && f.isAnswer), found{}
	case nft.MatchICMP:
		return match(f.packet.ICMPEcho), found{}
	case nft.MatchEchoRequest:
		return match(f.packet.ICMPEcho), found{}
	case nft.MatchNotICMP:
		return match(!f.packet.ICMPEcho), found{}
	case nft.MatchSet:
		e, is := f.lookup(s.Set, s.Key)
		return match(is != s.Negate), e
	case nft.VerdictMap:
		e, is := f.lookup(s.Map, s.Key)
		if !is {
			return verdict{kind: noMatch}, found{}
		}
		return parseVerdict(e.Data), e
	case nft.DNAT:
		return f.translate(s.Map, s.Key, f.packet.Dport, f.dnat)
	case nft.SourceMap:
		return f.translate(s.Map, s.Key, f.packet.Sport, f.snat)
	case nft.Over:
		return match(f.overRate(f.in, "", s.Rate)), found{}
	case nft.Update:
		switch room := f.learn(s); {
		case s.Connections > 0:
			return match(room && f.overConnections(s.Map, f.key(s.Key), s.Connections)), found{}
		case s.Rate.Count > 0:
			return match(room && f.overRate(s.Map, f.key(s.Key), s.Rate)), found{}
		default:
			return match(room), found{}
		}
	case nft.Delete:
		return match(f.unlearn(s)), found{}
	case nft.SetTimeout:
		f.timeout = s.Timeout
		return match(true), found{}
	case nft.Counter, nft.FlowAdd:
		return match(true), found{}
	case nft.Masquerade:
		return f.masquerade(), found{}
	case nft.Redirect:
		return f.redirect(), found{}
	case nft.Reject:
		return f.reject(s.With), found{}
	case nft.Verdict:
		return parseVerdict(s.String()), found{}
	}
	panic(fmt.Sprintf("sim: unknown statement %T", s))
}

// translate looks up key in a map and calls nat (dnat or snat) with the address and port in the data. port is used if the data has no port.
func (f *flow) translate(set string, key []nft.Field, port uint16, nat func(to netip.AddrPort)) (v verdict, element found) {
	e, is := f.lookup(set, key)
	if !is {
		return verdict{kind: noMatch}, found{}
	}
	nat(f.endpoint(set, e.Data, port))
	return verdict{kind: accepted}, e
}

func match(ok bool) verdict {
	if ok {
		return verdict{kind: goesOn}
	}
	return verdict{kind: noMatch}
}

// reject returns the verdict of a `reject` statement. `reject with tcp reset` implies `meta l4proto tcp`, so it does not match other protocols.
func (f *flow) reject(with nft.RejectWith) verdict {
	if with == nft.RejectTCPReset && f.packet.Proto != nft.TCP {
		return verdict{kind: noMatch}
	}
	return verdict{kind: rejected, with: with}
}

// parseVerdict parses a verdict in nft syntax, as a verdict map contains it.
func parseVerdict(text string) verdict {
	switch word, chain, _ := strings.Cut(text, " "); word {
	case "accept":
		return verdict{kind: accepted}
	case "drop":
		return verdict{kind: dropped}
	case "continue":
		return verdict{kind: goesOn}
	case "return":
		return verdict{kind: returned}
	case "goto":
		return verdict{kind: toChain, chain: chain}
	case "jump":
		return verdict{kind: callChain, chain: chain}
	}
	panic("sim: unknown verdict " + text)
}

// protocol returns the value of `meta l4proto`.
func (f *flow) protocol() uint32 {
	switch {
	case !f.packet.ICMPEcho:
		return uint32(f.packet.Proto)
	case f.family == nft.IPv6:
		return protoICMPv6
	}
	return protoICMP
}

// read returns the current value of a field. For the port of an echo request the kernel reads the bytes at the offset of a port (a checksum); here it
// is the packet's Dport.
func (f *flow) read(field nft.Field) nft.Value {
	v := nft.Value{Type: field.Type()}
	switch field.Kind {
	case nft.FieldSaddr:
		v.Addr = masked(f.packet.Saddr, field)
	case nft.FieldDaddr:
		v.Addr = masked(f.packet.Daddr, field)
	case nft.FieldOriginalDaddr:
		v.Addr = f.original.Addr()
	case nft.FieldL4Proto:
		v.Num = f.protocol()
	case nft.FieldSport:
		v.Num = uint32(f.packet.Sport)
	case nft.FieldDport:
		v.Num = uint32(f.packet.Dport)
	case nft.FieldOriginalDport:
		v.Num = uint32(f.original.Port())
	case nft.FieldNumgen:
		v.Num = f.random.Uint32N(field.Mod) + field.Offset
	case nft.FieldTurn: // the turn depends on earlier connections
		v.Num = f.random.Uint32N(field.Mod)
	case nft.FieldHashSource, nft.FieldHashFlow:
		v.Num = nft.HashSlot(field.Kind, netip.AddrPortFrom(f.packet.Saddr, f.packet.Sport), field.Mod)
	case nft.FieldPort:
		v.Num = uint32(field.Port)
	case nft.FieldIif:
		v.Num = f.packet.Iif
	case nft.FieldOif:
		v.Num = f.oif
	default:
		panic("sim: field of no kind")
	}
	return v
}

// masked returns an address with only the bits that a field reads.
func masked(addr netip.Addr, field nft.Field) netip.Addr {
	if field.Bits == 0 {
		return addr
	}
	return netip.PrefixFrom(addr, int(field.Bits)).Masked().Addr()
}

func (f *flow) key(fields []nft.Field) string {
	values := make([]nft.Value, 0, 8) // of a constant size it is not on the heap
	for _, field := range fields {
		values = append(values, f.read(field))
	}
	return nft.JoinKey(values...)
}

func (f *flow) endpoint(set, data string, port uint16) netip.AddrPort {
	values := nft.SplitKey(f.set(set).Data, f.family, data)
	if len(values) == 1 { // the port stays
		return netip.AddrPortFrom(values[0].Addr, port)
	}
	if len(values) != 2 {
		panic(fmt.Sprintf("sim: map %s does not give address . port", set))
	}
	return netip.AddrPortFrom(values[0].Addr, uint16(values[1].Num))
}

// defaultDynamicSize is the size of a dynamic set that was declared without one
// (nft_dynset_init).
const defaultDynamicSize = 65535

// Memory holds the elements of dynamic sets and the use of limits by earlier packets, as recorded from their Trails. Package nft/nfttest/stateful
// implements it for tests.
type Memory interface {
	// Recall returns the data of an element, and false if it does not exist or has expired.
	Recall(ElementID) (data string, has bool)
	// Len counts the elements of a set that have not expired.
	Len(SetID) int
	// OverRate reports whether one more packet exceeds a rate limit, and counts the packet if it does not.
	OverRate(LimitID, nft.Rate) bool
	// Open returns the number of open connections that a connection limit counts.
	Open(LimitID) uint32
}

// SetID identifies a set by family and name.
type SetID struct {
	Family nft.Family
	Name   string
}

// LimitID identifies the limit of a chain or, if Key is set, of an element of a set.
type LimitID struct {
	Family    nft.Family
	Name, Key string
}

// Trail holds the state that a packet leaves behind for later packets.
type Trail struct {
	Lessons map[ElementID]Lesson
	Opens   []LimitID // connection limits that count the packet's connection, if it is delivered
}

// ElementID names an element of a set.
type ElementID struct {
	Set SetID
	Key string
}

// A Lesson is the addition of an element to a dynamic set by a packet, or its removal.
type Lesson struct {
	Data    string
	Timeout time.Duration // 0 if the element does not expire
	Removed bool
}

func (f *flow) set(name string) *nft.SetContent {
	s := f.table.Sets[name]
	if s == nil {
		panic(fmt.Sprintf("sim: table %s has no set %s", f.family, name))
	}
	return s
}

// found is an element that a lookup found, and its set; the zero value if none was found.
type found struct {
	nft.Element
	set *nft.SetContent
}

// lookup finds the element of a set with the current values of fields as its key.
func (f *flow) lookup(name string, fields []nft.Field) (found, bool) {
	s, key := f.set(name), f.key(fields)
	e, ok := f.element(s, key)
	if !ok {
		return found{}, false
	}
	return found{e, s}, true
}

func (f *flow) element(s *nft.SetContent, key string) (nft.Element, bool) {
	if s.Interval {
		values := nft.SplitKey(s.Key, f.family, key)
		for ends, data := range s.Elements { // every field lies between those of both ends
			if e := nft.SplitKey(s.Key, f.family, ends); within(values, e[:len(values)], e[len(values):]) {
				return nft.Element{Key: ends, Data: data}, true
			}
		}
		return nft.Element{}, false
	}
	if data, ok := s.Elements[key]; ok {
		return nft.Element{Key: key, Data: data}, true
	}
	data, ok := f.recall(ElementID{SetID{f.family, s.Name}, key})
	return nft.Element{Key: key, Data: data}, ok
}

func within(values, first, last []nft.Value) bool {
	for i, v := range values {
		if v.Addr.Compare(first[i].Addr) < 0 || v.Addr.Compare(last[i].Addr) > 0 ||
			v.Num < first[i].Num || v.Num > last[i].Num {
			return false
		}
	}
	return true
}

// recall returns the data of an element that this packet or an earlier one added.
func (f *flow) recall(e ElementID) (data string, has bool) {
	if l, learnt := f.trail.Lessons[e]; learnt {
		return l.Data, !l.Removed
	}
	return f.remembered(e)
}

// remembered returns the data of an element that an earlier packet added.
func (f *flow) remembered(e ElementID) (data string, has bool) {
	if f.host.Memory == nil {
		return "", false
	}
	return f.host.Memory.Recall(e)
}

// learn evaluates an Update: it adds an element, or restarts the timeout of an existing one but keeps its data (nft_rhash_update). With Add it leaves
// an existing element unchanged. It returns false if the set is full.
func (f *flow) learn(u nft.Update) bool {
	s, e := f.set(u.Map), ElementID{SetID{f.family, u.Map}, f.key(u.Key)}
	data := f.key(u.Data)
	if _, ok := s.Elements[e.Key]; ok {
		return true
	}
	if old, ok := f.recall(e); ok && u.Add {
		return true
	} else if ok {
		data = old
	} else if f.full(s, e.Set) {
		return false
	}
	f.leave(e, Lesson{Data: data, Timeout: cmp.Or(u.Timeout, s.Timeout)})
	return true
}

// unlearn removes an element from a dynamic set, and reports whether there was one.
func (f *flow) unlearn(d nft.Delete) bool {
	e := ElementID{SetID{f.family, d.Set}, f.key(d.Key)}
	_, ok := f.recall(e)
	f.leave(e, Lesson{Removed: true})
	return ok
}

func (f *flow) leave(e ElementID, l Lesson) {
	if f.trail.Lessons == nil {
		f.trail.Lessons = map[ElementID]Lesson{}
	}
	f.trail.Lessons[e] = l
}

// full reports whether a set has reached its maximum size. The kernel also counts expired elements until garbage collection removes them; full does
// not.
func (f *flow) full(s *nft.SetContent, id SetID) bool {
	n := len(s.Elements)
	if f.host.Memory != nil {
		n += f.host.Memory.Len(id)
	}
	for e, l := range f.trail.Lessons {
		if _, had := f.remembered(e); e.Set == id && !l.Removed && !had {
			n++
		}
	}
	return n >= cmp.Or(int(s.Size), defaultDynamicSize)
}

// overRate reports whether a new connection exceeds a rate, and counts it if it does not.
func (f *flow) overRate(name, key string, r nft.Rate) bool {
	return f.limited && !f.isReset && f.host.Memory.OverRate(LimitID{f.family, name, key}, r)
}

// overConnections reports whether a client already has the maximum number of open connections. If it does not, the packet's connection will be
// counted once it is delivered.
func (f *flow) overConnections(name, key string, most uint32) bool {
	if !f.limited || f.isReset {
		return false
	}
	id := LimitID{f.family, name, key}
	if f.host.Memory.Open(id) >= most {
		return true
	}
	f.trail.Opens = append(f.trail.Opens, id)
	return false
}
