package manifest

import (
	"strings"
	"unicode/utf8"
	"unsafe"
)

// yamlReader reads one YAML document: block mappings and lists, flow collections, all kinds of scalars, comments, anchors, aliases and merge keys, as
// kubectl, kustomize, Helm and people write them. It produces the same nodes as the YAML library and the converter, at a fifth of their cost.
// Documents that it does not support (tags, complex keys, directives) or that have an error are parsed by the YAML library instead, so that each
// error has only one wording. FuzzReader compares the results of both.
//
// The strings in its nodes share the memory of the document, so a caller that keeps one has to clone it.
type yamlReader struct {
	limits  Limits
	nodes   nodeStock
	anchors map[string]*node
	aliased int    // nodes that aliases added
	buffer  []byte // the text of a scalar that is put together from several parts

	text  string
	at    int  // offset of the next byte
	line  int  // line of the next byte, from 1
	start int  // offset of the first byte of that line
	first bool // only spaces precede the next byte on its line
	wide  bool // the text has non-ASCII characters
	// The last result of column: counted characters from the start of the line to the offset countedTo.
	countedTo, counted int
}

// read reads one document. ok is false if the document has to be parsed by the YAML library instead. The nodes are valid until the next call, and
// while the text does not change: a copy of it would be half of the memory that decoding a file takes.
func (r *yamlReader) read(text []byte, limits Limits) (root *node, ok bool) {
	r.nodes.reset()
	r.limits, r.text = limits, unsafe.String(unsafe.SliceData(text), len(text))
	r.at, r.line, r.start, r.countedTo, r.counted, r.aliased = 0, 1, 0, 0, 0, 0
	clear(r.anchors)
	defer func() {
		switch cause := recover().(type) {
		case nil, notKnown:
		default:
			panic(cause)
		}
	}()
	r.checkCharacters()
	if strings.HasPrefix(r.text, "---") && (len(r.text) == 3 || isBlankOrBreak(r.text[3])) {
		r.at, r.first = 3, false
		r.skip()
		r.must(r.first)
	} else {
		r.first = true
		r.skip()
	}
	r.must(!r.ended())
	root = r.value(none, 0, false)
	r.must(r.ended() && (root.kind == kindMap || root.kind == kindList))
	return root, true
}

// notKnown is the panic value that ends yamlReader.read if the document has to be parsed by the YAML library instead.
type notKnown struct{}

func (r *yamlReader) must(known bool) {
	if !known {
		panic(notKnown{})
	}
}

// checkCharacters leaves a text to the YAML library if it has line breaks other than LF and CRLF, or characters that YAML does not allow.
func (r *yamlReader) checkCharacters() {
	r.wide = false
	for i := 0; i < len(r.text); i++ {
		r.must(byteClass[r.text[i]] != control)
		r.wide = r.wide || r.text[i] >= utf8.RuneSelf
	}
	if r.wide {
		for _, c := range r.text {
			r.must(c < utf8.RuneSelf || c >= 0xa0 && c != '\u2028' && c != '\u2029' && c != '\ufeff' && c != '\ufffe' && c != '\uffff')
		}
	}
	for i := 0; ; i++ {
		next := strings.IndexByte(r.text[i:], '\r')
		if next < 0 {
			return
		}
		i += next
		r.must(i+1 < len(r.text) && r.text[i+1] == '\n')
	}
}

// none is the column of the imaginary collection that contains the root of the document.
const none = -1

func (r *yamlReader) ended() bool { return r.at >= len(r.text) }

// peek returns the byte that is ahead bytes after the next one. It returns 0 beyond the end of the text, which contains no byte 0.
func (r *yamlReader) peek(ahead int) byte {
	if r.at+ahead >= len(r.text) {
		return 0
	}
	return r.text[r.at+ahead]
}

func isBlank(b byte) bool        { return b == ' ' || b == '\t' }
func isBreak(b byte) bool        { return b == '\n' || b == '\r' || b == 0 }
func isBlankOrBreak(b byte) bool { return isBlank(b) || isBreak(b) }

// indent returns the column of the next byte, from 0, or the constant none at the end of the text. Columns count bytes here, as only spaces and "- "
// precede a token that begins a block collection.
func (r *yamlReader) indent() int {
	if r.ended() {
		return none
	}
	return r.at - r.start
}

