package jsonpath

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxTemplate bounds the length of a template in bytes: one fits on a command line.
	maxTemplate = 64 << 10
	// maxDepth bounds the nesting of ranges and filters.
	maxDepth = 32
)

// Template is a parsed template.
type Template struct{ parts []part }

// part is a part of a template: literal text, a path that is replaced by the values it finds, or a range with a body that is repeated for each value
// its path finds.
type part struct {
	text    string
	path    path // nil for literal text
	isRange bool
	body    []part
}

// path is a sequence of unions of steps. The steps of a union are applied one after the other, each to every value that the previous union found.
type path [][]step

// step returns the values that one step of a path finds, starting from a value. root is the whole object.
type step func(root, from any) []any

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
	return &Template{p.parts(0)}, p.err
}

// ParseExpression parses a single expression, with or without braces, and refuses text
// around it.
func ParseExpression(text string) (*Template, error) {
	t, err := Parse(text)
	if err == nil && (len(t.parts) != 1 || t.parts[0].path == nil || t.parts[0].isRange) {
		err = errors.New("want one expression, such as {.metadata.name}")
	}
	return t, err
}

// Execute returns the text of the template for an object.
func (t *Template) Execute(object any) string {
	var b strings.Builder
	write(&b, t.parts, object, object)
	return b.String()
}

func write(b *strings.Builder, parts []part, root, here any) {
	for _, p := range parts {
		if p.path == nil {
			b.WriteString(p.text)
			continue
		}
		for i, value := range p.path.find(root, here) {
			if p.isRange {
				write(b, p.body, root, value)
				continue
			}
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(Text(value))
		}
	}
}

// Find returns the values that the template's expressions find in an object.
func (t *Template) Find(object any) (found []any) {
	for _, p := range t.parts {
		if p.path != nil && !p.isRange {
			found = append(found, p.path.find(object, object)...)
		}
	}
	return found
}

// Text formats a value: scalars as text, others as JSON.
func Text(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case map[string]any, []any:
		body, _ := json.Marshal(v) // decoded of JSON
		return string(body)
	}
	return fmt.Sprint(value)
}

func (p path) find(root, here any) []any {
	found := []any{here}
	for _, union := range p {
		var to []any
		for _, s := range union {
			for _, v := range found {
				to = append(to, s(root, v)...)
			}
		}
		found = to
	}
	return found
}

// field returns the step to the field of a name.
func field(name string) step {
	return func(_, v any) []any {
		m, _ := v.(map[string]any)
		if child, there := m[name]; there {
			return []any{child}
		}
		return nil
	}
}

// children is the step to the items of a list, or to the values of a mapping in the order of its keys.
func children(_, v any) (all []any) {
	switch v := v.(type) {
	case []any:
		return v
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			all = append(all, v[key])
		}
	}
	return all
}

// below is the step to a value itself and all its descendants.
func below(root, v any) []any {
	all := []any{v}
	for _, child := range children(root, v) {
		all = append(all, below(root, child)...)
	}
	return all
}

// Compare compares two scalars: numbers by value, strings by their bytes, false before
// true. Values of different types are not comparable.
func Compare(a, b any) (c int, comparable bool) {
	x, isNumber := number(a)
	if y, is := number(b); is && isNumber {
		return cmp.Compare(x, y), true
	}
	switch x := a.(type) {
	case string:
		y, is := b.(string)
		return strings.Compare(x, y), is
	case bool:
		y, is := b.(bool)
		return strings.Compare(strconv.FormatBool(x), strconv.FormatBool(y)), is
	}
	return 0, a == nil && b == nil
}

// number returns the value of a number, which is a json.Number in an object and a float64 in a template.
func number(v any) (float64, bool) {
	if n, is := v.(json.Number); is {
		f, err := n.Float64()
		return f, err == nil
	}
	f, is := v.(float64)
	return f, is
}

// parser is a position in a template.
type parser struct {
	text string
	at   int
	err  error // the first one
}

// fail records an error, and ends the text, so that nothing more is parsed.
func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("at character %d: %s", p.at+1, fmt.Sprintf(format, args...))
		p.at = len(p.text)
	}
}

// rest returns the unread text.
func (p *parser) rest() string { return p.text[p.at:] }

// next reports whether there is a next byte, and it is one of chars.
func (p *parser) next(chars string) bool {
	return p.at < len(p.text) && strings.IndexByte(chars, p.text[p.at]) >= 0
}

// skip skips a text if it comes next, and reports whether it did.
func (p *parser) skip(text string) bool {
	is := strings.HasPrefix(p.rest(), text)
	if is {
		p.at += len(text)
	}
	return is
}

