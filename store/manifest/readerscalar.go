package manifest

import (
	"strings"
	"sync"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"svcctl.io/svcctl/store/object"
)

// These bits describe the positions that a byte may have in an unquoted scalar.
const (
	begins    = 1 << iota // may be the first byte
	continues             // may be a further byte, regardless of the adjacent bytes
)

var plainClass = func() (class [256]uint8) {
	for b := int(' ') + 1; b < len(class); b++ {
		class[b] = begins | continues
	}
	for _, b := range "-?:,[]{}#&*!|>'\"%@`" {
		class[b] &^= begins
	}
	for _, b := range ":#,?[]{}" {
		class[b] &^= continues
	}
	class[0x7f] = 0
	return class
}()

// plainLine reads the part of an unquoted scalar that is on the current line, and returns it
// without trailing blanks.
func (r *yamlReader) plainLine(inFlow bool) string {
	b := r.peek(0)
	r.must(plainClass[b]&begins != 0 || b == '-' && !isBlankOrBreak(r.peek(1)))
	return r.plainRest(inFlow)
}

// plainRest is like plainLine, but for a line that continues a scalar and may begin with any character.
func (r *yamlReader) plainRest(inFlow bool) string {
	start, end, i := r.at, r.at, r.at
	for i < len(r.text) {
		switch b := r.text[i]; {
		case plainClass[b]&continues != 0:
		case isBlank(b):
			i++
			continue
		case b == ':':
			if i+1 == len(r.text) || isBlankOrBreak(r.text[i+1]) {
				r.at = end
				return r.text[start:end]
			}
		case b == '#':
			if end < i {
				r.at = end
				return r.text[start:end]
			}
		case isBreak(b), inFlow:
			r.at = end
			return r.text[start:end]
		}
		i++
		end = i
	}
	r.at = end
	return r.text[start:end]
}

// plain returns the node of an unquoted scalar whose first line was read. Further lines
// belong to it if they are indented more than the collection.
func (r *yamlReader) plain(text string, start, parent, depth int) *node {
	line := r.line
	column := r.column(start)
	together := false
	for {
		at, first, n, breaks := r.at, r.start, r.line, 0
		for isBlank(r.peek(0)) {
			r.at++
		}
		for !r.ended() && isBreak(r.peek(0)) {
			r.breakLine()
			breaks++
			for r.peek(0) == ' ' {
				r.at++
			}
			r.must(r.peek(0) != '\t')
		}
		if breaks == 0 || r.ended() || r.indent() <= parent || r.peek(0) == '#' || r.at == r.start && r.marker() {
			r.at, r.start, r.line, r.first = at, first, n, false
			break
		}
		if !together {
			r.buffer, together = append(r.buffer[:0], text...), true
		}
		r.fold(breaks)
		r.buffer = append(r.buffer, r.plainRest(false)...)
	}
	if together {
		text = string(r.buffer)
	}
	r.must(depth <= r.limits.Depth)
	out := r.nodes.new(node{line: line, column: column, size: 1, text: text})
	r.resolve(out)
	return out
}

// fold joins two lines of a scalar that are separated by a number of line breaks: one break becomes a blank, n breaks become n - 1.
func (r *yamlReader) fold(breaks int) {
	if breaks == 1 {
		r.buffer = append(r.buffer, ' ')
		return
	}
	r.newlines(breaks - 1)
}

func (r *yamlReader) newlines(n int) {
	for range n {
		r.buffer = append(r.buffer, '\n')
	}
}

// scalar returns the node of an unquoted scalar on one line.
func (r *yamlReader) scalar(text string, start, depth int) *node {
	out := r.new(kindString, start, depth)
	out.text = text
	r.resolve(out)
	return out
}

// resolve sets the kind of an unquoted scalar.
func (r *yamlReader) resolve(n *node) {
	n.kind = kindOfPlain(n.text)
	if n.kind == kindString && len(n.text) <= len("false") {
		_, n.oldBool = oldBoolValue(n.text)
	}
}

// kindOfPlain returns the kind of an unquoted scalar.
func kindOfPlain(text string) kind {
	if text == "" {
		return kindNull
	}
	switch b := text[0]; {
	case isDecimal(b):
		return numberKind(text)
	case b == '+' || b == '-' || b == '.':
		return libraryKind(text)
	case len(text) > len("false"):
		return kindString
	}
	switch text {
	case "null", "Null", "NULL", "~":
		return kindNull
	case "true", "True", "TRUE", "false", "False", "FALSE":
		return kindBool
	}
	return kindString
}

