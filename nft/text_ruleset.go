package nft

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// WriteText writes the ruleset in nft syntax, in the layout of `nft list ruleset` 1.0.6 but with one element per line and in a fixed order: sets by
// name, then chains by name, then base chains in the order in which packets pass them. Numbers in names are compared by value. Elements are ordered
// by address, protocol, port and slot. Interfaces are written as indexes; use a Printer to write their names. The text has no counts. It can be
// loaded with `nft -f`, which adds to an existing table. nft 1.0.6 aborts on an Update with more than 16 bytes of data, which affinity in table ip6
// has. The only errors are those of w.
func (rs Ruleset) WriteText(w io.Writer) error { return Printer{}.Ruleset(w, rs) }

// Printer writes rulesets, batches and elements in nft syntax. The zero Printer is
// ready to use.
type Printer struct {
	// Interfaces maps interface indexes to names. nft can load a name only on a host that has the interface.
	Interfaces map[uint32]string
}

// Printer returns a Printer with the names of the box's interfaces.
func (b *Box) Printer() Printer {
	names := make(map[uint32]string, len(b.Interfaces))
	for _, i := range b.Interfaces {
		names[i.Index] = i.Name
	}
	return Printer{names}
}

// Ruleset writes a ruleset as Ruleset.WriteText does, with the Printer's names of interfaces.
func (p Printer) Ruleset(w io.Writer, rs Ruleset) error {
	out := bufio.NewWriter(w)
	for _, f := range Families {
		if t := rs[f]; t != nil {
			p.table(out, f, t)
		}
	}
	return out.Flush()
}

// table writes a table. It ignores write errors, because bufio.Writer keeps the first one and Flush returns it.
func (p Printer) table(out *bufio.Writer, f Family, t *Table) {
	out.WriteString("table " + f.String() + " " + TableName + " {\n")
	gap := ""
	for _, name := range slices.SortedFunc(maps.Keys(t.Timeouts), compareNames) {
		out.WriteString(gap + "\tct timeout " + name + " {\n\t\t" + strings.Join(t.Timeouts[name].definition(f), "\n\t\t") + "\n\t}\n")
		gap = "\n"
	}
	for _, name := range t.Counters {
		out.WriteString(gap + "\tcounter " + name + " {\n\t\tpackets 0 bytes 0\n\t}\n")
		gap = "\n"
	}
	for _, name := range slices.SortedFunc(maps.Keys(t.Sets), compareNames) {
		out.WriteString(gap)
		p.set(out, f, t.Sets[name])
		gap = "\n"
	}
	for _, name := range sortedKeys(t.Flowtables) {
		out.WriteString(gap + "\tflowtable " + name + " {\n\t\t" + strings.Join(t.Flowtables[name].definition(), "\n\t\t") + "\n\t}\n")
		gap = "\n"
	}
	for _, c := range slices.SortedFunc(maps.Values(t.Chains), compareChains) {
		out.WriteString(gap)
		writeChain(out, f, c)
		gap = "\n"
	}
	out.WriteString("}\n")
}

func (p Printer) set(out *bufio.Writer, f Family, s *SetContent) {
	out.WriteString("\t" + s.Set.keyword() + " " + s.Name + " {\n")
	for _, line := range s.Set.definition(f) {
		out.WriteString("\t\t" + line + "\n")
	}
	const first, next = "\t\telements = { ", ",\n\t\t\t     " // nft's layout
	separator := first
	var line []byte
	for _, e := range sortedElements(s, f) {
		out.WriteString(separator)
		line = p.appendElement(line[:0], &s.Set, f, e)
		out.Write(line)
		separator = next
	}
	if len(s.Elements) > 0 {
		out.WriteString(" }\n")
	}
	out.WriteString("\t}\n")
}

func (s *Set) keyword() string {
	if s.Data != nil {
		return "map"
	}
	return "set"
}

// definition returns the lines between the braces of a set, without its elements.
func (s *Set) definition(f Family) []string {
	lines := []string{s.types(f)}
	if s.Size > 0 {
		lines = append(lines, "size "+strconv.FormatUint(uint64(s.Size), 10))
	}
	var flags []string
	if s.Dynamic {
		flags = append(flags, "dynamic")
	}
	if s.Interval {
		flags = append(flags, "interval")
	}
	if s.Timeout > 0 && len(flags) > 0 { // alone it goes without saying
		flags = append(flags, "timeout")
	}
	if len(flags) > 0 {
		lines = append(lines, "flags "+strings.Join(flags, ","))
	}
	if s.Counted {
		lines = append(lines, "counter")
	}
	if s.Timeout > 0 {
		lines = append(lines, "timeout "+string(appendDuration(nil, s.Timeout)))
	}
	return lines
}