// column returns the column, in characters from 1, of an offset in the current line.
func (r *yamlReader) column(offset int) int {
	if !r.wide {
		return offset - r.start + 1
	}
	if r.countedTo < r.start || r.countedTo > offset {
		r.countedTo, r.counted = r.start, 0
	}
	r.counted += utf8.RuneCountInString(r.text[r.countedTo:offset])
	r.countedTo = offset
	return r.counted + 1
}

// breakLine moves from the line break at the current position, or from the end of the text, to the next line.
func (r *yamlReader) breakLine() {
	if r.peek(0) == '\r' {
		r.at++
	}
	if !r.ended() {
		r.at++
	}
	r.line++
	r.start, r.first = r.at, true
}

// endOfLine returns the offset of the line break that ends the current line, or of the end of the text.
func (r *yamlReader) endOfLine() int {
	end := strings.IndexByte(r.text[r.at:], '\n')
	if end < 0 {
		return len(r.text)
	}
	if end += r.at; end > r.at && r.text[end-1] == '\r' {
		return end - 1
	}
	return end
}

// skip goes to the next token of the block structure, over blanks, comments and lines. It
// stops at the end of the document.
func (r *yamlReader) skip() {
	blank := r.first // a comment may begin here
	for !r.ended() {
		switch b := r.text[r.at]; {
		case b == ' ':
			r.at++
			blank = true
		case b == '\t':
			r.must(!r.first)
			r.at++
			blank = true
		case b == '#' && blank:
			r.at = r.endOfLine()
		case b == '\n' || b == '\r':
			r.breakLine()
			blank = true
		case r.first && r.at == r.start && (b == '-' || b == '.') && r.marker():
			r.must(b == '.')
			r.at += 3
			r.trailer()
		default:
			return
		}
	}
}

// marker reports whether a document marker (--- or ...) is at the current position, the beginning of a line.
func (r *yamlReader) marker() bool {
	rest := r.text[r.at:]
	return (strings.HasPrefix(rest, "---") || strings.HasPrefix(rest, "...")) && isBlankOrBreak(r.peek(3))
}

// trailer reads the rest of the document after the marker "...", which may only have comments.
func (r *yamlReader) trailer() {
	for !r.ended() {
		end := r.endOfLine()
		rest := strings.TrimLeft(r.text[r.at:end], " ")
		r.must(rest == "" || rest[0] == '#')
		r.at = end
		if !r.ended() {
			r.breakLine()
		}
	}
}

// isItem reports whether an item of a block list is next.
func (r *yamlReader) isItem() bool { return r.peek(0) == '-' && isBlankOrBreak(r.peek(1)) }

// new returns a new node that begins at an offset in the current line. If depth exceeds the limit, reading ends, and the YAML library parses the
// document.
func (r *yamlReader) new(kind kind, offset, depth int) *node {
	r.must(depth <= r.limits.Depth)
	return r.nodes.new(node{kind: kind, line: r.line, column: r.column(offset), size: 1})
}

// value reads the next value, in a collection with the column parent, and moves to the token after it. The value may only be a block mapping or list
// if r.first is set. indentless is set if the collection is a mapping, so that a list may begin in the column of the mapping.
func (r *yamlReader) value(parent, depth int, indentless bool) *node {
	var out *node
	mayBeKey := r.first
	switch b := r.peek(0); {
	case b == '&':
		return r.anchored(parent, depth, indentless)
	case mayBeKey && r.isItem():
		return r.list(depth)
	case b == '|' || b == '>':
		return r.blockScalar(parent, depth)
	case b == '*':
		out = r.alias(depth)
	case b == '[' || b == '{':
		out = flow{r}.value(depth)
	case b == '"' || b == '\'':
		line := r.line
		out = r.quoted(depth)
		if r.isKey() {
			r.must(r.line == line && mayBeKey)
			return r.mapping(field{key: out.text, line: out.line, column: out.column}, false, depth)
		}
	default:
		start := r.at
		text := r.plainLine(false)
		if mayBeKey && r.isKey() {
			return r.mapping(r.plainKey(text, start), text == mergeKey, depth)
		}
		out = r.plain(text, start, parent, depth)
	}
	r.first = false
	r.skip()
	r.must(r.ended() || r.first)
	return out
}

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

// plainKey returns the field of an unquoted key. If kubectl reads the key differently (see keyToKubectl), reading ends, and the YAML library parses
// the document.
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

