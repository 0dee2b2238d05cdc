package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// readJSON decodes consecutive JSON values, and the items of a List one by one, so that a List needs no more memory than its largest item.
func (r *reading) readJSON(data []byte) *refusal {
	s := &jsonScanner{text: data, line: 1, limits: r.limits}
	for {
		s.space()
		if s.at == len(s.text) {
			return nil
		}
		line, column, start := s.line, s.column(), s.at
		list, err := s.list()
		if err != nil {
			return err
		}
		if list == nil {
			if err := r.add(s.text[start:s.at], line, column, true, implied{}); err != nil {
				return err
			}
			continue
		}
		for _, it := range list.items {
			if err := r.add(it.text, it.line, it.column, true, list.as); err != nil {
				return err
			}
		}
	}
}

// A jsonList is a List that was split into the texts of its items.
type jsonList struct {
	as    implied
	items []jsonRange
}

// A jsonRange is the text of one value, with its position.
type jsonRange struct {
	text         []byte
	line, column int
}

// list scans one value. If the value is a List that is decoded item by item (see listOf), list returns the texts of its items; the rest of the List
// is only checked.
func (s *jsonScanner) list() (*jsonList, *refusal) {
	start := s.at
	s.stop = start + maxDocumentBytes
	if s.text[s.at] != '{' {
		return nil, s.skip(0)
	}
	var items []jsonRange
	var kind, apiVersion string
	hasItems := false
	err := s.members(func(key []byte, _, _ int) *refusal {
		from := s.at
		if string(key) == `"items"` && !hasItems && s.text[s.at] == '[' {
			hasItems = true
			var err *refusal
			items, err = s.items()
			// The items do not count for the List around them.
			s.stop = s.at + maxDocumentBytes - (from - start)
			return err
		}
		err := s.skip(1)
		switch raw := s.text[from:s.at]; string(key) {
		case `"kind"`:
			kind = unquote(raw)
		case `"apiVersion"`:
			apiVersion = unquote(raw)
		}
		return err
	})
	as, ok := listOf(kind, apiVersion)
	if err != nil || !ok || !hasItems {
		return nil, err
	}
	return &jsonList{as: as, items: items}, nil
}

// items scans an array and returns the texts of its elements.
func (s *jsonScanner) items() ([]jsonRange, *refusal) {
	var items []jsonRange
	err := s.elements(func(int) *refusal {
		if len(items) == s.limits.Documents {
			return s.fail(ReasonLimit, "more than %d documents; split the file", s.limits.Documents)
		}
		line, column, start := s.line, s.column(), s.at
		s.stop = start + maxDocumentBytes
		err := s.skip(2)
		items = append(items, jsonRange{s.text[start:s.at], line, column})
		return err
	})
	return items, err
}

// parseJSON parses one JSON value.
func parseJSON(text []byte, column int, limits Limits) ([]parsed, *refusal) {
	s := &jsonScanner{text: text, line: 1, before: column - 1, limits: limits}
	root, err := s.value(0)
	if err != nil {
		return nil, err
	}
	return []parsed{{root, s.flaws}}, nil
}

// document parses a text that is one JSON value.
func (s *jsonScanner) document() (*node, *refusal) {
	s.space()
	if s.at == len(s.text) {
		return nil, s.bad("a value")
	}
	root, err := s.value(0)
	if s.space(); err == nil && s.at < len(s.text) {
		err = s.fail(ReasonSyntax, "could not be parsed: there is more after the end of the value; send one value")
	}
	return root, err
}

// A jsonScanner scans JSON (RFC 8259), records positions, and enforces the limits.
type jsonScanner struct {
	text      []byte
	at        int
	line      int
	lineStart int  // offset of the first byte of the current line
	before    int  // number of columns in the file before text, on its first line
	stop      int  // offset beyond which skip fails
	last      bool // the last of duplicate keys counts instead of the first
	limits    Limits
	nodes     int
	path      path
	flaws     []flaw
}

// column returns the column of the next byte, counted in bytes.
func (s *jsonScanner) column() int {
	column := s.at - s.lineStart + 1
	if s.line == 1 {
		column += s.before
	}
	return column
}

