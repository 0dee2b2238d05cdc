package manifest

import "bytes"

// plainFlow reads a flow collection on one line, or a quoted text.
type plainFlow struct {
	*plainReader
	text   []byte
	at     int
	offset int // of text in its line
}

func (f *plainFlow) peek() byte {
	f.must(f.at < len(f.text))
	return f.text[f.at]
}

// take takes one byte that must be there, and blanks behind it.
func (f *plainFlow) take(b byte) {
	f.must(f.peek() == b)
	f.at++
	f.blanks()
}

func (f *plainFlow) blanks() {
	for f.at < len(f.text) && f.text[f.at] == ' ' {
		f.at++
	}
}

func (f *plainFlow) value(depth int) *node {
	switch f.peek() {
	case '[':
		return f.list(depth)
	case '{':
		return f.mapping(depth)
	case '"', '\'':
		return f.quoted(depth)
	}
	start := f.at
	for f.at < len(f.text) && f.goesOn(f.text[f.at:]) {
		f.at++
	}
	f.must(f.at > start)
	out := f.scalar(f.text[start:f.at], f.offset+start, depth)
	f.blanks()
	f.must(bytes.IndexByte([]byte(",]}"), f.peek()) >= 0)
	return out
}

// goesOn reports whether a text without quotes has the next byte, too.
func (f *plainFlow) goesOn(rest []byte) bool {
	if rest[0] == ':' {
		return len(rest) > 1 && (rest[1] == ':' || plainClass[rest[1]]&inFlow != 0)
	}
	return plainClass[rest[0]]&inFlow != 0
}

// quoted reads a text in quotes that needs no escape.
func (f *plainFlow) quoted(depth int) *node {
	start, quote := f.at, f.peek()
	end := bytes.IndexByte(f.text[start+1:], quote)
	f.must(end >= 0 && depth <= f.limits.Depth)
	content := f.text[start+1 : start+1+end]
	f.must(quote != '"' || bytes.IndexByte(content, '\\') < 0)
	f.at += end + 2
	f.must(f.at == len(f.text) || bytes.IndexByte([]byte(" ,]}"), f.text[f.at]) >= 0)
	f.blanks()
	return f.nodes.new(node{kind: kindString, line: f.line, column: f.offset + start + 1, size: 1, text: shared(content)})
}

func (f *plainFlow) collection(kind kind, depth int) *node {
	f.must(depth <= f.limits.Depth)
	return f.nodes.new(node{kind: kind, line: f.line, column: f.offset + f.at + 1, size: 1})
}

func (f *plainFlow) list(depth int) *node {
	out := f.collection(kindList, depth)
	first := f.nodes.openItems()
	f.take('[')
	for f.peek() != ']' {
		child := f.value(depth + 1)
		f.nodes.addItem(child)
		out.contain(child)
		f.next(']')
	}
	f.take(']')
	out.items = f.nodes.closeItems(first)
	return out
}

func (f *plainFlow) mapping(depth int) *node {
	out := f.collection(kindMap, depth)
	first := f.nodes.openFields()
	var keys keySet
	f.take('{')
	for f.peek() != '}' {
		name, value := f.key(f.text[f.at:])
		f.must(len(name) > 0 && len(value) > 0)
		entry := field{key: shared(name), line: f.line, column: f.offset + f.at + 1}
		before := f.nodes.fields(first)
		f.must(keys.find(before, entry.key) < 0 && len(before) < f.limits.Keys)
		f.at = len(f.text) - len(value)
		entry.value = f.value(depth + 1)
		f.nodes.addField(entry)
		out.contain(entry.value)
		f.next('}')
	}
	f.take('}')
	out.fields = f.nodes.closeFields(first)
	return out
}

// next takes the comma before another entry; there must be one, or the end.
func (f *plainFlow) next(end byte) {
	if f.peek() != end {
		f.take(',')
		f.must(f.peek() != end)
	}
}