// numberKind returns the kind of an unquoted scalar that begins with a digit: a number, or a string
// such as an address or UUID.
func numberKind(text string) kind {
	const longest = 18 // digits that fit in 64 bits
	digits, dots := 0, 0
	for i := range len(text) {
		switch b := text[i]; {
		case isDecimal(b):
			digits++
		case b == '.':
			if dots++; dots > 1 {
				return kindString
			}
		case b == '-' || b == '+':
			if i == 4 && digits == 4 {
				return libraryKind(text) // it may be a date
			}
			if text[i-1] != 'e' && text[i-1] != 'E' {
				return kindString
			}
		case b == '_', b >= 'a' && b <= 'f', b >= 'A' && b <= 'F', b == 'o', b == 'O', b == 'x', b == 'X':
		default:
			return kindString
		}
	}
	if digits == len(text) && digits <= longest && (text[0] != '0' || digits == 1) {
		return kindInt
	}
	return libraryKind(text)
}

// libraryKind returns the kind that the YAML library gives an unquoted scalar.
func libraryKind(text string) kind {
	n := yaml.Node{Kind: yaml.ScalarNode, Value: text}
	switch n.ShortTag() {
	case "!!int":
		return kindInt
	case "!!float":
		return kindFloat
	}
	return kindString
}

// quoted reads a scalar in quotes.
func (r *yamlReader) quoted(depth int) *node {
	out := r.new(kindString, r.at, depth)
	quote := r.text[r.at]
	r.at++
	r.first = false
	end := strings.IndexByte(r.text[r.at:], quote)
	r.must(end >= 0)
	content := r.text[r.at : r.at+end]
	if strings.IndexByte(content, '\n') < 0 && (quote == '\'' && r.peek(end+1) != quote || quote == '"' && strings.IndexByte(content, '\\') < 0) {
		out.text = content
		r.at += end + 1
		return out
	}
	r.buffer = r.buffer[:0]
	for r.quotedLine(quote) {
	}
	out.text = string(r.buffer)
	return out
}

// quotedLine reads quoted text up to the end of the line and the blanks before the next line. more is false if the closing quote was read.
func (r *yamlReader) quotedLine(quote byte) (more bool) {
	text := len(r.buffer) // how much of the buffer is not blanks at the end of the line
	for {
		r.must(!r.ended())
		switch b := r.text[r.at]; {
		case isBreak(b):
			r.buffer = r.buffer[:text]
			r.fold(r.breaks())
			return true
		case b == quote && quote == '\'' && r.peek(1) == quote:
			r.buffer = append(r.buffer, quote)
			r.at += 2
		case b == quote:
			r.at++
			return false
		case b == '\\' && quote == '"' && (r.peek(1) == '\n' || r.peek(1) == '\r'):
			r.at++
			if n := r.breaks(); n > 1 {
				r.newlines(n - 1)
			}
			return true
		case b == '\\' && quote == '"':
			r.escape()
		default:
			r.buffer = append(r.buffer, b)
			r.at++
			if isBlank(b) {
				continue
			}
		}
		text = len(r.buffer)
	}
}

// breaks skips line breaks, each with the blanks after it, and returns the number of line breaks.
func (r *yamlReader) breaks() (n int) {
	for !r.ended() && isBreak(r.text[r.at]) {
		r.breakLine()
		r.must(!r.marker())
		n++
		for isBlank(r.peek(0)) {
			r.at++
		}
	}
	r.first = false
	return n
}

// escapes maps the character behind a backslash to the character that it stands for.
var escapes = map[byte]string{
	'0': "\x00", 'a': "\a", 'b': "\b", 't': "\t", '\t': "\t", 'n': "\n", 'v': "\v", 'f': "\f", 'r': "\r", 'e': "\x1b", ' ': " ",
	'"': "\"", '\'': "'", '\\': "\\", 'N': "\u0085", '_': "\u00a0", 'L': "\u2028", 'P': "\u2029",
}