// types returns the declaration of the types of key and data. A slot is an integer, for which nft has no type name in declarations, so a set with
// slots is declared by typeof expressions.
func (s *Set) types(f Family) string {
	keyword, name := "type ", Type.name
	if slices.Contains(s.Key, TypeSlot) || slices.Contains(s.Data, TypeSlot) {
		keyword, name = "typeof ", Type.expression
	}
	join := func(types []Type) string {
		names := make([]string, len(types))
		for i, t := range types {
			names[i] = name(t, f)
		}
		return strings.Join(names, " . ")
	}
	if s.Data == nil {
		return keyword + join(s.Key)
	}
	return keyword + join(s.Key) + " : " + join(s.Data)
}

func (t Type) name(f Family) string {
	switch t {
	case TypeAddr:
		if f == IPv6 {
			return "ipv6_addr"
		}
		return "ipv4_addr"
	case TypeProto:
		return "inet_proto"
	case TypeService:
		return "inet_service"
	case TypeIface:
		return "iface_index"
	case TypeVerdict:
		return "verdict"
	}
	panic("nft: type without a name")
}

// expression returns an example of an expression of the type, for use in a typeof declaration.
func (t Type) expression(f Family) string {
	switch t {
	case TypeAddr:
		return f.String() + " daddr"
	case TypeProto:
		return "meta l4proto"
	case TypeService:
		return "th dport"
	case TypeSlot:
		return "numgen random mod 1"
	case TypeIface:
		return "iif"
	case TypeVerdict:
		return "verdict"
	}
	panic("nft: type without an expression")
}

// sortedElements returns the elements of a set sorted by the values of their keys.
func sortedElements(s *SetContent, f Family) []Element {
	type placed struct {
		Element
		place string
	}
	list := make([]placed, 0, len(s.Elements))
	for key, data := range s.Elements {
		list = append(list, placed{Element{key, data}, s.Set.place(f, key)})
	}
	slices.SortFunc(list, func(a, b placed) int { return cmp.Compare(a.place, b.place) })
	elements := make([]Element, len(list))
	for i := range list {
		elements[i] = list[i].Element
	}
	return elements
}

// place returns a string by which elements can be sorted in the order of their keys' values. Values in host byte order are converted to big-endian.
func (s *Set) place(f Family, key string) string {
	if !slices.Contains(s.Key, TypeSlot) && !slices.Contains(s.Key, TypeIface) {
		return key
	}
	b := make([]byte, 0, len(key))
	for _, v := range SplitKey(s.Key, f, key) {
		if v.Type == TypeAddr {
			b = append(b, v.Addr.AsSlice()...)
		} else {
			b = binary.BigEndian.AppendUint32(b, v.Num)
		}
	}
	return string(b)
}

// Element formats an element of a set in nft syntax: `10.96.0.10 . tcp . 80 . 0 : 10.1.2.3 . 8080`. An element without Data is formatted as its key.
// Bytes that do not match the set's types are formatted in hexadecimal.
func (p Printer) Element(s Set, f Family, e Element) string {
	return string(p.appendElement(nil, &s, f, e))
}

// Data formats the data of an element of a map as nft does.
func (p Printer) Data(s Set, f Family, data string) string {
	return string(p.appendValues(nil, SplitKey(s.Data, f, data), data))
}

func (p Printer) appendElement(b []byte, s *Set, f Family, e Element) []byte {
	if key := SplitKey(s.Key, f, e.Key); s.Interval && len(key) == 2*len(s.Key) {
		b = p.appendRanges(b, key[:len(s.Key)], key[len(s.Key):])
	} else {
		b = p.appendValues(b, key, e.Key)
	}
	if e.Data == "" {
		return b
	}
	b = append(b, " : "...)
	if s.Data[0] == TypeVerdict {
		return append(b, e.Data...)
	}
	return p.appendValues(b, SplitKey(s.Data, f, e.Data), e.Data)
}

func (p Printer) appendValues(b []byte, values []Value, bytes string) []byte {
	if len(values) == 0 {
		return hex.AppendEncode(append(b, "0x"...), []byte(bytes))
	}
	for i, v := range values {
		if i > 0 {
			b = append(b, " . "...)
		}
		b = p.appendValue(b, v)
	}
	return b
}

func (p Printer) appendRanges(b []byte, first, last []Value) []byte {
	for i := range first {
		if i > 0 {
			b = append(b, " . "...)
		}
		b = p.appendValue(b, first[i])
		if first[i] == last[i] {
			continue
		}
		if prefix, is := (Range{first[i].Addr, last[i].Addr}).prefix(); is {
			b = strconv.AppendInt(append(b, '/'), int64(prefix.Bits()), 10)
		} else {
			b = p.appendValue(append(b, '-'), last[i])
		}
	}
	return b
}

func (p Printer) appendValue(b []byte, v Value) []byte {
	switch v.Type {
	case TypeAddr:
		return v.Addr.AppendTo(b)
	case TypeProto:
		return append(b, protoName(v.Num)...)
	case TypeIface:
		if name, ok := p.Interfaces[v.Num]; ok {
			return strconv.AppendQuote(b, name)
		}
	}
	return strconv.AppendUint(b, uint64(v.Num), 10)
}
