package jsonpath

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	// maxTemplate bounds the length of a template in bytes: one fits on a command line.
	maxTemplate = 64 << 10
	// maxDepth bounds the nesting of ranges and filters.
	maxDepth = 32
)

// Template is a parsed template: text with expressions.
type Template struct{ nodes []node }

// node is a part of a template.
type node interface{}

type (
	// textNode is literal text.
	textNode string
	// pathNode is replaced by the values that it finds.
	pathNode []step
	// rangeNode is repeated for each value that its path finds.
	rangeNode struct {
		path pathNode
		body []node
	}
)

// step maps values to their descendants.
type step interface{}

type (
	rootStep      struct{} // $
	fieldStep     string   // .name
	wildcardStep  struct{} // * or [*]
	recursiveStep struct{} // ..: the value and all below it
	unionStep     []step   // ['a','b'] or [0,2]
	sliceStep     struct { // [first:last:stride]; an index is one item
		first, last, stride *int
		index               bool
	}
	filterStep struct { // [?(left op right)]; without op: left is there
		left, right operand
		op          string
	}
)

// operand is a path or a literal.
type operand struct {
	path  pathNode
	value any // string, float64, bool or nil
}

// Parse parses a template. Text without braces is one expression: "metadata.name" and
// ".metadata.name" mean "{.metadata.name}".
func Parse(text string) (*Template, error) {
	if len(text) > maxTemplate {
		return nil, fmt.Errorf("a template of %d bytes, more than %d", len(text), maxTemplate)
	}
	if bare := strings.TrimSpace(text); !strings.ContainsAny(bare, "{}") && bare != "" {
		if !strings.ContainsAny(bare[:1], ".[$@'\"") {
			bare = "." + bare
		}
		text = "{" + bare + "}"
	}
	p := &parser{text: text}
	nodes, err := p.nodes(0, false)
	if err != nil {
		return nil, fmt.Errorf("at character %d: %w", p.at+1, err)
	}
	return &Template{nodes}, nil
}

// ParseExpression parses a single expression, with or without braces, and refuses text
// around it.
func ParseExpression(text string) (*Template, error) {
	t, err := Parse(text)
	if err != nil {
		return nil, err
	}
	if len(t.nodes) == 1 {
		if _, is := t.nodes[0].(pathNode); is {
			return t, nil
		}
	}
	return nil, errors.New("want one expression, such as {.metadata.name}")
}

// parser is a position in a template.
type parser struct {
	text string
	at   int
}

// rest returns the unread text.
func (p *parser) rest() string { return p.text[p.at:] }

// skip skips a text if it comes next, and reports whether it did.
func (p *parser) skip(text string) bool {
	if !strings.HasPrefix(p.rest(), text) {
		return false
	}
	p.at += len(text)
	return true
}

func (p *parser) blanks() {
	for p.at < len(p.text) && (p.text[p.at] == ' ' || p.text[p.at] == '\t' || p.text[p.at] == '\n') {
		p.at++
	}
}

// nodes parses nodes up to the end, or inside a range up to {end}.
func (p *parser) nodes(depth int, inside bool) ([]node, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("ranges more than %d deep", maxDepth)
	}
	var nodes []node
	for p.at < len(p.text) {
		if !p.skip("{") {
			end := strings.IndexByte(p.rest(), '{')
			if end < 0 {
				end = len(p.rest())
			}
			nodes = append(nodes, textNode(p.rest()[:end]))
			p.at += end
			continue
		}
		p.blanks()
		switch {
		case p.word("end"):
			if !inside {
				return nil, errors.New("{end} without {range}")
			}
			return nodes, p.close()
		case p.word("range"):
			r, err := p.ranged(depth)
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, r)
		default:
			found, err := p.expressions(depth)
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, found...)
		}
	}
	if inside {
		return nil, errors.New("{range} without {end}")
	}
	return nodes, nil
}

// word skips a word that ends at a blank or a brace, and reports whether it did.
func (p *parser) word(word string) bool {
	if after := strings.TrimPrefix(p.rest(), word); len(after) == len(p.rest()) || after != "" && !strings.ContainsAny(after[:1], " \t\n}") {
		return false
	}
	p.at += len(word)
	return true
}

func (p *parser) close() error {
	p.blanks()
	if !p.skip("}") {
		return errors.New("a } is missing")
	}
	return nil
}

func (p *parser) ranged(depth int) (rangeNode, error) {
	p.blanks()
	path, err := p.path(depth)
	if err != nil {
		return rangeNode{}, err
	}
	if err := p.close(); err != nil {
		return rangeNode{}, err
	}
	body, err := p.nodes(depth+1, true)
	return rangeNode{path, body}, err
}

// expressions parses strings and paths up to the closing brace.
func (p *parser) expressions(depth int) ([]node, error) {
	var nodes []node
	for {
		p.blanks()
		switch {
		case p.at == len(p.text):
			return nil, errors.New("a } is missing")
		case p.skip("}"):
			return nodes, nil
		case p.text[p.at] == '"' || p.text[p.at] == '\'':
			text, err := p.quoted()
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, textNode(text))
		default:
			path, err := p.path(depth)
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, path)
		}
	}
}

// quoted parses a quoted string with the escapes of Go and JSON.
func (p *parser) quoted() (string, error) {
	quote := p.text[p.at]
	for i := p.at + 1; i < len(p.text); i++ {
		switch p.text[i] {
		case '\\':
			i++
		case quote:
			raw := p.text[p.at+1 : i]
			if quote == '\'' { // in double quotes a ' needs no escape, a " does
				raw = strings.ReplaceAll(strings.ReplaceAll(raw, `\'`, `'`), `"`, `\"`)
			}
			text, err := strconv.Unquote(`"` + raw + `"`)
			if err != nil {
				return "", fmt.Errorf("%s is no text in quotes", p.text[p.at:i+1])
			}
			p.at = i + 1
			return text, nil
		}
	}
	return "", fmt.Errorf("a closing %c is missing", quote)
}

