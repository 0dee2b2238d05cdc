package nft

import (
	"bufio"
	"cmp"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Text returns the rule as nft 1.0.6 prints it in the table of family f. Like nft, it deviates from the text of the single statements in three cases:
//
// - `meta l4proto tcp` is omitted if a later `th dport` of the rule becomes `tcp dport`, or if `reject with tcp reset` implies it; - `ct status &
// dnat == 0` is `ct status ! dnat`; - `reject with icmp port-unreachable` is the default, so it is `reject`.
//
// The text can be loaded with `nft -f`. Rules of a family are equal if their texts are equal.
func (r Rule) Text(f Family) string {
	return string(r.appendText(make([]byte, 0, 128), f))
}

// Mark returns a hash that identifies the rule: the 64-bit FNV-1a hash of its text, never 0. It is stored with the rule in the kernel, so that a
// chain read from the kernel can be compared with a compiled one.
func (r Rule) Mark(f Family) uint64 {
	h := fnv.New64a()
	io.WriteString(h, r.Text(f)) // a hash never fails
	return max(h.Sum64(), 1)
}

func (r Rule) appendText(b []byte, f Family) []byte {
	text, in := ruleText(b), context{Family: f}
	for i, s := range r {
		if match, ok := s.(MatchProto); ok {
			in.proto = match.Proto
			if match.implied(r[i+1:]) {
				continue
			}
		}
		if len(text) > len(b) {
			text = append(text, ' ')
		}
		text = s.text(text, in)
	}
	return text
}

// implied reports whether nft omits the match, because a later statement of the rule contains the name of the protocol.
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

// ruleText is the beginning of a rule's text. Its methods return it with more text.
type ruleText []byte

// context is what the text of a statement depends on beside the statement.
type context struct {
	Family
	proto Protocol // the protocol that the rule has matched so far; 0 if none
}

func (t ruleText) say(words ...string) ruleText {
	for _, w := range words {
		t = append(t, w...)
	}
	return t
}

func (t ruleText) number(n uint32) ruleText { return strconv.AppendUint(t, uint64(n), 10) }

// The text methods of the statements add the text in nft syntax.

func (s MatchProto) text(t ruleText, _ context) ruleText {
	return t.say("meta l4proto ", s.Proto.String())
}

func (s MatchPrefix) text(t ruleText, in context) ruleText {
	t = t.field(in, s.Field).say(equal(s.Negate))
	if s.Prefix.IsSingleIP() { // nft prints the address alone
		return s.Prefix.Addr().AppendTo(t)
	}
	return s.Prefix.Masked().AppendTo(t)
}

func (s MatchSet) text(t ruleText, in context) ruleText {
	return t.fields(in, s.Key).say(equal(s.Negate), "@", s.Set)
}

func (MatchEchoRequest) text(t ruleText, in context) ruleText {
	return t.say(in.icmp(), " type echo-request")
}
func (MatchNotICMP) text(t ruleText, in context) ruleText {
	return t.say("meta l4proto != ", in.icmpProtocol())
}
func (MatchICMP) text(t ruleText, in context) ruleText {
	return t.say("meta l4proto ", in.icmpProtocol())
}
func (MatchNotDNAT) text(t ruleText, _ context) ruleText     { return t.say("ct status ! dnat") }
func (MatchLocalSource) text(t ruleText, _ context) ruleText { return t.say("fib saddr type local") }
func (MatchLocalDest) text(t ruleText, _ context) ruleText   { return t.say("fib daddr type local") }
func (MatchAssured) text(t ruleText, _ context) ruleText     { return t.say("ct status assured") }
func (MatchSYN) text(t ruleText, _ context) ruleText         { return t.say("tcp flags syn") }
func (MatchRST) text(t ruleText, _ context) ruleText         { return t.say("tcp flags rst") }
func (MatchInitAck) text(t ruleText, _ context) ruleText {
	return t.say("meta l4proto sctp @th,96,8 0x2")
}
func (MatchReply) text(t ruleText, _ context) ruleText   { return t.say("ct direction reply") }
func (MatchInvalid) text(t ruleText, _ context) ruleText { return t.say("ct state invalid") }
func (MatchNoSYN) text(t ruleText, _ context) ruleText   { return t.say("tcp flags ! syn") }
func (Masquerade) text(t ruleText, _ context) ruleText   { return t.say("masquerade") }
func (Redirect) text(t ruleText, _ context) ruleText     { return t.say("redirect") }
func (s Verdict) text(t ruleText, _ context) ruleText    { return t.say(s.String()) }
func (s VerdictMap) text(t ruleText, in context) ruleText {
	return t.fields(in, s.Key).say(" vmap @", s.Map)
}
func (s Over) text(t ruleText, _ context) ruleText    { return t.limit(s.Rate) }
func (s Counter) text(t ruleText, _ context) ruleText { return t.say(`counter name "`, s.Name, `"`) }

func (s DNAT) text(t ruleText, in context) ruleText {
	return t.say("dnat ", in.String(), " to ").fields(in, s.Key).say(" map @", s.Map)
}

func (s SourceMap) text(t ruleText, in context) ruleText {
	return t.say("snat ", in.String(), " to ").fields(in, s.Key).say(" map @", s.Map)
}

func (s Delete) text(t ruleText, in context) ruleText {
	return t.say("delete @", s.Set, " { ").fields(in, s.Key).say(" }")
}

func (s SetTimeout) text(t ruleText, in context) ruleText {
	return t.say(`ct timeout set "`, s.Timeout.Name(), `"`)
}

func (s Update) text(t ruleText, in context) ruleText {
	operation := "update @"
	if s.Add {
		operation = "add @"
	}
	t = t.say(operation, s.Map, " { ").fields(in, s.Key)
	if s.Timeout > 0 {
		t = appendDuration(t.say(" timeout "), s.Timeout)
	}
	if s.Rate.Count > 0 {
		t = t.say(" ").limit(s.Rate)
	}
	if s.Connections > 0 {
		t = t.say(" ct count over ").number(s.Connections)
	}
	if len(s.Data) > 0 {
		t = t.say(" : ").fields(in, s.Data)
	}
	return t.say(" }")
}

func (s Reject) text(t ruleText, in context) ruleText {
	switch {
	case s.With == RejectTCPReset:
		return t.say("reject with tcp reset")
	case s.With == RejectPortUnreachable:
		return t.say("reject")
	case s.With == RejectHostUnreachable && in.Family == IPv6:
		return t.say("reject with icmpv6 addr-unreachable")
	case s.With == RejectHostUnreachable:
		return t.say("reject with icmp host-unreachable")
	}
	panic("nft: reject of no kind")
}

func equal(negate bool) string {
	if negate {
		return " != "
	}
	return " "
}

func (in context) icmpProtocol() string {
	if in.Family == IPv6 {
		return "ipv6-icmp"
	}
	return "icmp"
}

func (in context) icmp() string {
	if in.Family == IPv6 {
		return "icmpv6"
	}
	return "icmp"
}

func (t ruleText) limit(r Rate) ruleText {
	return t.say("limit rate over ", r.String(), " burst ").number(r.Burst()).say(" packets")
}

func (t ruleText) fields(in context, fields []Field) ruleText {
	for i, field := range fields {
		if i > 0 {
			t = t.say(" . ")
		}
		t = t.field(in, field)
	}
	return t
}

func (t ruleText) field(in context, field Field) ruleText {
	switch field.Kind {
	case FieldSaddr:
		return t.say(in.String(), " saddr").mask(in, field)
	case FieldDaddr:
		return t.say(in.String(), " daddr").mask(in, field)
	case FieldL4Proto:
		return t.say("meta l4proto")
	case FieldDport:
		if in.proto != 0 {
			return t.say(in.proto.String(), " dport")
		}
		return t.say("th dport")
	case FieldSport:
		return t.say("th sport")
	case FieldOriginalDaddr:
		return t.say("ct original ", in.String(), " daddr")
	case FieldOriginalDport:
		return t.say("ct original proto-dst")
	case FieldNumgen:
		t = t.say("numgen random mod ").number(field.Mod)
		if field.Offset > 0 {
			t = t.say(" offset ").number(field.Offset)
		}
		return t
	case FieldTurn:
		return t.say("numgen inc mod ").number(field.Mod)
	case FieldHashSource, FieldHashFlow:
		t = t.say("jhash ", in.String(), " saddr ")
		if field.Kind == FieldHashFlow {
			t = t.say(". th sport ")
		}
		return strconv.AppendUint(t.say("mod ").number(field.Mod).say(" seed 0x"), HashSeed, 16)
	case FieldPort:
		return t.number(uint32(field.Port))
	case FieldIif:
		return t.say("iif")
	case FieldOif:
		return t.say("oif")
	}
	panic("nft: field of no kind")
}

// mask adds the mask of a field that reads only the leading bits of an address.
func (t ruleText) mask(in context, field Field) ruleText {
	if field.Bits == 0 {
		return t
	}
	return field.Mask(in.Family).AppendTo(t.say(" & "))
}

// appendDuration writes a time as nft does, with days and without a fraction of a
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

func writeChain(out *bufio.Writer, f Family, c *Chain) {
	out.WriteString("\tchain " + c.Name + " {\n")
	if c.Hook != HookNone {
		out.WriteString("\t\t" + c.baseText() + "\n")
	}
	var line []byte
	for _, r := range c.Rules {
		line = r.appendText(append(line[:0], "\t\t"...), f)
		out.Write(append(line, '\n'))
	}
	out.WriteString("\t}\n")
}

// baseText returns the line of a base chain: type, hook, priority and policy.
func (c *Chain) baseText() string {
	kind := "nat"
	if c.Filter {
		kind = "filter"
	}
	return fmt.Sprintf("type %s hook %s priority %s; policy accept;", kind, c.Hook, c.priorityText())
}

// priorityText returns the priority as nft 1.0.6 prints it: relative to the name dstnat or srcnat if the hook has that name and the priority differs
// by at most 10, otherwise as a number.
func (c *Chain) priorityText() string {
	const reach = 10
	name, base := "", 0
	switch c.Hook {
	case HookPrerouting:
		name, base = "dstnat", PriorityDstNAT
	case HookPostrouting:
		name, base = "srcnat", PrioritySrcNAT
	}
	switch offset := c.Priority - base; {
	case name == "" || offset < -reach || offset > reach:
		return fmt.Sprint(c.Priority)
	case offset < 0:
		return fmt.Sprintf("%s - %d", name, -offset)
	case offset > 0:
		return fmt.Sprintf("%s + %d", name, offset)
	}
	return name
}

// String returns the hook in nft syntax.
func (h Hook) String() string {
	names := [...]string{"none", "prerouting", "input", "forward", "output", "postrouting"}
	if int(h) < len(names) {
		return names[h]
	}
	return "none"
}

// compareChains orders base chains after other chains, and base chains in the order in which packets pass them.
func compareChains(a, b *Chain) int {
	return cmp.Or(
		cmp.Compare(a.Hook, b.Hook),
		cmp.Compare(a.Priority, b.Priority),
		compareNames(a.Name, b.Name),
	)
}

// compareNames orders names with numbers in them by value: pick-2 before pick-10.
func compareNames(a, b string) int {
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if !isDigit(a[i]) || !isDigit(b[j]) {
			if a[i] != b[j] {
				return cmp.Compare(a[i], b[j])
			}
			i, j = i+1, j+1
			continue
		}
		m, n := number(a[i:]), number(b[j:])
		if order := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); order != 0 {
			return order
		}
		i, j = i+digits(a[i:]), j+digits(b[j:])
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func digits(s string) int {
	n := 0
	for n < len(s) && isDigit(s[n]) {
		n++
	}
	return n
}

// number returns the leading digits of s without leading zeros. Of two results the longer one is the greater number.
func number(s string) string {
	end := digits(s)
	start := 0
	for start < end-1 && s[start] == '0' {
		start++
	}
	return s[start:end]
}

// WriteText writes the batch as nft commands in the order of its operations, for logs
// and plans. ForgetData, for which nft has no command, is a comment. The only errors
// are those of w.
func (b Batch) WriteText(w io.Writer) error { return Printer{}.Batch(w, b) }

// Batch writes a batch as Batch.WriteText does, with the Printer's names of interfaces.
func (p Printer) Batch(w io.Writer, b Batch) error {
	out := bufio.NewWriter(w)
	for _, op := range b.Ops {
		p.op(out, op)
	}
	return out.Flush()
}

func (p Printer) op(out *bufio.Writer, op Op) {
	switch op := op.(type) {
	case AddTable:
		fmt.Fprintln(out, "add table", op.Family, TableName)
	case DeleteTable:
		fmt.Fprintln(out, "delete table", op.Family, TableName)
	case AddCounter:
		fmt.Fprintln(out, "add counter", op.Family, TableName, op.Name)
	case DeleteCounter:
		fmt.Fprintln(out, "delete counter", op.Family, TableName, op.Name)
	case AddSet:
		fmt.Fprintln(out, "add", op.Set.keyword(), op.Family, TableName, op.Set.Name,
			"{", strings.Join(op.Set.definition(op.Family), "; ")+"; }")
	case DeleteSet:
		fmt.Fprintln(out, "delete set", op.Family, TableName, op.Name)
	case AddTimeout:
		fmt.Fprintln(out, "add ct timeout", op.Family, TableName, op.Timeout.Name(),
			"{", strings.Join(op.Timeout.definition(op.Family), "; ")+"; }")
	case DeleteTimeout:
		fmt.Fprintln(out, "delete ct timeout", op.Family, TableName, op.Name)
	case AddChain:
		fmt.Fprint(out, "add chain ", op.Family, " ", TableName, " ", op.Chain.Name)
		if op.Chain.Hook != HookNone {
			fmt.Fprint(out, " { ", op.Chain.baseText(), " }")
		}
		fmt.Fprintln(out)
	case SetRules:
		fmt.Fprintln(out, "flush chain", op.Family, TableName, op.Chain)
		for _, r := range op.Rules {
			fmt.Fprintln(out, "add rule", op.Family, TableName, op.Chain, r.Text(op.Family))
		}
	case DeleteChain:
		fmt.Fprintln(out, "delete chain", op.Family, TableName, op.Name)
	case AddElements:
		p.elements(out, "add", op.Family, &op.Set, op.Elements)
	case DeleteElements:
		keys := make([]Element, len(op.Elements))
		for i, e := range op.Elements {
			keys[i].Key = e.Key
		}
		p.elements(out, "delete", op.Family, &op.Set, keys)
	case ForgetData:
		for _, data := range op.Data {
			value := p.appendValues(nil, SplitKey(op.Set.Data, op.Family, data), data)
			fmt.Fprintf(out, "# delete from %s %s %s what is mapped to %s\n", op.Family, TableName, op.Set.Name, value)
		}
	case interface{ text() string }:
		fmt.Fprintln(out, op.text())
	case CapTimeouts:
		fmt.Fprintf(out, "# let no element of %s %s %s live longer than %s\n", op.Family, TableName, op.Set.Name, op.Timeout)
	default:
		panic("nft: operation of no kind")
	}
}

// elements writes a command that adds or deletes elements, with one element per line. A single element is on the line of the command.
func (p Printer) elements(out *bufio.Writer, verb string, f Family, s *Set, elements []Element) {
	if len(elements) == 0 {
		return
	}
	open, separator, end := "{\n\t", ",\n\t", "\n}"
	if len(elements) == 1 {
		open, end = "{ ", " }"
	}
	fmt.Fprint(out, verb, " element ", f, " ", TableName, " ", s.Name, " ", open)
	var line []byte
	for i, e := range elements {
		if i > 0 {
			out.WriteString(separator)
		}
		line = p.appendElement(line[:0], s, f, e)
		out.Write(line)
	}
	fmt.Fprintln(out, end)
}
