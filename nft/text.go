package nft

import (
	"hash/fnv"
	"io"
	"slices"
	"strconv"
	"time"
)

// Text is the rule as nft 1.0.6 prints it in the table of family f. Three forms
// differ from what the statements say one by one, because nft prints them so:
//
//   - `meta l4proto tcp` goes away when a later `th dport` of the rule becomes
//     `tcp dport`, or when `reject with tcp reset` implies it;
//   - `ct status & dnat == 0` is `ct status ! dnat`;
//   - `reject with icmp port-unreachable` is the default, so it is `reject`.
//
// The text of one family means the same rule in every program: it loads.
func (r Rule) Text(f Family) string {
	return string(r.appendText(make([]byte, 0, 128), f))
}

// Mark is the rule's identity: the 64-bit FNV-1a of its text, never 0. It is stored
// with the rule in the kernel, so that a chain read back can be compared with one
// that was compiled.
func (r Rule) Mark(f Family) uint64 {
	h := fnv.New64a()
	io.WriteString(h, r.Text(f)) // a hash never fails
	return max(h.Sum64(), 1)
}

func (r Rule) appendText(b []byte, f Family) []byte {
	t := ruleText{Family: f, buf: b}
	for i, s := range r {
		if match, ok := s.(MatchProto); ok {
			t.proto = match.Proto
			if match.implied(r[i+1:]) {
				continue
			}
		}
		if len(t.buf) > len(b) {
			t.buf = append(t.buf, ' ')
		}
		t.statement(s)
	}
	return t.buf
}

// implied reports whether nft drops the match, because one of the statements that
// follow it cannot be written without the protocol's name.
func (m MatchProto) implied(rest Rule) bool {
	for _, s := range rest {
		var read []Field
		switch s := s.(type) {
		case MatchProto:
			return false // that one is what the rest depends on
		case Reject:
			if s.With == RejectTCPReset && m.Proto == TCP {
				return true
			}
		case MatchSet:
			read = s.Key
		case VerdictMap:
			read = s.Key
		case DNAT:
			read = s.Key
		case Update:
			// What follows comes too late to keep other protocols from this.
			return slices.Contains(s.Key, Dport) || slices.Contains(s.Data, Dport)
		}
		if slices.Contains(read, Dport) {
			return true
		}
	}
	return false
}

// ruleText writes the statements of one rule.
type ruleText struct {
	Family
	buf   []byte
	proto Protocol // what the rule has matched so far; 0: any
}

func (t *ruleText) say(words ...string) {
	for _, w := range words {
		t.buf = append(t.buf, w...)
	}
}

func (t *ruleText) statement(s Statement) {
	switch s := s.(type) {
	case MatchProto:
		t.say("meta l4proto ", s.Proto.String())
	case MatchPrefix:
		t.field(s.Field)
		t.say(equal(s.Negate))
		t.prefix(s)
	case MatchSet:
		t.fields(s.Key)
		t.say(equal(s.Negate), "@", s.Set)
	case MatchNotDNAT:
		t.say("ct status ! dnat")
	case MatchLocalSource:
		t.say("fib saddr type local")
	case MatchLocalDest:
		t.say("fib daddr type local")
	case MatchAssured:
		t.say("ct status assured")
	case MatchSYN:
		t.say("tcp flags syn")
	case MatchRST:
		t.say("tcp flags rst")
	case MatchInitAck:
		t.say("meta l4proto sctp @th,96,8 0x2")
	case MatchReply:
		t.say("ct direction reply")
	case MatchInvalid:
		t.say("ct state invalid")
	case MatchNoSYN:
		t.say("tcp flags ! syn")
	case MatchEchoRequest:
		t.say(t.icmp(), " type echo-request")
	case MatchNotICMP:
		t.say("meta l4proto != ", t.icmpProtocol())
	case MatchICMP:
		t.say("meta l4proto ", t.icmpProtocol())
	case VerdictMap:
		t.fields(s.Key)
		t.say(" vmap @", s.Map)
	case DNAT:
		t.say("dnat ", t.String(), " to ")
		t.fields(s.Key)
		t.say(" map @", s.Map)
	case SourceMap:
		t.say("snat ", t.String(), " to ")
		t.fields(s.Key)
		t.say(" map @", s.Map)
	case Update:
		t.update(s)
	case Over:
		t.limit(s.Rate)
	case Delete:
		t.say("delete @", s.Set, " { ")
		t.fields(s.Key)
		t.say(" }")
	case SetTimeout:
		t.say(`ct timeout set "`, s.Timeout.Name(), `"`)
	case Counter:
		t.say("counter name \"", s.Name, "\"")
	case Masquerade:
		t.say("masquerade")
	case Redirect:
		t.say("redirect")
	case Reject:
		t.reject(s.With)
	case Verdict:
		t.say(s.String())
	default:
		panic("nft: statement of no kind")
	}
}

