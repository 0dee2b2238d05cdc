package manifest

import (
	"bytes"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// plainReader reads documents of the YAML that most manifests are written in: block
// mappings and lists, flow collections on one line, texts without quotes or with simple
// ones. It makes the very nodes that the YAML parser and the converter make, at a tenth of
// their cost, and gives up on whatever is not surely of that kind: then those read the
// text. That the two agree is tested by fuzzing one against the other.
type plainReader struct {
	limits Limits
	nodes  nodeStock

	// It stands at one line of a text.
	rest   []byte // behind the line
	some   bool   // there is a line
	text   []byte // of the line, without what it is indented by and blanks at its end
	line   int    // its number
	indent int    // how far it, or what is left of it, is indented
}

// read reads one document; ok is false when it gives up. The nodes are good until the next
// call.
func (r *plainReader) read(text []byte, limits Limits) (root *node, ok bool) {
	r.nodes.reset()
	r.rest, r.line, r.limits = text, 0, limits
	defer func() {
		switch cause := recover().(type) {
		case nil, notPlain:
		default:
			panic(cause)
		}
	}()
	r.advance()
	if bytes.Equal(r.text, []byte("---")) {
		r.advance()
	}
	r.must(r.some && r.indent == 0)
	root = r.block(0)
	r.must(!r.some)
	return root, true
}

// notPlain ends the reading of a text that is not plain.
type notPlain struct{}

func (r *plainReader) must(plain bool) {
	if !plain {
		panic(notPlain{})
	}
}

// advance goes to the next line that is neither empty nor a comment.
func (r *plainReader) advance() {
	for len(r.rest) > 0 {
		line, rest, _ := bytes.Cut(r.rest, []byte("\n"))
		r.rest, r.line = rest, r.line+1
		for _, b := range line {
			r.must(b >= ' ' && b < 0x7f)
		}
		line = bytes.TrimRight(line, " ")
		r.text = bytes.TrimLeft(line, " ")
		r.indent = len(line) - len(r.text)
		if len(r.text) > 0 && r.text[0] != '#' {
			r.some = true
			return
		}
	}
	r.some, r.text, r.indent = false, nil, 0
}

// isItem reports whether the line is an item of a list.
func (r *plainReader) isItem() bool {
	return r.some && r.text[0] == '-' && (len(r.text) == 1 || r.text[1] == ' ')
}

// block reads the mapping or list that begins at the line.
func (r *plainReader) block(depth int) *node {
	if r.isItem() {
		return r.list(depth)
	}
	return r.mapping(depth)
}

func (r *plainReader) collection(kind kind, depth int) *node {
	r.must(depth <= r.limits.Depth)
	return r.nodes.new(node{kind: kind, line: r.line, column: r.indent + 1, size: 1})
}

func (r *plainReader) mapping(depth int) *node {
	out, indent := r.collection(kindMap, depth), r.indent
	first := r.nodes.openFields()
	var keys keySet
	for r.some && r.indent == indent && !r.isItem() {
		name, value := r.key(r.text)
		r.must(name != nil)
		f := field{key: shared(name), line: r.line, column: indent + 1}
		before := r.nodes.fields(first)
		r.must(keys.find(before, f.key) < 0 && len(before) < r.limits.Keys)
		if len(value) > 0 {
			f.value = r.inline(value, r.indent+len(r.text)-len(value), depth+1)
			r.advance()
			r.must(r.indent <= indent) // or the text goes on
		} else {
			r.advance()
			r.must(r.indent > indent || r.indent == indent && r.isItem()) // or there is no value
			f.value = r.block(depth + 1)
		}
		r.nodes.addField(f)
		out.contain(f.value)
	}
	out.fields = r.nodes.closeFields(first)
	return out
}

func (r *plainReader) list(depth int) *node {
	out, indent := r.collection(kindList, depth), r.indent
	first := r.nodes.openItems()
	for r.indent == indent && r.isItem() {
		text := bytes.TrimLeft(r.text[1:], " ")
		r.must(len(text) > 0)
		r.indent += len(r.text) - len(text)
		r.text = text
		r.must(!r.isItem())
		var child *node
		if name, _ := r.key(text); name != nil {
			child = r.mapping(depth + 1)
		} else {
			child = r.inline(text, r.indent, depth+1)
			r.advance()
		}
		r.must(r.indent <= indent)
		r.nodes.addItem(child)
		out.contain(child)
	}
	out.items = r.nodes.closeItems(first)
	return out
}

// key splits "name: value"; the name is nil when there is none that is plain.
func (r *plainReader) key(text []byte) (name, value []byte) {
	const longest = 200 // YAML allows 1,024
	n := 0
	for n < len(text) && n < longest && plainClass[text[n]]&inKey != 0 {
		n++
	}
	if n == 0 || n == len(text) || text[n] != ':' || n+1 < len(text) && text[n+1] != ' ' || plainClass[text[0]]&first == 0 {
		return nil, nil
	}
	_, warned := oldBoolValue(string(text[:n]))
	r.must(!warned)
	return text[:n], bytes.TrimLeft(text[n+1:], " ")
}

// inline reads a value that is on one line; it begins at an offset in that.
func (r *plainReader) inline(text []byte, offset, depth int) *node {
	switch text[0] {
	case '[', '{', '"', '\'':
		f := &plainFlow{plainReader: r, text: text, offset: offset}
		out := f.value(depth)
		r.must(f.at == len(text))
		return out
	}
	for i, b := range text {
		r.must(plainClass[b]&inText != 0 || b == ':' && i+1 < len(text) && text[i+1] != ' ')
	}
	return r.scalar(text, offset, depth)
}

// scalar is a text without quotes.
func (r *plainReader) scalar(text []byte, offset, depth int) *node {
	r.must(plainClass[text[0]]&first != 0 && depth <= r.limits.Depth)
	out := r.nodes.new(node{kind: kindString, line: r.line, column: offset + 1, size: 1, text: shared(text)})
	if isDecimal(text[0]) {
		r.number(out)
		return out
	}
	switch out.text {
	case "null", "Null", "NULL":
		out.kind = kindNull
	case "true", "True", "TRUE", "false", "False", "FALSE":
		out.kind = kindBool
	default:
		_, out.oldBool = oldBoolValue(out.text)
	}
	return out
}

// number tells whole numbers from addresses, which are texts, and gives up on all else
// that begins with a digit.
func (r *plainReader) number(out *node) {
	const longest = 18 // digits that fit in 64 bits
	var dots, colons, slashes, letters int
	for _, b := range []byte(out.text) {
		switch {
		case isDecimal(b):
		case b == '.':
			dots++
		case b == ':':
			colons++
		case b == '/':
			slashes++
		case b >= 'a' && b <= 'f':
			letters++
		default:
			r.must(false)
		}
	}
	switch {
	case dots+colons+slashes+letters == 0:
		r.must(len(out.text) <= longest && (out.text[0] != '0' || len(out.text) == 1))
		out.kind = kindInt
	case colons >= 2:
	default:
		r.must(letters+colons == 0 && dots >= 2)
	}
}

// What a byte may be in plain YAML.
const (
	first  = 1 << iota // of a key or a text
	inKey              // further in a key
	inFlow             // further in a text in a flow collection
	inText             // further in any other text
)

var plainClass = func() (class [256]uint8) {
	for b := range 256 {
		if b := byte(b); isDecimal(b) || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '_' || b == '/' {
			class[b] = first | inKey | inFlow | inText
		}
	}
	class['.'], class['-'] = inKey|inFlow|inText, inKey|inFlow|inText
	for _, b := range "+=@;() ," {
		class[b] = inText
	}
	return class
}()

func isDecimal(b byte) bool { return b >= '0' && b <= '9' }

// shared is a text, of which the frequent ones are held once.
func shared(text []byte) string {
	if s, ok := frequent[string(text)]; ok {
		return s
	}
	return string(text)
}

// frequent are the names of fields, and values that nearly every manifest has.
var frequent = func() map[string]string {
	texts := map[string]string{}
	for _, s := range fieldNames {
		texts[s] = s
	}
	values := "v1 List default true false " + object.LabelServiceName + " " +
		strings.Join([]string{object.TypeClusterIP, object.TypeNodePort, object.TypeLoadBalancer, object.ProtocolTCP, object.ProtocolUDP,
			object.ProtocolSCTP, object.IPv4, object.IPv6, object.PolicyCluster, object.PolicyLocal, object.AffinityClientIP, object.AffinityNone}, " ")
	for _, k := range servedKinds {
		texts[k.kind], texts[k.apiVersion] = k.kind, k.apiVersion
	}
	for s := range strings.FieldsSeq(values) {
		texts[s] = s
	}
	return texts
}()
