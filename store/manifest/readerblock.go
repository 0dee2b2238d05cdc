package manifest

// longestKey bounds the distance from the beginning of a key to its colon, in bytes; YAML allows
// 1,024 characters.
const longestKey = 1000

// isKey reports whether the scalar that was just read is the key of a block mapping.
func (r *yamlReader) isKey() bool {
	ahead := 0
	for r.peek(ahead) == ' ' {
		ahead++
	}
	return r.peek(ahead) == ':' && isBlankOrBreak(r.peek(ahead+1))
}

// plainKey is the field of a key without quotes. One that is another key to kubectl draws a
// warning, which is for the converter to word.
func (r *yamlReader) plainKey(text string, start int) field {
	_, oldBool := oldBoolValue(text)
	_, differs := keyToKubectl(text)
	r.must(!oldBool && !differs)
	return field{key: text, line: r.line, column: r.column(start)}
}

// key reads the next key of a block mapping.
func (r *yamlReader) key() (key field, isMerge bool) {
	start := r.at
	if b := r.peek(0); b == '"' || b == '\'' {
		n := r.quoted(0)
		r.must(n.line == r.line && r.isKey())
		return field{key: n.text, line: n.line, column: n.column}, false
	}
	text := r.plainLine(false)
	r.must(r.isKey())
	return r.plainKey(text, start), text == mergeKey
}

// mapping reads a block mapping, of which the first key was read.
func (r *yamlReader) mapping(key field, isMerge bool, depth int) *node {
	r.must(depth <= r.limits.Depth)
	out := r.nodes.new(node{kind: kindMap, line: key.line, column: key.column, size: 1})
	indent := key.column - 1 // there are spaces and indicators before it, which are ASCII
	first := r.nodes.openFields()
	var keys keySet
	var merges []*node
	for {
		for r.peek(0) == ' ' {
			r.at++
		}
		r.must(r.at-r.start-indent <= longestKey)
		key.value = r.fieldValue(indent, depth+1)
		if isMerge {
			merges = append(merges, key.value)
		} else {
			r.must(keys.find(r.nodes.fields(first), key.key) < 0)
			r.nodes.addField(key)
			out.contain(key.value)
		}
		r.must(len(r.nodes.fields(first))+len(merges) <= r.limits.Keys)
		if r.ended() || r.indent() < indent {
			break
		}
		r.must(r.indent() == indent && !r.isItem())
		key, isMerge = r.key()
	}
	for _, from := range merges {
		r.merge(from, out, first, &keys)
	}
	out.fields = r.nodes.closeFields(first)
	return out
}

// fieldValue reads the value of a field, from the colon on.
func (r *yamlReader) fieldValue(indent, depth int) *node {
	r.at++
	line, column := r.line, r.column(r.at)
	r.first = false
	r.skip()
	if !r.ended() && (r.line == line || r.indent() > indent || r.indent() == indent && r.isItem()) {
		return r.value(indent, depth, true)
	}
	r.must(depth <= r.limits.Depth)
	return r.nodes.new(node{kind: kindNull, line: line, column: column, size: 1})
}

// merge adds the fields that a merge key brings, as converter.merge does.
func (r *yamlReader) merge(from, out *node, first int, keys *keySet) {
	sources := []*node{from}
	if from.kind == kindList {
		sources = from.items
	}
	for _, source := range sources {
		r.must(source.kind == kindMap)
		r.aliased += len(source.fields)
		r.must(r.aliased <= r.limits.Aliases)
		for _, f := range source.fields {
			if keys.find(r.nodes.fields(first), f.key) < 0 {
				r.nodes.addField(f)
				out.contain(f.value)
			}
		}
	}
	r.must(len(r.nodes.fields(first)) <= r.limits.Keys)
}

// list reads a block list.
func (r *yamlReader) list(depth int) *node {
	indent := r.indent()
	out := r.new(kindList, r.at, depth)
	first := r.nodes.openItems()
	for {
		r.at++
		line, column := r.line, r.column(r.at)
		r.first = true
		r.skip()
		var child *node
		if !r.ended() && (r.line == line || r.indent() > indent) {
			child = r.value(indent, depth+1, false)
		} else {
			r.must(depth < r.limits.Depth)
			child = r.nodes.new(node{kind: kindNull, line: line, column: column, size: 1})
		}
		r.nodes.addItem(child)
		out.contain(child)
		if r.ended() || r.indent() < indent {
			break
		}
		r.must(r.indent() == indent)
		if !r.isItem() {
			break // the mapping goes on that the list is a value of
		}
	}
	out.items = r.nodes.closeItems(first)
	return out
}

// name reads the name of an anchor or alias, with its indicator.
func (r *yamlReader) name() string {
	r.at++
	start := r.at
	for b := r.peek(0); isDecimal(b) || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '_' || b == '-'; b = r.peek(0) {
		r.at++
	}
	r.must(r.at > start)
	return r.text[start:r.at]
}

// anchored reads a value with an anchor.
func (r *yamlReader) anchored(parent, depth int, indentless bool) *node {
	line, column := r.line, r.column(r.at)
	name := r.openAnchor()
	r.must(isBlankOrBreak(r.peek(0)))
	r.first = false
	r.skip()
	r.must(!r.ended() && r.peek(0) != '&' && r.peek(0) != '*')
	r.must(r.line == line || r.indent() > parent || indentless && r.indent() == parent && r.isItem())
	out := r.value(parent, depth, false)
	r.closeAnchor(name, out, line, column)
	return out
}

// openAnchor reads an anchor. Until it is closed its name stands for nothing.
func (r *yamlReader) openAnchor() string {
	name := r.name()
	delete(r.anchors, name)
	return name
}

// closeAnchor gives a value its anchor, where it begins.
func (r *yamlReader) closeAnchor(name string, n *node, line, column int) {
	if r.anchors == nil {
		r.anchors = map[string]*node{}
	}
	r.must(r.anchors[name] == nil)
	r.anchors[name] = n
	n.line, n.column = line, column
}

// alias is the value that an alias stands for. Copies share their nodes, but each counts.
func (r *yamlReader) alias(depth int) *node {
	target := r.anchors[r.name()]
	r.must(target != nil && depth+target.height <= r.limits.Depth)
	r.aliased += target.size
	r.must(r.aliased <= r.limits.Aliases)
	return target
}

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