func equal(negate bool) string {
	if negate {
		return " != "
	}
	return " "
}

func (t *ruleText) icmpProtocol() string {
	if t.Family == IPv6 {
		return "ipv6-icmp"
	}
	return "icmp"
}

func (t *ruleText) icmp() string {
	if t.Family == IPv6 {
		return "icmpv6"
	}
	return "icmp"
}

func (t *ruleText) fields(fields []Field) {
	for i, field := range fields {
		if i > 0 {
			t.say(" . ")
		}
		t.field(field)
	}
}

func (t *ruleText) field(field Field) {
	switch field.Kind {
	case FieldSaddr:
		t.say(t.String(), " saddr")
		t.mask(field)
	case FieldDaddr:
		t.say(t.String(), " daddr")
		t.mask(field)
	case FieldL4Proto:
		t.say("meta l4proto")
	case FieldDport:
		if t.proto != 0 {
			t.say(t.proto.String(), " dport")
		} else {
			t.say("th dport")
		}
	case FieldSport:
		t.say("th sport")
	case FieldOriginalDaddr:
		t.say("ct original ", t.String(), " daddr")
	case FieldOriginalDport:
		t.say("ct original proto-dst")
	case FieldNumgen:
		t.say("numgen random mod ")
		t.buf = strconv.AppendUint(t.buf, uint64(field.Mod), 10)
		if field.Offset > 0 {
			t.say(" offset ")
			t.buf = strconv.AppendUint(t.buf, uint64(field.Offset), 10)
		}
	case FieldTurn:
		t.say("numgen inc mod ")
		t.buf = strconv.AppendUint(t.buf, uint64(field.Mod), 10)
	case FieldHashSource, FieldHashFlow:
		t.say("jhash ", t.String(), " saddr ")
		if field.Kind == FieldHashFlow {
			t.say(". th sport ")
		}
		t.say("mod ")
		t.buf = strconv.AppendUint(t.buf, uint64(field.Mod), 10)
		t.say(" seed 0x")
		t.buf = strconv.AppendUint(t.buf, HashSeed, 16)
	case FieldPort:
		t.buf = strconv.AppendUint(t.buf, uint64(field.Port), 10)
	case FieldIif:
		t.say("iif")
	case FieldOif:
		t.say("oif")
	default:
		panic("nft: field of no kind")
	}
}

// mask writes which part of an address is read.
func (t *ruleText) mask(field Field) {
	if field.Bits == 0 {
		return
	}
	t.say(" & ")
	t.buf = field.Mask(t.Family).AppendTo(t.buf)
}

// prefix writes an address alone where the prefix holds just that one.
func (t *ruleText) prefix(m MatchPrefix) {
	if m.Prefix.IsSingleIP() {
		t.buf = m.Prefix.Addr().AppendTo(t.buf)
		return
	}
	t.buf = m.Prefix.Masked().AppendTo(t.buf)
}

func (t *ruleText) update(u Update) {
	operation := "update @"
	if u.Add {
		operation = "add @"
	}
	t.say(operation, u.Map, " { ")
	t.fields(u.Key)
	if u.Timeout > 0 {
		t.say(" timeout ")
		t.buf = appendDuration(t.buf, u.Timeout)
	}
	if u.Rate.Count > 0 {
		t.say(" ")
		t.limit(u.Rate)
	}
	if u.Connections > 0 {
		t.say(" ct count over ")
		t.buf = strconv.AppendUint(t.buf, uint64(u.Connections), 10)
	}
	if len(u.Data) > 0 {
		t.say(" : ")
		t.fields(u.Data)
	}
	t.say(" }")
}

func (t *ruleText) limit(r Rate) {
	t.say("limit rate over ", r.String(), " burst ")
	t.buf = strconv.AppendUint(t.buf, uint64(r.Burst()), 10)
	t.say(" packets")
}

func (t *ruleText) reject(with RejectWith) {
	switch {
	case with == RejectTCPReset:
		t.say("reject with tcp reset")
	case with == RejectPortUnreachable:
		t.say("reject")
	case with == RejectHostUnreachable && t.Family == IPv6:
		t.say("reject with icmpv6 addr-unreachable")
	case with == RejectHostUnreachable:
		t.say("reject with icmp host-unreachable")
	default:
		panic("nft: reject of no kind")
	}
}

// appendDuration writes a time as nft does, which knows days and no fraction of a
// millisecond: 1d2h3m4s500ms.
func appendDuration(b []byte, d time.Duration) []byte {
	start := len(b)
	for _, unit := range [...]struct {
		len  time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := d / unit.len; n > 0 {
			b = append(strconv.AppendInt(b, int64(n), 10), unit.name...)
			d %= unit.len
		}
	}
	if len(b) == start {
		return append(b, "0s"...)
	}
	return b
}
