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

// ruleText writes the statements of one rule.
type ruleText struct {
	Family
	buf   []byte
	proto Protocol // the protocol that the rule has matched so far; 0 if none
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
	case Reject:
		t.reject(s.With)
	case Verdict:
		t.say(s.String())
	case interface{ text() string }:
		t.say(s.text())
	default:
		panic("nft: statement of no kind")
	}
}

// text methods of the statements with a text that does not depend on the rest of the rule.
func (MatchNotDNAT) text() string     { return "ct status ! dnat" }
func (MatchLocalSource) text() string { return "fib saddr type local" }
func (MatchLocalDest) text() string   { return "fib daddr type local" }
func (MatchAssured) text() string     { return "ct status assured" }
func (MatchSYN) text() string         { return "tcp flags syn" }
func (MatchRST) text() string         { return "tcp flags rst" }
func (MatchInitAck) text() string     { return "meta l4proto sctp @th,96,8 0x2" }
func (MatchReply) text() string       { return "ct direction reply" }
func (MatchInvalid) text() string     { return "ct state invalid" }
func (MatchNoSYN) text() string       { return "tcp flags ! syn" }
func (Masquerade) text() string       { return "masquerade" }
func (Redirect) text() string         { return "redirect" }

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

// mask formats the mask of a field that reads only the leading bits of an address.
func (t *ruleText) mask(field Field) {
	if field.Bits == 0 {
		return
	}
	t.say(" & ")
	t.buf = field.Mask(t.Family).AppendTo(t.buf)
}

// prefix formats a prefix, or the address alone if the prefix contains a single address.
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
