package manifest

// flow reads flow collections, on one line or several.
type flow struct{ *yamlReader }

// skip goes to the next token, over blanks, comments and lines.
func (f flow) skip() {
	blank := false
	for !f.ended() {
		switch b := f.text[f.at]; {
		case isBlank(b):
			f.at++
			blank = true
		case b == '#' && blank:
			f.at = f.endOfLine()
		case isBreak(b):
			f.breakLine()
			blank = true
			f.must(!f.marker())
		default:
			return
		}
	}
}

func (f flow) value(depth int) *node {
	switch start := f.at; f.peek(0) {
	case '[':
		return f.list(depth)
	case '{':
		return f.mapping(depth)
	case '"', '\'':
		return f.quoted(depth)
	case '*':
		return f.alias(depth)
	case '&':
		line, column := f.line, f.column(start)
		name := f.openAnchor()
		f.must(f.peek(0) == ' ')
		f.skip()
		f.must(f.peek(0) != '&' && f.peek(0) != '*')
		out := f.value(depth)
		f.closeAnchor(name, out, line, column)
		return out
	default:
		out := f.scalar(f.plainLine(true), start, depth)
		f.skip() // or the text goes on
		return out
	}
}

// list reads a flow list.
func (f flow) list(depth int) *node {
	out := f.new(kindList, f.at, depth)
	first := f.nodes.openItems()
	f.at++
	for f.skip(); f.peek(0) != ']'; {
		child := f.value(depth + 1)
		f.nodes.addItem(child)
		out.contain(child)
		f.next(']')
	}
	f.at++
	out.items = f.nodes.closeItems(first)
	return out
}

// mapping reads a flow mapping, in which every key has a value.
func (f flow) mapping(depth int) *node {
	out := f.new(kindMap, f.at, depth)
	first := f.nodes.openFields()
	var keys keySet
	f.at++
	for f.skip(); f.peek(0) != '}'; {
		entry := f.entry()
		before := f.nodes.fields(first)
		f.must(keys.find(before, entry.key) < 0 && len(before) < f.limits.Keys)
		f.must(f.peek(0) != ',' && f.peek(0) != '}')
		entry.value = f.value(depth + 1)
		f.nodes.addField(entry)
		out.contain(entry.value)
		f.next('}')
	}
	f.at++
	out.fields = f.nodes.closeFields(first)
	return out
}

// entry reads a key with its colon.
func (f flow) entry() (key field) {
	start, line := f.at, f.line
	if b := f.peek(0); b == '"' || b == '\'' {
		n := f.quoted(0)
		key = field{key: n.text, line: n.line, column: n.column}
	} else {
		text := f.plainLine(true)
		f.must(text != mergeKey)
		key = f.plainKey(text, start)
	}
	for f.peek(0) == ' ' {
		f.at++
	}
	f.must(f.line == line && f.peek(0) == ':' && f.at-start <= longestKey)
	f.at++
	f.skip()
	return key
}

// next takes the comma behind an entry; there must be one, or the end.
func (f flow) next(end byte) {
	f.skip()
	if f.peek(0) == end {
		return
	}
	f.must(f.peek(0) == ',')
	f.at++
	f.skip()
}