// want skips blanks and then a closing bracket. If the bracket is missing, it records an error.
func (p *parser) want(bracket string) {
	if p.blanks(); !p.skip(bracket) {
		p.fail("a %s is missing", bracket)
	}
}

func (p *parser) blanks() {
	for p.next(" \t\n") {
		p.at++
	}
}

// until skips and returns the text before the next of the given characters, or all remaining text if there is none.
func (p *parser) until(chars string) string {
	text := p.rest()
	if end := strings.IndexAny(text, chars); end >= 0 {
		text = text[:end]
	}
	p.at += len(text)
	return text
}

// parts parses text and expressions up to the end, or inside of ranges up to {end}.
func (p *parser) parts(depth int) (parts []part) {
	if depth > maxDepth {
		p.fail("ranges more than %d deep", maxDepth)
	}
	for p.at < len(p.text) {
		if !p.skip("{") {
			parts = append(parts, part{text: p.until("{")})
			continue
		}
		p.blanks()
		switch {
		case p.word("end"):
			if depth == 0 {
				p.fail("{end} without {range}")
			}
			p.want("}")
			return parts
		case p.word("range"):
			p.blanks()
			r := part{path: p.path(depth), isRange: true}
			p.want("}")
			r.body = p.parts(depth + 1)
			parts = append(parts, r)
		default:
			parts = append(parts, p.expressions(depth)...)
		}
	}
	if depth > 0 {
		p.fail("{range} without {end}")
	}
	return parts
}

// word skips the given word if it comes next and is followed by a blank or a brace, and reports whether it did.
func (p *parser) word(word string) bool {
	after, is := strings.CutPrefix(p.rest(), word)
	return is && (after == "" || strings.ContainsAny(after[:1], " \t\n}")) && p.skip(word)
}

// expressions parses the strings and paths of an expression up to its closing brace.
func (p *parser) expressions(depth int) (parts []part) {
	for p.blanks(); !p.skip("}"); p.blanks() {
		switch {
		case p.at == len(p.text):
			p.fail("a } is missing")
			return parts
		case p.next(`"'`):
			parts = append(parts, part{text: p.quoted()})
		default:
			parts = append(parts, part{path: p.path(depth)})
		}
	}
	return parts
}

// escapes rewrites the inside of a string with single or double quotes as the inside of a Go string. It also accepts an escaped dot, like kubectl.
var escapes = strings.NewReplacer(`\\`, `\\`, `\"`, `\"`, `"`, `\"`, `\'`, `'`, `\.`, `.`)

// quoted parses a quoted string with the escapes of Go and JSON.
func (p *parser) quoted() string {
	quote := p.text[p.at]
	for i := p.at + 1; i < len(p.text); i++ {
		switch p.text[i] {
		case '\\':
			i++
		case quote:
			text, err := strconv.Unquote(`"` + escapes.Replace(p.text[p.at+1:i]) + `"`)
			if err != nil {
				p.fail("%s is no text in quotes", p.text[p.at:i+1])
				return ""
			}
			p.at = i + 1
			return text
		}
	}
	p.fail("a closing %c is missing", quote)
	return ""
}

// path parses a path; it ends before a blank, a brace, a parenthesis or an operator.
func (p *parser) path(depth int) path {
	steps, start := path{}, p.at
	if p.skip("$") {
		steps = append(steps, []step{func(root, _ any) []any { return []any{root} }})
	} else {
		p.skip("@")
	}
	for p.at < len(p.text) {
		switch {
		case p.skip(".."):
			if steps = append(steps, []step{below}); !p.next("[") {
				steps = append(steps, []step{p.name()})
			}
		case p.skip("."):
			if p.at < len(p.text) && !p.next(" }[)") { // else it is the object itself
				steps = append(steps, []step{p.name()})
			}
		case p.skip("["):
			steps = append(steps, p.bracket(depth))
		case p.at == start:
			p.fail("want a path that begins with . or [, not %q", p.rest())
		default:
			return steps
		}
	}
	return steps
}

// name parses the name of a field, or * for all children, and returns the step to it. A backslash escapes the next byte.
func (p *parser) name() step {
	if p.skip("*") {
		return children
	}
	var b strings.Builder
	for p.at < len(p.text) && !p.next(".[]{}()=!<>,'\"$@ \t\n") {
		if p.text[p.at] == '\\' && p.at+1 < len(p.text) {
			p.at++
		}
		b.WriteByte(p.text[p.at])
		p.at++
	}
	if b.Len() == 0 {
		p.fail("the name of a field is missing")
	}
	return field(b.String())
}