// path parses a path; it ends before a blank, a brace, a parenthesis or an operator.
func (p *parser) path(depth int) (pathNode, error) {
	path := pathNode{}
	start := p.at
	if p.skip("$") {
		path = append(path, rootStep{})
	} else {
		p.skip("@")
	}
	for p.at < len(p.text) {
		switch {
		case p.skip(".."):
			path = append(path, recursiveStep{})
			if p.at < len(p.text) && p.text[p.at] == '[' {
				continue
			}
			step, err := p.name()
			if err != nil {
				return nil, err
			}
			path = append(path, step)
		case p.skip("."):
			if p.at == len(p.text) || strings.ContainsAny(p.rest()[:1], " }[)") {
				continue // "." alone is the object itself
			}
			step, err := p.name()
			if err != nil {
				return nil, err
			}
			path = append(path, step)
		case p.skip("["):
			step, err := p.bracket(depth)
			if err != nil {
				return nil, err
			}
			path = append(path, step)
		case p.at == start:
			return nil, fmt.Errorf("want a path that begins with . or [, not %q", p.rest())
		default:
			return path, nil
		}
	}
	return path, nil
}

// name parses the name of a field. A backslash escapes the next byte.
func (p *parser) name() (step, error) {
	if p.skip("*") {
		return wildcardStep{}, nil
	}
	var b strings.Builder
	for p.at < len(p.text) && !strings.ContainsAny(p.text[p.at:p.at+1], ".[]{}()=!<>,'\"$@ \t\n") {
		if p.text[p.at] == '\\' && p.at+1 < len(p.text) {
			p.at++
		}
		b.WriteByte(p.text[p.at])
		p.at++
	}
	if b.Len() == 0 {
		return nil, errors.New("the name of a field is missing")
	}
	return fieldStep(b.String()), nil
}

// bracket parses the text between [ and ].
func (p *parser) bracket(depth int) (step, error) {
	p.blanks()
	if p.skip("?(") {
		return p.filter(depth + 1)
	}
	var union unionStep
	for {
		p.blanks()
		step, err := p.subscript()
		if err != nil {
			return nil, err
		}
		union = append(union, step)
		p.blanks()
		switch {
		case p.skip(","):
		case p.skip("]"):
			if len(union) == 1 {
				return union[0], nil
			}
			return union, nil
		default:
			return nil, errors.New("a ] is missing")
		}
	}
}

// subscript parses '*', a quoted name, an index or a slice.
func (p *parser) subscript() (step, error) {
	if p.at < len(p.text) && (p.text[p.at] == '\'' || p.text[p.at] == '"') {
		name, err := p.quoted()
		return fieldStep(name), err
	}
	if p.skip("*") {
		return wildcardStep{}, nil
	}
	end := strings.IndexAny(p.rest(), ",]")
	if end < 0 {
		return nil, errors.New("a ] is missing")
	}
	text := strings.TrimSpace(p.rest()[:end])
	parts := strings.Split(text, ":")
	var numbers [3]*int
	for i, part := range parts {
		if i == len(numbers) {
			return nil, fmt.Errorf("[%s] is no index: want a number or first:last:step", text)
		}
		if part = strings.TrimSpace(part); part == "" && len(parts) > 1 {
			continue
		}
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil, fmt.Errorf("[%s] is no index: want a number, first:last:step, *, or a name in quotes", text)
		}
		numbers[i] = &n
	}
	if s := numbers[2]; s != nil && *s <= 0 {
		return nil, fmt.Errorf("[%s]: the step must be greater than 0", text)
	}
	p.at += end
	return sliceStep{numbers[0], numbers[1], numbers[2], len(parts) == 1}, nil
}

// operators are the operators of filters, longer ones first.
var operators = []string{"==", "!=", "<=", ">=", "<", ">"}

// filter parses the text between [?( and )].
func (p *parser) filter(depth int) (step, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("filters more than %d deep", maxDepth)
	}
	var f filterStep
	var err error
	if f.left, err = p.operand(depth); err != nil {
		return nil, err
	}
	p.blanks()
	for _, op := range operators {
		if p.skip(op) {
			f.op = op
			if f.right, err = p.operand(depth); err != nil {
				return nil, err
			}
			break
		}
	}
	p.blanks()
	if !p.skip(")") {
		return nil, errors.New("a ) is missing")
	}
	if p.blanks(); !p.skip("]") {
		return nil, errors.New("a ] is missing")
	}
	return f, nil
}

func (p *parser) operand(depth int) (operand, error) {
	p.blanks()
	if p.at == len(p.text) {
		return operand{}, errors.New("a ) is missing")
	}
	switch c := p.text[p.at]; {
	case c == '"' || c == '\'':
		text, err := p.quoted()
		return operand{value: text}, err
	case c == '@' || c == '$' || c == '.' || c == '[':
		path, err := p.path(depth)
		return operand{path: path}, err
	}
	end := strings.IndexAny(p.rest(), " )=!<>")
	if end < 0 {
		end = len(p.rest())
	}
	word := p.rest()[:end]
	p.at += end
	switch word {
	case "true", "false":
		return operand{value: word == "true"}, nil
	case "null", "nil":
		return operand{}, nil
	}
	number, err := strconv.ParseFloat(word, 64)
	if err != nil {
		return operand{}, fmt.Errorf("%q is neither a path, a text in quotes nor a number", word)
	}
	return operand{value: number}, nil
}