// escape decodes an escape sequence, from the backslash on.
func (r *yamlReader) escape() {
	b := r.peek(1)
	r.at += 2
	if text, known := escapes[b]; known {
		r.buffer = append(r.buffer, text...)
		return
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[b]
	r.must(digits > 0)
	var value rune
	for range digits {
		digit := strings.IndexByte("0123456789abcdef", r.peek(0)|0x20)
		r.must(digit >= 0 && value <= utf8.MaxRune && r.peek(0) > ' ')
		value = value<<4 + rune(digit)
		r.at++
	}
	r.must(utf8.ValidRune(value))
	r.buffer = utf8.AppendRune(r.buffer, value)
}

// blockScalar reads a literal or folded scalar, in a collection whose column is parent.
func (r *yamlReader) blockScalar(parent, depth int) *node {
	r.must(parent != none)
	out := r.new(kindString, r.at, depth)
	folded := r.text[r.at] == '>'
	keep, strip, indent := r.blockHeader(parent)
	r.buffer = r.buffer[:0]
	var open, wasBlank bool // the last line ended with a break; it began with a blank
	empty := r.emptyLines(&indent, parent)
	for !r.ended() && r.at-r.start == indent {
		blank := isBlank(r.text[r.at])
		switch {
		case !open:
		case !folded || wasBlank || blank:
			r.newlines(1)
		case empty == 0:
			r.buffer = append(r.buffer, ' ')
		}
		r.newlines(empty)
		end := r.endOfLine()
		r.buffer = append(r.buffer, r.text[r.at:end]...)
		r.at, wasBlank = end, blank
		if open = !r.ended(); open {
			r.breakLine()
		}
		empty = r.emptyLines(&indent, parent)
	}
	if open && !strip {
		r.newlines(1)
	}
	if keep {
		r.newlines(empty)
	}
	out.text = string(r.buffer)
	r.skip()
	r.must(r.ended() || r.first)
	return out
}

// blockHeader reads the header line of a block scalar. keep and strip are its chomping indicators + and -. indent is the indentation of the text, or
// 0 if the first line of the text determines it.
func (r *yamlReader) blockHeader(parent int) (keep, strip bool, indent int) {
	r.at++
	for range 2 {
		switch b := r.peek(0); {
		case (b == '+' || b == '-') && !keep && !strip:
			keep, strip = b == '+', b == '-'
			r.at++
		case b >= '1' && b <= '9' && indent == 0:
			indent = parent + int(b-'0')
			r.at++
		}
	}
	r.must(isBlankOrBreak(r.peek(0)))
	for isBlank(r.peek(0)) {
		r.at++
	}
	if r.peek(0) == '#' {
		r.at = r.endOfLine()
	}
	r.must(isBreak(r.peek(0)))
	r.first = false
	if !r.ended() {
		r.breakLine()
	}
	return keep, strip, indent
}

// emptyLines skips empty lines up to the indentation of the next line, and returns the number of empty lines. If *indent is 0, it is set to the
// indentation of the next line.
func (r *yamlReader) emptyLines(indent *int, parent int) (n int) {
	deepest := 0
	for {
		for (*indent == 0 || r.at-r.start < *indent) && r.peek(0) == ' ' {
			r.at++
		}
		column := r.at - r.start
		deepest = max(deepest, column)
		r.must(r.peek(0) != '\t' || *indent != 0 && column >= *indent)
		if r.ended() || !isBreak(r.peek(0)) {
			break
		}
		r.breakLine()
		n++
	}
	if *indent == 0 {
		*indent = max(deepest, parent+1, 1)
	}
	return n
}

func isDecimal(b byte) bool { return b >= '0' && b <= '9' }

// frequent has field names and frequent values, which are interned.
var frequent = sync.OnceValue(func() map[string]string {
	texts := map[string]string{}
	for _, s := range structures().names {
		texts[s] = s
	}
	values := "v1 List default true false " + object.AnnotationLastApplied + " " + object.LabelServiceName + " " + object.LabelManagedBy + " " +
		strings.Join([]string{object.TypeClusterIP, object.TypeNodePort, object.TypeLoadBalancer, object.ProtocolTCP, object.ProtocolUDP,
			object.ProtocolSCTP, object.IPv4, object.IPv6, object.PolicyCluster, object.PolicyLocal, object.AffinityClientIP, object.AffinityNone}, " ")
	for _, k := range servedKinds() {
		texts[k.Name], texts[k.APIVersion()] = k.Name, k.APIVersion()
	}
	for s := range strings.FieldsSeq(values) {
		texts[s] = s
	}
	return texts
})
