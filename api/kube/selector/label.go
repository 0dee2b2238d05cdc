package selector

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/kind"
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

// Text returns a substring of the JSON of every object that the selector can match, `"KEY":"VALUE"` or `"KEY":`; "" if there is none.
func (l Labels) Text() string {
	for _, r := range l.requirements {
		switch key := `"` + r.key + `":`; r.operator {
		case opEqual, opSame:
			return key + `"` + r.values[0] + `"`
		case opExists, opIn:
			return key
		}
	}
	return ""
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
		return r, object.Invalid("<nil>", r.key, strings.Join(problems, "; "))
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

// check returns an error that lists all invalid values of the requirement.
func (r requirement) check() error {
	var errs []string
	if r.operator == opGreater || r.operator == opLess {
		if _, err := strconv.ParseInt(r.values[0], 10, 64); err != nil {
			errs = append(errs, object.Invalid("values[0]", r.values[0], "for 'Gt', 'Lt' operators, the value must be an integer").Error())
		}
	}
	for i, value := range r.values {
		if problems := object.LabelValueProblems(value); len(problems) > 0 {
			errs = append(errs, object.Invalid(fmt.Sprintf("values[%d][%s]", i, r.key), value, strings.Join(problems, "; ")).Error())
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

// Fields selects objects of one kind by their fields. The zero value selects everything.
type Fields struct{ terms []term }

// term is one requirement of a field selector.
type term struct {
	field string
	not   bool
	value string
}

// Empty reports whether the selector selects everything.
func (f Fields) Empty() bool { return len(f.terms) == 0 }

// Exact returns the value that the selector requires of a field, if it requires one:
// metadata.name=web selects a single object.
func (f Fields) Exact(field string) (string, bool) {
	for _, t := range f.terms {
		if t.field == field && !t.not {
			return t.value, true
		}
	}
	return "", false
}

// Text returns a text that the JSON of every matching object contains, or "", as Labels.Text does. It supports only node ports, and IPv4 addresses,
// because they have a single spelling.
func (f Fields) Text() string {
	if port, _ := f.Exact(FieldNodePort); port != "" && port != "0" { // 0 is left out
		return `odePort":` + port // of a port, or of health checks
	}
	if text, _ := f.Exact(FieldAddress); strings.Contains(text, ".") && !strings.Contains(text, ":") {
		return `"` + text + `"`
	}
	return ""
}

// Matches reports whether the selector selects an object, which must be of the kind that the selector was parsed for.
func (f Fields) Matches(o object.Object) bool {
	return !slices.ContainsFunc(f.terms, func(t term) bool { return slices.Contains(valuesOf(o, t.field), t.value) == t.not })
}

// ParseFields parses a field selector for objects of a kind. A field that is not
// selectable is an error.
func ParseFields(k kind.Kind, s string) (Fields, error) {
	var f Fields
	parts := split(s)
	slices.Sort(parts)
	for _, part := range parts {
		if part == "" {
			continue
		}
		t, ok := cutTerm(part)
		if !ok {
			return Fields{}, fmt.Errorf("invalid selector: '%s'; can't understand '%s'", s, part)
		}
		var err error
		if t.value, err = unescape(t.value); err != nil {
			return Fields{}, err
		}
		f.terms = append(f.terms, t)
	}
	for i, t := range f.terms {
		field, err := known(k, t.field)
		if err != nil {
			return Fields{}, err
		}
		f.terms[i].field = field
		if field == FieldAddress {
			f.terms[i].value = canonical([]string{t.value})[0]
		}
	}
	return f, nil
}

// split splits a selector at its commas, except those after a backslash.
func split(s string) []string {
	var parts []string
	start := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case ',':
			parts = append(parts, s[start:i])
			start = i + 1
		}
	}
	return append(parts, s[start:])
}

// cutTerm splits a term of a field selector at its first operator. The field name before the operator has no escapes.
func cutTerm(part string) (term, bool) {
	i := strings.IndexByte(part, '=')
	switch {
	case i < 0:
		return term{}, false
	case i > 0 && part[i-1] == '!':
		return term{field: part[:i-1], not: true, value: part[i+1:]}, true
	}
	return term{field: part[:i], value: strings.TrimPrefix(part[i+1:], "=")}, true
}

func unescape(s string) (string, error) {
	if !strings.ContainsAny(s, `\,=`) {
		return s, nil
	}
	var b strings.Builder
	escaped := false
	for _, r := range s {
		switch {
		case escaped && !strings.ContainsRune(`\,=`, r):
			return "", fmt.Errorf("invalid field selector: invalid escape sequence: \\%c", r)
		case !escaped && r == '\\':
			escaped = true
			continue
		case !escaped && (r == ',' || r == '='):
			return "", fmt.Errorf("invalid field selector: unescaped character in value: %v", r)
		}
		escaped = false
		b.WriteRune(r)
	}
	if escaped {
		return "", fmt.Errorf(`invalid field selector: invalid escape sequence: \`)
	}
	return b.String(), nil
}

const (
	fieldName      = "metadata.name"
	fieldNamespace = "metadata.namespace"
	// FieldAddress selects by the addresses of a Service, or of the endpoints of an EndpointSlice. FieldNodePort selects by the node ports of a
	// Service, including healthCheckNodePort. Kubernetes has neither field.
	FieldAddress  = "svcctl.io/address"
	FieldNodePort = "svcctl.io/nodePort"
)

// selectable has the fields, in addition to name and namespace, by which objects of a kind can be selected. As in Kubernetes (the conversions of
// field labels in its pkg/apis), the error for any other field has a different text for kinds with an entry here.
var selectable = map[string][]string{
	"v1 Service":   {"spec.clusterIP", "spec.type", FieldAddress, FieldNodePort},
	"v1 Pod":       {"spec.nodeName", "spec.hostNetwork", "status.phase", "status.podIP"},
	"v1 Node":      {"spec.unschedulable"},
	"v1 Namespace": {"status.phase"},
	"v1 Secret":    {"type"},
	"v1 Event": {
		"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
		"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
		"reason", "reportingComponent", "source", "type",
	},
	"events.k8s.io/v1 Event": {
		"regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid",
		"regarding.apiVersion", "regarding.resourceVersion", "regarding.fieldPath",
		"reason", "reportingController", "type",
	},
}

// known returns the name of the field that a field label selects by. Fields of events.k8s.io get the name that they have in core/v1. The error means
// that objects of the kind cannot be selected by that label.
func known(k kind.Kind, label string) (string, error) {
	switch own, has := selectable[k.APIVersion()+" "+k.Name]; {
	case label == FieldAddress && k.Name == object.KindEndpointSlice:
	case label == fieldName || label == fieldNamespace && (k.Namespaced || !has), slices.Contains(own, label):
	case has:
		return "", fmt.Errorf("field label not supported: %s", label)
	default:
		return "", fmt.Errorf("%q is not a known field selector: only %q, %q", label, fieldName, fieldNamespace)
	}
	// The two kinds of events are one, under two names.
	if rest, ok := strings.CutPrefix(label, "regarding."); ok {
		return "involvedObject." + rest, nil
	}
	if label == "reportingController" {
		return "reportingComponent", nil
	}
	return label, nil
}

// valuesOf returns the values of a selectable field of an object; FieldAddress and FieldNodePort have several.
func valuesOf(o object.Object, field string) (values []string) {
	switch field {
	case fieldName:
		return []string{o.GetMeta().Name}
	case fieldNamespace:
		return []string{o.GetMeta().Namespace}
	}
	if view, is := o.(*object.EventView); is {
		o = view.Event()
	}
	switch o := o.(type) {
	case *object.Service:
		switch field {
		case FieldAddress:
			return canonical(slices.Concat(o.Spec.ClusterIPs, o.Spec.ExternalIPs, o.IngressIPs()))
		case FieldNodePort:
			for _, p := range o.Spec.Ports {
				values = append(values, strconv.Itoa(int(p.NodePort)))
			}
			return append(values, strconv.Itoa(int(o.Spec.HealthCheckNodePort)))
		}
	case *object.EndpointSlice:
		for i := range o.Endpoints {
			values = append(values, o.Endpoints[i].Addresses...)
		}
		return canonical(values)
	case *object.Event:
		if field == "source" {
			return []string{cmp.Or(o.Source.Component, o.ReportingComponent)}
		}
	}
	v := reflect.Indirect(reflect.ValueOf(o))
	for name := range strings.SplitSeq(field, ".") {
		v = v.FieldByNameFunc(func(of string) bool { return strings.EqualFold(of, name) })
	}
	return []string{fmt.Sprint(v)}
}

// canonical replaces IPv6 addresses in texts by their canonical form (RFC 5952).
func canonical(texts []string) []string {
	for i, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil && addr.Is6() {
			texts[i] = addr.String()
		}
	}
	return texts
}
