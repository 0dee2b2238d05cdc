package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"svcctl.io/svcctl/store/object"
)

// EncodeYAML writes an object as a YAML document: apiVersion, kind and metadata first,
// the rest in the order of Kubernetes' types. It ends with a newline and has no ---
// line.
func EncodeYAML(o object.Object) ([]byte, error) {
	root, err := nodeOf(o)
	if err != nil {
		return nil, fmt.Errorf("encode %s as YAML: %w", refOf(o), err)
	}
	first := []string{"apiVersion", "kind", "metadata"}
	rank := func(f field) int {
		if i := slices.Index(first, f.key); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortStableFunc(root.fields, func(a, b field) int { return rank(a) - rank(b) })
	return writeYAML(root)
}

// YAML encodes a value as YAML with the names and the order of its JSON encoding, in which
// the keys of maps are sorted. It ends with a newline.
func YAML(v any) ([]byte, error) {
	root, err := nodeOf(v)
	if err != nil {
		return nil, fmt.Errorf("encode as YAML: %w", err)
	}
	return writeYAML(root)
}

// unlimited are the limits for text that the program itself encoded.
var unlimited = Limits{Bytes: math.MaxInt, Documents: math.MaxInt, Depth: math.MaxInt, Keys: math.MaxInt, Nodes: math.MaxInt}

// nodeOf returns the node tree of a value's JSON encoding.
func nodeOf(v any) (*node, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	docs, refused := parseJSON(b.Bytes(), 1, unlimited)
	if refused != nil {
		return nil, refused
	}
	return docs[0].root, nil
}

// indent is the number of spaces that kubectl indents with.
const indent = 2

// yamlWriter writes nodes in block style as kubectl does: lists are not indented relative to
// their key. The YAML library decides whether a scalar needs quotes.
type yamlWriter struct {
	bytes.Buffer
	err error
}

// writeYAML returns a node as a YAML document.
func writeYAML(root *node) ([]byte, error) {
	w := &yamlWriter{}
	if root.isBlock() {
		w.block(root, "", false)
	} else {
		w.WriteString(w.scalar(root, "") + "\n")
	}
	if w.err != nil {
		return nil, fmt.Errorf("encode as YAML: %w", w.err)
	}
	return w.Bytes(), nil
}

// isBlock reports whether a node is written on lines of its own, because it is a mapping or list that is not empty.
func (n *node) isBlock() bool { return len(n.fields)+len(n.items) > 0 }

// block writes a mapping or list that is not empty. The parameter before is the indentation of each line; begun is set if the indentation of the
// first line is already written.
func (w *yamlWriter) block(n *node, before string, begun bool) {
	const deeper = "  "
	begin := func() {
		if !begun {
			w.WriteString(before)
		}
		begun = false
	}
	for _, item := range n.items {
		begin()
		w.WriteString("- ")
		if item.isBlock() {
			w.block(item, before+deeper, true)
		} else {
			w.WriteString(w.scalar(item, before) + "\n")
		}
	}
	for _, f := range n.fields {
		begin()
		w.WriteString(w.key(f.key) + ":")
		switch {
		case !f.value.isBlock():
			w.WriteString(" " + w.scalar(f.value, before) + "\n")
		case f.value.kind == kindList:
			w.WriteByte('\n')
			w.block(f.value, before, false)
		default:
			w.WriteByte('\n')
			w.block(f.value, before+deeper, false)
		}
	}
}

// scalar formats a scalar, or an empty mapping or list. It puts before, the indentation, in front of each further line of a literal block that is not
// empty.
func (w *yamlWriter) scalar(n *node, before string) string {
	switch n.kind {
	case kindMap:
		return "{}"
	case kindList:
		return "[]"
	case kindString:
	default:
		return n.text
	}
	text := w.text(n.text)
	if !strings.Contains(text, "\n") {
		return text
	}
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if i > 0 && line != "\n" {
			lines[i] = before + line
		}
	}
	return strings.Join(lines, "")
}

// An unquoted scalar that matches plainText is a string in every version of YAML, unless it also matches plainWords.
var (
	plainText  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./-]*$`) })
	plainWords = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?i:true|false|yes|no|on|off|y|n|null)$`) })
)