// mapping reads a block mapping. key is its first key, which was read already.
func (r *yamlReader) mapping(key field, isMerge bool, depth int) *node {
	r.must(depth <= r.limits.Depth)
	out := r.nodes.new(node{kind: kindMap, line: key.line, column: key.column, size: 1})
	indent := key.column - 1 // there are spaces and indicators before it, which are ASCII
	first := r.nodes.entries.begin()
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
			r.must(keys.find(r.nodes.entries.since(first), key.key) < 0)
			r.nodes.entries.add(key)
			out.contain(key.value)
		}
		r.must(len(r.nodes.entries.since(first))+len(merges) <= r.limits.Keys)
		if r.ended() || r.indent() < indent {
			break
		}
		r.must(r.indent() == indent && !r.isItem())
		key, isMerge = r.key()
	}
	for _, from := range merges {
		r.merge(from, out, first, &keys)
	}
	out.fields = r.nodes.entries.end(first)
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

// merge adds the fields of the value of a merge key (<<) to a mapping, like converter.merge.
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
			if keys.find(r.nodes.entries.since(first), f.key) < 0 {
				r.nodes.entries.add(f)
				out.contain(f.value)
			}
		}
	}
	r.must(len(r.nodes.entries.since(first)) <= r.limits.Keys)
}

// list reads a block list.
func (r *yamlReader) list(depth int) *node {
	indent := r.indent()
	out := r.new(kindList, r.at, depth)
	first := r.nodes.members.begin()
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
		r.nodes.members.add(child)
		out.contain(child)
		if r.ended() || r.indent() < indent {
			break
		}
		r.must(r.indent() == indent)
		if !r.isItem() {
			break // the mapping goes on that the list is a value of
		}
	}
	out.items = r.nodes.members.end(first)
	return out
}

// name reads the name of an anchor or alias, with its indicator & or *.
func (r *yamlReader) name() string {
	r.at++
	start := r.at
	for b := r.peek(0); isDecimal(b) || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '_' || b == '-'; b = r.peek(0) {
		r.at++
	}
	r.must(r.at > start)
	return r.text[start:r.at]
}

// anchored reads an anchor and the value that it names.
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

// openAnchor reads an anchor. An alias of that name is invalid until closeAnchor.
func (r *yamlReader) openAnchor() string {
	name := r.name()
	delete(r.anchors, name)
	return name
}

// closeAnchor makes n, which is complete, the value of an anchor. It sets the position of n to line and column.
func (r *yamlReader) closeAnchor(name string, n *node, line, column int) {
	if r.anchors == nil {
		r.anchors = map[string]*node{}
	}
	r.must(r.anchors[name] == nil)
	r.anchors[name] = n
	n.line, n.column = line, column
}

// alias reads an alias and returns its value. The nodes are shared with the anchored value, but count toward the limit each time they are used.
func (r *yamlReader) alias(depth int) *node {
	target := r.anchors[r.name()]
	r.must(target != nil && depth+target.height <= r.limits.Depth)
	r.aliased += target.size
	r.must(r.aliased <= r.limits.Aliases)
	return target
}

// flow reads flow collections ([a, b] and {a: b}), on one line or several.
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
	first := f.nodes.members.begin()
	f.at++
	for f.skip(); f.peek(0) != ']'; {
		child := f.value(depth + 1)
		f.nodes.members.add(child)
		out.contain(child)
		f.next(']')
	}
	f.at++
	out.items = f.nodes.members.end(first)
	return out
}

// mapping reads a flow mapping, in which every key has a value.
func (f flow) mapping(depth int) *node {
	out := f.new(kindMap, f.at, depth)
	first := f.nodes.entries.begin()
	var keys keySet
	f.at++
	for f.skip(); f.peek(0) != '}'; {
		entry := f.entry()
		before := f.nodes.entries.since(first)
		f.must(keys.find(before, entry.key) < 0 && len(before) < f.limits.Keys)
		f.must(f.peek(0) != ',' && f.peek(0) != '}')
		entry.value = f.value(depth + 1)
		f.nodes.entries.add(entry)
		out.contain(entry.value)
		f.next('}')
	}
	f.at++
	out.fields = f.nodes.entries.end(first)
	return out
}

// entry reads a key of a flow mapping and the colon behind it.
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

// next consumes the comma after an entry and moves to the next token. If end, the closing bracket of the collection, follows the entry instead, next
// stops at it.
func (f flow) next(end byte) {
	f.skip()
	if f.peek(0) == end {
		return
	}
	f.must(f.peek(0) == ',')
	f.at++
	f.skip()
}