// bracket parses the text between [ and ].
func (p *parser) bracket(depth int) (union []step) {
	if p.blanks(); p.skip("?(") {
		return []step{p.filter(depth + 1)}
	}
	for more := true; more; more = p.skip(",") {
		p.blanks()
		union = append(union, p.subscript())
		p.blanks()
	}
	p.want("]")
	return union
}

// subscript parses '*', a quoted name, an index or a slice.
func (p *parser) subscript() step {
	switch {
	case p.next(`"'`):
		name := p.quoted()
		whole, names := field(name), path{}
		for part := range strings.SplitSeq(name, ".") {
			names = append(names, []step{field(part)})
		}
		return func(root, v any) []any {
			if found := whole(root, v); found != nil {
				return found
			}
			return names.find(root, v) // kubectl's ['metadata.name']
		}
	case p.skip("*"):
		return children
	}
	end := strings.IndexAny(p.rest(), ",]")
	if end < 0 {
		p.fail("a ] is missing")
		return nil
	}
	text := strings.TrimSpace(p.rest()[:end])
	var numbers [3]*int
	parts := strings.Split(text, ":")
	for i, part := range parts {
		part = strings.TrimSpace(part)
		switch n, err := strconv.Atoi(part); {
		case i >= len(numbers) || err != nil && (part != "" || len(parts) == 1):
			p.fail("[%s] is no index: want a number, first:last:step, *, or a name in quotes", text)
		case part != "":
			numbers[i] = &n
		}
	}
	if s := numbers[2]; s != nil && *s <= 0 {
		p.fail("[%s]: the step must be greater than 0", text)
	}
	p.at = min(p.at+end, len(p.text)) // which fail has reached
	return func(_, v any) (all []any) {
		list, _ := v.([]any)
		at := func(n *int, otherwise int) int {
			switch {
			case n == nil:
				return otherwise
			case *n < 0: // from the end
				return *n + len(list)
			}
			return *n
		}
		first, last := at(numbers[0], 0), at(numbers[1], len(list))
		if len(parts) == 1 {
			last = first + 1
		}
		for i := max(first, 0); i < min(last, len(list)); i += min(at(numbers[2], 1), len(list)) {
			all = append(all, list[i])
		}
		return all
	}
}

// operators are the operators of filters, longer ones first.
var operators = []string{"==", "!=", "<=", ">=", "<", ">"}

// holds reports whether a comparison with the given result satisfies an operator. Values that are not comparable only satisfy "!=".
func holds(operator string, c int, comparable bool) bool {
	switch operator {
	case "!=":
		return !comparable || c != 0
	case "==":
		return comparable && c == 0
	}
	return comparable && (c < 0 && operator[0] == '<' || c > 0 && operator[0] == '>' || c == 0 && len(operator) > 1)
}

// filter parses the text between [?( and )]. Without an operator, an item passes if the left side finds a value. Otherwise it passes if the
// comparison holds for any value of the left side and any of the right side.
func (p *parser) filter(depth int) step {
	if depth > maxDepth {
		p.fail("filters more than %d deep", maxDepth)
	}
	left := p.operand(depth)
	p.blanks()
	i := slices.IndexFunc(operators, p.skip)
	var right step
	if i >= 0 {
		right = p.operand(depth)
	}
	p.want(")")
	p.want("]")
	passes := func(root, v any) bool {
		found := left(root, v)
		if i < 0 {
			return len(found) > 0
		}
		for _, l := range found {
			for _, r := range right(root, v) {
				if c, comparable := Compare(l, r); holds(operators[i], c, comparable) {
					return true
				}
			}
		}
		return false
	}
	return func(root, v any) (all []any) {
		list, is := v.([]any)
		if !is {
			list = []any{v}
		}
		for _, item := range list {
			if passes(root, item) {
				all = append(all, item)
			}
		}
		return all
	}
}

// operand parses a side of a comparison: a path, or a literal.
func (p *parser) operand(depth int) step {
	p.blanks()
	var value any
	switch {
	case p.at == len(p.text):
		p.fail("a ) is missing")
	case p.next(`"'`):
		value = p.quoted()
	case p.next("@$.["):
		return p.path(depth).find
	default:
		switch word := p.until(" )=!<>"); word {
		case "true", "false":
			value = word == "true"
		case "null", "nil":
		default:
			number, err := strconv.ParseFloat(word, 64)
			if err != nil {
				p.fail("%q is neither a path, a text in quotes nor a number", word)
			}
			value = number
		}
	}
	return func(_, _ any) []any { return []any{value} }
}
