package selector

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// Labels selects objects by their labels. The zero value selects everything.
type Labels struct{ requirements []requirement }

// The operators of a requirement.
const (
	opExists  = "exists"
	opAbsent  = "!"
	opIn      = "in"
	opNotIn   = "notin"
	opEqual   = "="
	opSame    = "=="
	opUnequal = "!="
	opGreater = ">"
	opLess    = "<"
)

// requirement is one requirement of a label selector.
type requirement struct {
	key      string
	operator string
	values   []string // sorted
}

// Empty reports whether the selector selects everything.
func (l Labels) Empty() bool { return len(l.requirements) == 0 }

// Matches reports whether the selector selects an object with these labels.
func (l Labels) Matches(labels map[string]string) bool {
	return !slices.ContainsFunc(l.requirements, func(r requirement) bool { return !r.matches(labels) })
}

func (r requirement) matches(labels map[string]string) bool {
	value, there := labels[r.key]
	switch r.operator {
	case opExists:
		return there
	case opAbsent:
		return !there
	case opNotIn, opUnequal:
		return !there || !slices.Contains(r.values, value)
	case opGreater, opLess:
		n, err := strconv.ParseInt(value, 10, 64)
		limit, _ := strconv.ParseInt(r.values[0], 10, 64) // checked when it was read
		return there && err == nil && (r.operator == opGreater && n > limit || r.operator == opLess && n < limit)
	}
	return there && slices.Contains(r.values, value)
}

// ParseLabels parses a label selector.
func ParseLabels(s string) (Labels, error) {
	p := &parser{tokens: tokens(s)}
	var all []requirement
	for next := p.peek(); !next.isEnd(); next = p.peek() {
		if !startsRequirement(next) {
			return Labels{}, fmt.Errorf("found '%s', expected: !, identifier, or 'end of string'", next.text)
		}
		r, err := p.requirement()
		if err != nil {
			return Labels{}, fmt.Errorf("unable to parse requirement: %w", err)
		}
		all = append(all, r)
		switch after := p.take(); {
		case after.isEnd():
		case !after.is(","):
			return Labels{}, fmt.Errorf("found '%s', expected: ',' or 'end of string'", after.text)
		case !startsRequirement(p.peek()):
			return Labels{}, fmt.Errorf("found '%s', expected: identifier after ','", p.peek().text)
		}
	}
	slices.SortStableFunc(all, func(a, b requirement) int { return cmp.Compare(a.key, b.key) })
	return Labels{all}, nil
}

func startsRequirement(t token) bool { return t.word || t.is("!") }

type parser struct {
	tokens []token
	at     int
}

func (p *parser) peek() token { return p.tokens[min(p.at, len(p.tokens)-1)] }

func (p *parser) take() token {
	t := p.peek()
	p.at++
	return t
}

func (p *parser) requirement() (requirement, error) {
	r := requirement{operator: opExists}
	key := p.take()
	if key.is("!") {
		r.operator = opAbsent
		key = p.take()
	}
	if !key.word {
		return r, fmt.Errorf("found '%s', expected: identifier", key.text)
	}
	r.key = key.text
	if problems := object.LabelKeyProblems(r.key); len(problems) > 0 {
		return r, invalid("<nil>", r.key, strings.Join(problems, "; "))
	}
	if next := p.peek(); r.operator == opAbsent || next.isEnd() || next.is(",") {
		return r, nil
	}
	operator := p.take()
	var err error
	switch r.operator = operator.text; r.operator {
	case opIn, opNotIn:
		r.values, err = p.list()
	case opEqual, opSame, opUnequal, opGreater, opLess:
		r.values, err = p.one()
	default:
		return r, fmt.Errorf("found '%s', expected: in, notin, =, ==, !=, gt, lt", operator.text)
	}
	if err != nil {
		return r, err
	}
	return r, r.check()
}

// list parses the values in parentheses. A value may be empty: "(,a)", "()".
func (p *parser) list() ([]string, error) {
	if open := p.take(); !open.is("(") {
		return nil, fmt.Errorf("found '%s' expected: '('", open.text)
	}
	if first := p.peek(); !first.word && !first.is(",") && !first.is(")") {
		return nil, fmt.Errorf("found '%s', expected: ',', ')' or identifier", first.text)
	}
	var values []string
	for {
		value := ""
		if p.peek().word {
			value = p.take().text
		}
		values = append(values, value)
		switch next := p.take(); {
		case next.is(")"):
			slices.Sort(values)
			return slices.Compact(values), nil
		case next.is(","):
			if after := p.peek(); !after.word && !after.is(",") && !after.is(")") {
				return nil, fmt.Errorf("found '%s', expected: ',', or identifier", after.text)
			}
		case value != "":
			return nil, fmt.Errorf("found '%s', expected: ',' or ')'", next.text)
		default:
			return nil, fmt.Errorf("found '%s', expected: ',', or identifier", next.text)
		}
	}
}

// one parses the single value of an operator; it may be empty.
func (p *parser) one() ([]string, error) {
	if next := p.peek(); next.isEnd() || next.is(",") {
		return []string{""}, nil
	}
	value := p.take()
	if !value.word {
		return nil, fmt.Errorf("found '%s', expected: identifier", value.text)
	}
	return []string{value.text}, nil
}

// check returns all errors of the values.
func (r requirement) check() error {
	var errs []string
	if r.operator == opGreater || r.operator == opLess {
		if _, err := strconv.ParseInt(r.values[0], 10, 64); err != nil {
			errs = append(errs, invalid("values[0]", r.values[0], "for 'Gt', 'Lt' operators, the value must be an integer").Error())
		}
	}
	for i, value := range r.values {
		if problems := object.LabelValueProblems(value); len(problems) > 0 {
			errs = append(errs, invalid(fmt.Sprintf("values[%d][%s]", i, r.key), value, strings.Join(problems, "; ")).Error())
		}
	}
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%s", errs[0])
	}
	return fmt.Errorf("[%s]", strings.Join(errs, ", "))
}

func invalid(field, value, detail string) error {
	return object.Error{Type: object.FieldValueInvalid, Field: field, Value: value, Detail: detail}
}

// token is a part of a label selector: a symbol, a word, or the end, whose text is "".
type token struct {
	text string
	word bool
}

func (t token) is(symbol string) bool { return !t.word && t.text == symbol }

// isEnd reports whether the token is the end of the selector.
func (t token) isEnd() bool { return t == token{} }

const (
	blanks  = " \t\r\n"
	symbols = "=!(),><"
)

// tokens splits a label selector into tokens. The last one is the end.
func tokens(s string) []token {
	var all []token
	for {
		s = strings.TrimLeft(s, blanks)
		if s == "" {
			return append(all, token{})
		}
		size := strings.IndexAny(s, blanks+symbols)
		switch {
		case size < 0:
			size = len(s)
		case strings.HasPrefix(s, "==") || strings.HasPrefix(s, "!="):
			size = 2
		case size == 0:
			size = 1
		}
		all = append(all, token{text: s[:size], word: !strings.Contains(symbols, s[:1])})
		s = s[size:]
	}
}