// text formats a string, quoted or as a literal block if needed. It quotes strings that only
// YAML 1.1 reads as a bool or a number, too.
func (w *yamlWriter) text(s string) string {
	if plainText().MatchString(s) && !plainWords().MatchString(s) {
		return s
	}
	// The library writes control characters, line separators and blocks that begin with white space so that some reader, itself
	// among them, reads another text.
	odd := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
	if s == mergeKey || strings.ContainsFunc(s, odd) || strings.Contains(s, "\n") && strings.ContainsAny(s[:1], " \n") {
		return w.quoted(s)
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(indent)
	if err := e.Encode(s); err != nil {
		w.err = err
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// quoted formats a string as in JSON, which is valid YAML, with all invisible characters escaped.
func (w *yamlWriter) quoted(s string) string {
	var body bytes.Buffer
	e := json.NewEncoder(&body)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		w.err = err
	}
	var b strings.Builder
	for _, r := range strings.TrimSuffix(body.String(), "\n") {
		switch {
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r <= math.MaxUint16:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}

// key formats the key of a mapping, on one line.
func (w *yamlWriter) key(s string) string {
	if strings.Contains(s, "\n") {
		return w.quoted(s)
	}
	return w.text(s)
}

// mergeKey is the key that YAML 1.1 takes as a merge key if it is not quoted.
const mergeKey = "<<"

const byteOrderMark = "\xef\xbb\xbf"

// checkText returns an error if data is not UTF-8, and removes byte order marks: at the beginning of the file, and
// where files were concatenated (YAML 1.2, section 5.2, allows one before each document).
func checkText(data []byte) ([]byte, *refusal) {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return nil, refuse(1, 1, ReasonEncoding, "the file is UTF-16; save it as UTF-8")
	}
	data = bytes.TrimPrefix(data, []byte(byteOrderMark))
	if bytes.Contains(data, []byte("\n"+byteOrderMark)) {
		data = bytes.ReplaceAll(data, []byte("\n"+byteOrderMark), []byte("\n"))
	}
	if !utf8.Valid(data) {
		at := 0
		for at < len(data) {
			r, size := utf8.DecodeRune(data[at:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			at += size
		}
		line, column := lineColumn(data, at)
		return nil, refuse(line, column, ReasonEncoding, "byte 0x%02x is not UTF-8; save the file as UTF-8", data[at])
	}
	return data, nil
}

// lineColumn returns the line and column of an offset, from 1; columns count characters.
func lineColumn(data []byte, offset int) (line, column int) {
	before := data[:offset]
	return bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
}

// The classes of bytes for countStructure.
const (
	plain = iota
	newline
	opening // "[", "{" or ",", before an entry of a flow collection
	colon
	dash
	question
	hash
	control // control character that is not allowed in YAML
)

// byteClass maps bytes to their class for countStructure. Of the control characters
// YAML allows tab, line feed and carriage return only (YAML 1.2 section 5.1).
var byteClass = func() (class [256]uint8) {
	for b := range 0x20 {
		class[b] = control
	}
	class['\t'], class['\r'], class[0x7f] = plain, plain, control
	class['\n'] = newline
	class[','], class['['], class['{'] = opening, opening, opening
	class[':'] = colon
	class['-'], class['?'] = dash, question
	class['#'] = hash
	return class
}()

// The numbers of nodes that countStructure counts for parts of a text. A parsed comment
// takes as much memory as a few nodes. A comma counts twice, because in a flow mapping
// such as {a,b} each entry is a key and an empty value.
const (
	documentCharge = 3 // the document, its root and the first child of the root
	flowCharge     = 2
	questionCharge = 2 // in "? a:", a mapping is the key, and the value is empty
	commentCharge  = 3
)

// countStructure returns an error if the text has more documents than the limit, a document with more nodes than the limit, or control characters. It
// limits what the YAML parser would build, in one pass without allocations. It never counts fewer nodes than a document has. For ordinary text it
// counts slightly more, because punctuation within scalars counts, too.
func countStructure(data []byte, limits Limits) *refusal {
	nodes, documents := documentCharge, 1
	start := 0 // of the document
	for i, b := range data {
		switch byteClass[b] {
		case plain:
			continue
		case newline:
			nodes++
			if isMarker(data[i+1:]) {
				documents++
				nodes, start = documentCharge, i+1
			}
		case opening:
			nodes += flowCharge
		case colon:
			if endsToken(data, i+1) || i > 0 && bytes.IndexByte([]byte(`"'}]`), data[i-1]) >= 0 {
				nodes++
			}
		case dash:
			if endsToken(data, i+1) {
				nodes++
			}
		case question:
			nodes += questionCharge
		case hash:
			nodes += commentCharge
		case control:
			line, column := lineColumn(data, i)
			return refuse(line, column, ReasonEncoding, "control character 0x%02x; remove it, or write it as an escape in a quoted text", b)
		}
		if nodes > limits.Nodes {
			line, column := lineColumn(data, start)
			return refuse(line, column, ReasonLimit, "a document of more than %d nodes; split it with --- lines, or write it in JSON, where the items of a List are counted one by one", limits.Nodes)
		}
		if documents > limits.Documents {
			line, column := lineColumn(data, start)
			return refuse(line, column, ReasonLimit, "more than %d documents; split the file", limits.Documents)
		}
	}
	return nil
}

// countDocuments returns an error for text with more documents than the limit. It runs before any document is parsed.
func countDocuments(data []byte, limits Limits) *refusal {
	const shortest = len("---\n")
	documents := 0
	for at := 0; (limits.Documents-documents)*shortest < len(data)-at; at += nextMarker(data[at:]) {
		if documents++; documents > limits.Documents {
			line, column := lineColumn(data, at)
			return refuse(line, column, ReasonLimit, "more than %d documents; split the file", limits.Documents)
		}
	}
	return nil
}

// endsToken reports whether a blank, a line break, a flow indicator or the end of the text is at offset i, which follows an indicator.
func endsToken(data []byte, i int) bool {
	if i >= len(data) {
		return true
	}
	switch data[i] {
	case ' ', '\t', '\r', '\n', ',', '[', ']', '{', '}':
		return true
	}
	return false
}

// isMarker reports whether a line starts with the document marker "---".
func isMarker(line []byte) bool {
	if !bytes.HasPrefix(line, []byte("---")) {
		return false
	}
	return len(line) == 3 || line[3] == ' ' || line[3] == '\t' || line[3] == '\r' || line[3] == '\n'
}

// nextMarker returns the offset of the next line that starts with a document marker, or len(data) if there is none. It skips the first line of data.
func nextMarker(data []byte) int {
	for at := 0; ; {
		i := bytes.Index(data[at:], []byte("\n---"))
		if i < 0 {
			return len(data)
		}
		at += i + 1
		if isMarker(data[at:]) {
			return at
		}
	}
}