func (s *jsonScanner) fail(reason, format string, args ...any) *refusal {
	return refuse(s.line, s.column(), reason, format, args...)
}

// bad returns the error for unexpected text at the present position. want names the expected text.
func (s *jsonScanner) bad(want string) *refusal {
	if s.at >= len(s.text) {
		return s.fail(ReasonSyntax, "could not be parsed: the text ends where %s is expected; it is cut off", want)
	}
	r, _ := utf8.DecodeRune(s.text[s.at:])
	return s.fail(ReasonSyntax, "could not be parsed: %q where %s is expected", r, want)
}

func (s *jsonScanner) space() {
	for ; s.at < len(s.text); s.at++ {
		switch s.text[s.at] {
		case '\n':
			s.line++
			s.lineStart = s.at + 1
		case ' ', '\t', '\r':
		default:
			return
		}
	}
}

// next skips white space and consumes one of the bytes in want. words describes want in the error message if another byte follows.
func (s *jsonScanner) next(want, words string) (byte, *refusal) {
	s.space()
	if s.at == len(s.text) || strings.IndexByte(want, s.text[s.at]) < 0 {
		return 0, s.bad(words)
	}
	s.at++
	return s.text[s.at-1], nil
}

// members calls each for every member of an object, with the quoted key and the position of the key. The scanner is then at the value, which each has
// to consume.
func (s *jsonScanner) members(each func(key []byte, line, column int) *refusal) *refusal {
	s.at++
	for i := 0; ; i++ {
		if i > s.limits.Keys {
			return s.fail(ReasonLimit, "an object of more than %d keys", s.limits.Keys)
		}
		s.space()
		if i == 0 && s.at < len(s.text) && s.text[s.at] == '}' {
			s.at++
			return nil
		}
		if s.at == len(s.text) || s.text[s.at] != '"' {
			return s.bad("a key in double quotes")
		}
		line, column := s.line, s.column()
		key, err := s.quoted()
		if err != nil {
			return err
		}
		if _, err := s.next(":", "a colon"); err != nil {
			return err
		}
		s.space()
		if s.at == len(s.text) {
			return s.bad("a value")
		}
		if err := each(key, line, column); err != nil {
			return err
		}
		if end, err := s.next(",}", "a comma or }"); err != nil || end == '}' {
			return err
		}
	}
}

// elements calls each for every element of an array. The scanner is then at the element, which each has to consume.
func (s *jsonScanner) elements(each func(i int) *refusal) *refusal {
	s.at++
	for i := 0; ; i++ {
		s.space()
		if s.at == len(s.text) {
			return s.bad("a value or ]")
		}
		if i == 0 && s.text[s.at] == ']' {
			s.at++
			return nil
		}
		if err := each(i); err != nil {
			return err
		}
		if end, err := s.next(",]", "a comma or ]"); err != nil || end == ']' {
			return err
		}
	}
}

// skip passes over a value without keeping it.
func (s *jsonScanner) skip(depth int) *refusal {
	if depth > s.limits.Depth {
		return s.fail(ReasonLimit, "objects and arrays more than %d deep", s.limits.Depth)
	}
	var err *refusal
	switch s.text[s.at] {
	case '{':
		err = s.members(func([]byte, int, int) *refusal { return s.skip(depth + 1) })
	case '[':
		err = s.elements(func(int) *refusal { return s.skip(depth + 1) })
	case '"':
		_, err = s.quoted()
	default:
		_, err = s.word()
	}
	if err == nil && s.at > s.stop {
		err = s.fail(ReasonLimit, "a document of more than %d bytes; split it", maxDocumentBytes)
	}
	return err
}

// count counts a value as a node. It returns an error if the value exceeds the limit of nesting depth or of the number of nodes.
func (s *jsonScanner) count(depth int) *refusal {
	if depth > s.limits.Depth {
		return s.fail(ReasonLimit, "objects and arrays more than %d deep", s.limits.Depth)
	}
	if s.nodes++; s.nodes > s.limits.Nodes {
		return s.fail(ReasonLimit, "a document of more than %d nodes; split it", s.limits.Nodes)
	}
	return nil
}

