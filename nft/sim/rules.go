package sim

import (
	"fmt"
	"net/netip"
	"strings"

	"svcctl.io/svcctl/nft"
)

// verdict is the effect of a statement, a rule or a chain on a packet.
type verdict struct {
	kind  verdictKind
	chain string         // toChain, callChain
	with  nft.RejectWith // rejected
}

type verdictKind uint8

const (
	goesOn    verdictKind = iota // continue with the next statement, the next rule, the caller
	noMatch                      // skip the rest of the rule
	returned                     // skip the rest of the chain
	accepted                     // end of the base chain
	dropped                      // the packet is dropped
	rejected                     // the packet is dropped and its sender informed
	toChain                      // goto
	callChain                    // jump
)

// maxDepth bounds the nesting of chains by jump or goto (NFT_JUMP_STACK_SIZE).
const maxDepth = 16

// chain runs the rules of a chain. At its end evaluation continues in its caller. A goto
// replaces the chain: the end of the target is the end of the chain it left.
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

// translate hands the address and port that a map gives to dnat or snat; port where it gives none.
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

// reject refuses the packet. `reject with tcp reset` implies `meta l4proto tcp`.
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

// read returns the current value of a field. The port of an echo request is what its
// header has at that offset (a checksum); here it is the packet's Dport.
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

// masked is the part of an address that a field reads.
func masked(addr netip.Addr, field nft.Field) netip.Addr {
	if field.Bits == 0 {
		return addr
	}
	return netip.PrefixFrom(addr, int(field.Bits)).Masked().Addr()
}

func (f *flow) key(fields []nft.Field) string {
	values := make([]nft.Value, len(fields))
	for i, field := range fields {
		values[i] = f.read(field)
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
