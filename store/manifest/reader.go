package manifest

import (
	"strings"
	"unicode/utf8"
)

// yamlReader reads one YAML document: block mappings and lists, flow collections, all kinds of
// scalars, comments, anchors, aliases and merge keys, as kubectl, kustomize, Helm and people
// write them. It makes the same nodes as the YAML library and the converter, at a fifth of
// their cost. What it does not read (tags, complex keys, directives), and every text with a
// mistake in it, it leaves to them, so that each error has one wording. FuzzReader holds the
// two against each other.
//
// The texts of its nodes are parts of the document: a caller that keeps one clones it.
type yamlReader struct {
	limits  Limits
	nodes   nodeStock
	anchors map[string]*node
	aliased int    // nodes that aliases added
	buffer  []byte // of the scalar that is being put together

	text  string
	at    int  // offset of the next byte
	line  int  // its line, from 1
	start int  // offset of that line
	first bool // nothing but spaces is before it on its line
	wide  bool // the text has characters of several bytes
	// What column found last: characters between the start of the line and an offset.
	countedTo, counted int
}

// read reads one document; ok is false when it has to be left to the library. The nodes are
// good until the next call.
func (r *yamlReader) read(text []byte, limits Limits) (root *node, ok bool) {
	r.nodes.reset()
	r.limits, r.text = limits, string(text)
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

// notKnown ends the reading of a text that is left to the library.
type notKnown struct{}

func (r *yamlReader) must(known bool) {
	if !known {
		panic(notKnown{})
	}
}

// checkCharacters refuses line breaks other than LF and CRLF, and what YAML does not allow.
func (r *yamlReader) checkCharacters() {
	r.wide = false
	for i := 0; i < len(r.text); i++ {
		if r.text[i] >= utf8.RuneSelf {
			r.wide = true
			break
		}
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

// none is the column of the collection around the document's root.
const none = -1

func (r *yamlReader) ended() bool { return r.at >= len(r.text) }

// peek is the byte at an offset from the next one; 0 at the end: no text has it.
func (r *yamlReader) peek(ahead int) byte {
	if r.at+ahead >= len(r.text) {
		return 0
	}
	return r.text[r.at+ahead]
}

func isBlank(b byte) bool        { return b == ' ' || b == '\t' }
func isBreak(b byte) bool        { return b == '\n' || b == '\r' || b == 0 }
func isBlankOrBreak(b byte) bool { return isBlank(b) || isBreak(b) }

// indent is the column of the next byte, from 0. Before what begins a line, or follows "- " at
// its beginning, there are spaces only.
func (r *yamlReader) indent() int {
	if r.ended() {
		return none
	}
	return r.at - r.start
}

// column returns the column of an offset in the line, in characters, from 1.
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

// breakLine goes to the next line, from a line break or the end.
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

// endOfLine is the offset of the line break, or the end, that is next.
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

// marker reports whether a document begins or ends at the beginning of the line.
func (r *yamlReader) marker() bool {
	rest := r.text[r.at:]
	return (strings.HasPrefix(rest, "---") || strings.HasPrefix(rest, "...")) && isBlankOrBreak(r.peek(3))
}

// trailer reads what may follow the end of the document: comments.
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

// new is a node at an offset of the line.
func (r *yamlReader) new(kind kind, offset, depth int) *node {
	r.must(depth <= r.limits.Depth)
	return r.nodes.new(node{kind: kind, line: r.line, column: r.column(offset), size: 1})
}

// value reads the value that is next, in a collection whose column is parent, and goes to the
// token behind it. Where r.first is set it may be a block mapping or list. indentless means that
// a list may begin in the column of the collection, which is a mapping.
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