func (s *jsonScanner) value(depth int) (*node, *refusal) {
	if err := s.count(depth); err != nil {
		return nil, err
	}
	switch s.text[s.at] {
	case '{':
		return s.object(depth)
	case '[':
		out := &node{kind: kindList, line: s.line, column: s.column(), size: 1}
		return out, s.elements(func(i int) *refusal {
			s.path.pushIndex(i)
			child, err := s.value(depth + 1)
			if err != nil {
				return err
			}
			s.path.pop()
			out.items = append(out.items, child)
			out.contain(child)
			return nil
		})
	default:
		return s.scalar()
	}
}

func (s *jsonScanner) object(depth int) (*node, *refusal) {
	out := &node{kind: kindMap, line: s.line, column: s.column(), size: 1}
	var keys keySet
	return out, s.members(func(raw []byte, line, column int) *refusal {
		key := unquote(raw)
		s.path.pushKey(key)
		child, err := s.value(depth + 1)
		if err != nil {
			return err
		}
		twice := keys.find(out.fields, key)
		if twice >= 0 && len(s.flaws) <= maxProblems {
			s.flaws = append(s.flaws, flaw{line: line, column: column, path: slices.Clone(s.path),
				reason: ReasonDuplicateKey, message: fmt.Sprintf("duplicate key %s; remove one of them", excerpt(key))})
		}
		switch {
		case twice < 0:
			out.fields = append(out.fields, field{key, line, column, child})
		case s.last:
			out.fields[twice].value = child
		}
		s.path.pop()
		out.contain(child)
		return nil
	})
}

func (s *jsonScanner) scalar() (*node, *refusal) {
	out := &node{kind: kindString, line: s.line, column: s.column(), size: 1}
	if s.text[s.at] == '"' {
		raw, err := s.quoted()
		if err == nil {
			out.text = unquote(raw)
		}
		return out, err
	}
	raw, err := s.word()
	if err != nil {
		return nil, err
	}
	out.text = string(raw)
	switch {
	case raw[0] == 'n':
		out.kind = kindNull
	case raw[0] == 't' || raw[0] == 'f':
		out.kind = kindBool
	case bytes.ContainsAny(raw, ".eE"):
		out.kind = kindFloat
	default:
		out.kind = kindInt
	}
	return out, nil
}

// word scans true, false, null or a number. In JSON a number has no leading zero and no
// plus (RFC 8259 section 6).
func (s *jsonScanner) word() ([]byte, *refusal) {
	rest := s.text[s.at:]
	n := 0
	for n < len(rest) && (rest[n] >= '0' && rest[n] <= '9' || rest[n] >= 'a' && rest[n] <= 'z' || strings.IndexByte("+-.E", rest[n]) >= 0) {
		n++
	}
	if n == 0 {
		return nil, s.bad("a value")
	}
	if !json.Valid(rest[:n]) {
		return nil, s.fail(ReasonSyntax, "could not be parsed: %s is neither a number nor true, false or null", excerpt(string(rest[:n])))
	}
	s.at += n
	return rest[:n], nil
}

// quoted scans a string, and returns it with its quotes and escapes.
func (s *jsonScanner) quoted() ([]byte, *refusal) {
	rest := s.text[s.at:]
	escaped := false
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == '\\':
			escaped = true
			i++
		case c == '"':
			if raw := rest[:i+1]; !escaped || json.Valid(raw) {
				s.at += i + 1
				return raw, nil
			}
			return nil, s.fail(ReasonSyntax, "could not be parsed: a backslash in this text is followed by a character that JSON does not allow")
		case c < 0x20:
			s.at += i
			return nil, s.fail(ReasonSyntax, "could not be parsed: control character 0x%02x in a text; write it as an escape, or close the quote", c)
		}
	}
	return nil, s.fail(ReasonSyntax, "could not be parsed: the text ends inside of a quote that starts here; it is cut off")
}

// unquote returns the content of a quoted JSON string, interned if it is frequent; "" for any other text.
func unquote(raw []byte) string {
	if len(raw) < 2 || raw[0] != '"' {
		return ""
	}
	if s, ok := frequent()[string(raw[1:len(raw)-1])]; ok {
		return s
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	var text string
	_ = json.Unmarshal(raw, &text) // quoted has checked it
	return text
}
