package manifest

import (
	"encoding/base64"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/store/object"
)

// maxProblems bounds the problems that are reported of one document.
const maxProblems = 50

// decoding is the state of decoding one document into an object.
type decoding struct {
	file     string
	ref      object.Ref
	partly   bool // the kind is one of which svcctl reads only some fields
	secrets  bool // the object is a Secret: messages show none of its values
	path     path
	problems []Problem
	failed   bool
	dropped  bool // problems beyond maxProblems were dropped
	doubted  bool // a warning about an unknown field was already added; there is only one for a kind that is read partly
	last     *lastTexts
	// texts are the most recently decoded maps of strings. Equal maps are shared, since the selector of a Service often equals its labels.
	texts [2]map[string]string
}

// lastTexts interns the most recently decoded strings, and pointers to strings, in tables that are indexed by a hash of the length and three bytes.
// Many Services have equal port names, node names and annotation keys. The tables are kept between documents, so they contain no long strings and no
// values of Secrets.
type lastTexts struct {
	texts    [1024]string
	pointers [32]*string
}

var (
	timeType        = reflect.TypeFor[time.Time]()
	intOrStringType = reflect.TypeFor[object.IntOrString]()
)

// value sets v from a node, strictly: wrong types and unknown fields are problems. null leaves v unchanged, as in encoding/json.
func (d *decoding) value(n *node, v reflect.Value) {
	if n.kind == kindNull {
		return
	}
	switch {
	case v.Type() == timeType:
		d.time(n, v)
		return
	case v.Type() == intOrStringType:
		d.intOrString(n, v)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		d.pointer(n, v)
	case reflect.Struct:
		d.structure(n, v)
	case reflect.Slice:
		d.slice(n, v)
	case reflect.Map:
		d.mapping(n, v)
	case reflect.String:
		if text, ok := d.text(n); ok {
			v.SetString(text)
		}
	case reflect.Bool:
		d.bool(n, v)
	case reflect.Int32, reflect.Int64:
		d.integer(n, v)
	default:
		panic("manifest: no rule for a field of type " + v.Type().String())
	}
}

// pointer sets a pointer. Pointers to equal small values are shared, as decoded objects are never changed.
func (d *decoding) pointer(n *node, v reflect.Value) {
	switch v.Interface().(type) {
	case *bool:
		var is bool
		d.bool(n, reflect.ValueOf(&is).Elem())
		v.Set(reflect.ValueOf(bools[is]))
	case *string:
		text, ok := d.text(n)
		if !ok || text == "" || len(text) > longestShared || d.secrets {
			v.Set(reflect.ValueOf(new(text)))
			return
		}
		last := &d.last.pointers[placeOf(text, len(d.last.pointers))]
		if *last == nil || **last != text {
			*last = new(text)
		}
		v.Set(reflect.ValueOf(*last))
	default:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem())
	}
}

// bools has one pointer to each bool. All decoded objects share these pointers.
var bools = map[bool]*bool{false: new(bool), true: func() *bool { is := true; return &is }()}

func (d *decoding) structure(n *node, v reflect.Value) {
	if n.kind != kindMap {
		d.wrongType(n, "a mapping")
		return
	}
	plan := structures().plans[v.Type()]
	for _, f := range n.fields {
		d.path.pushKey(f.key)
		if index, ok := plan.fields[f.key]; ok {
			d.value(f.value, v.FieldByIndex(index))
		} else {
			d.unknown(f, plan, v.Type().Name())
		}
		d.path.pop()
	}
}

// ignoredFields are fields of Kubernetes objects that are accepted and dropped. There is a warning for a field that affected the routing of packets
// in an old version of Kubernetes.
var ignoredFields = map[string]struct{ warn bool }{
	"metadata.managedFields":              {},
	"metadata.selfLink":                   {}, // not filled since 1.20
	"metadata.clusterName":                {}, // removed in 1.24
	"metadata.deletionGracePeriodSeconds": {},
	"spec.topologyKeys":                   {warn: true}, // alpha in 1.17, removed in 1.22
	"spec.ipFamily":                       {warn: true}, // alpha in 1.16, removed in 1.20
}

func (d *decoding) unknown(f field, plan *plan, structure string) {
	name := d.path.String()
	at := &node{line: f.line, column: f.column}
	if ignored, ok := ignoredFields[name]; ok {
		if ignored.warn {
			d.warning(at, ReasonIgnoredField, "Kubernetes no longer has this field, and it has no effect here; remove it")
		}
		return
	}
	message := "unknown field " + strconv.Quote(name) + object.Experimental(structure, f.key)
	near := Nearest(f.key, slices.Values(plan.names))
	if near != "" {
		message += fmt.Sprintf("; did you mean %q?", near)
	}
	if d.partly && d.path[0].key != "metadata" {
		// It is one of the many that mean nothing here, unless it looks like one that does.
		if near != "" && !d.doubted {
			d.doubted = true
			d.warning(at, ReasonUnknownField, message)
		}
		return
	}
	d.problem(at, ReasonUnknownField, message)
}

func (d *decoding) slice(n *node, v reflect.Value) {
	if n.kind != kindList {
		d.wrongType(n, "a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
	for i, child := range n.items {
		d.path.pushIndex(i)
		d.value(child, v.Index(i))
		d.path.pop()
	}
}

// secret reports whether messages must not show the value at the current path.
func (d *decoding) secret() bool {
	return d.secrets && len(d.path) > 0 && (d.path[0].key == "data" || d.path[0].key == "stringData")
}

// longestShared is the maximum length of a string that is interned, in bytes: the maximum length of an object's name.
const longestShared = 253

// placeOf returns a hash of a string's length and three of its bytes, as an index from 0 to places-1. The string must not be empty.
func placeOf(text string, places int) int {
	return (len(text) + 7*int(text[0]) + 31*int(text[len(text)-1]) + 131*int(text[len(text)/2])) % places
}

// shared returns a copy of a string, interned if it is frequent or was among the last ones decoded.
func (d *decoding) shared(text string) string {
	if s, ok := frequent()[text]; ok || text == "" {
		return s
	} else if len(text) > longestShared || d.secrets {
		return strings.Clone(text)
	}
	last := &d.last.texts[placeOf(text, len(d.last.texts))]
	if *last != text {
		*last = strings.Clone(text)
	}
	return *last
}

// text returns the string of a node, or reports a problem if the node is no string. The result is a copy, since the
// memory of the document is used again, except for values of a Secret, which are converted to bytes.
func (d *decoding) text(n *node) (string, bool) {
	if d.secret() {
		if n.kind != kindString {
			d.problem(n, ReasonWrongType, "expected a text; quote the value")
		}
		return n.text, n.kind == kindString
	}
	switch n.kind {
	case kindString:
		if n.oldBool {
			d.warning(n, ReasonAmbiguous, fmt.Sprintf("kubectl reads the unquoted %s as a bool; write %q", n.text, n.text))
		}
		return d.shared(n.text), true
	case kindBool, kindInt, kindFloat:
		d.problem(n, ReasonWrongType, fmt.Sprintf("expected a text, got %s; quote it: %q", n.what(), n.text))
	default:
		d.wrongType(n, "a text")
	}
	return "", false
}

func (d *decoding) bool(n *node, v reflect.Value) {
	switch {
	case n.kind == kindBool:
		v.SetBool(strings.EqualFold(n.text, "true"))
	case n.oldBool:
		value, _ := oldBoolValue(n.text)
		v.SetBool(value)
		d.warning(n, ReasonAmbiguous, fmt.Sprintf("the unquoted %s is read as %t, as kubectl does; write %t", n.text, value, value))
	default:
		d.wrongType(n, "true or false")
	}
}

func (d *decoding) integer(n *node, v reflect.Value) {
	value, ok := d.wholeNumber(n)
	if !ok {
		return
	}
	if v.OverflowInt(value) {
		d.problem(n, ReasonWrongType, fmt.Sprintf("%s does not fit in %d bits", n.text, v.Type().Bits()))
		return
	}
	v.SetInt(value)
}

// wholeNumber returns the value of an int, or of a float without a fraction, which is an integer to kubectl too (1e3 is 1000).
func (d *decoding) wholeNumber(n *node) (int64, bool) {
	if n.kind == kindInt || n.kind == kindFloat {
		switch value, _, isWhole, err := parseNumber(n.text); {
		case err != nil:
			d.problem(n, ReasonWrongType, err.Error())
			return 0, false
		case isWhole:
			return value, true
		}
	}
	d.wrongType(n, "a whole number")
	return 0, false
}

func (d *decoding) intOrString(n *node, v reflect.Value) {
	switch n.kind {
	case kindString:
		if text, ok := d.text(n); ok {
			v.Set(reflect.ValueOf(object.FromString(text)))
		}
	case kindInt, kindFloat:
		d.integer(n, v.FieldByName("Int"))
	default:
		d.wrongType(n, "a number or a name")
	}
}

func (d *decoding) time(n *node, v reflect.Value) {
	if n.kind == kindString {
		if t, err := time.Parse(time.RFC3339, n.text); err == nil {
			v.Set(reflect.ValueOf(t))
			return
		}
	}
	d.wrongType(n, `a time as in "2006-01-02T15:04:05Z" (RFC 3339)`)
}

// addFlaws adds the problems that the parser found. They can be added only after the object is identified.
func (d *decoding) addFlaws(flaws []flaw) {
	for _, f := range flaws {
		d.report(Problem{File: d.file, Line: f.line, Column: f.column, Object: d.ref, Field: f.path.String(),
			Reason: f.reason, Message: f.message, Warning: f.warning})
	}
}

func (d *decoding) wrongType(n *node, want string) {
	if d.secret() {
		d.problem(n, ReasonWrongType, "expected "+want)
		return
	}
	d.problem(n, ReasonWrongType, fmt.Sprintf("expected %s, got %s", want, n.what()))
}

// fieldProblem adds a problem about a field, which may be absent from the document.
func (d *decoding) fieldProblem(root *node, field, reason, message string) {
	below, column := layoutOf(root).find(field)
	d.report(Problem{File: d.file, Line: root.line + below, Column: column, Object: d.ref, Field: field, Reason: reason, Message: message})
}

func (d *decoding) problem(n *node, reason, message string) {
	d.report(Problem{File: d.file, Line: n.line, Column: n.column, Object: d.ref, Field: d.path.String(), Reason: reason, Message: message})
}

func (d *decoding) warning(n *node, reason, message string) {
	d.report(Problem{File: d.file, Line: n.line, Column: n.column, Object: d.ref, Field: d.path.String(), Reason: reason, Message: message, Warning: true})
}

func (d *decoding) report(p Problem) {
	p.Object.Kind, p.Object.Namespace, p.Object.Name = strings.Clone(p.Object.Kind), strings.Clone(p.Object.Namespace), strings.Clone(p.Object.Name)
	d.failed = d.failed || !p.Warning
	if len(d.problems) < maxProblems {
		d.problems = append(d.problems, p)
		return
	}
	if !d.dropped {
		d.dropped = true
		d.problems = append(d.problems, Problem{File: p.File, Line: p.Line, Object: p.Object, Reason: p.Reason,
			Message: fmt.Sprintf("more than %d problems; the rest is not shown", maxProblems), Warning: p.Warning})
	}
	last := &d.problems[len(d.problems)-1]
	last.Warning = last.Warning && p.Warning
}

// A plan maps the names in documents to the fields of one struct.
type plan struct {
	fields map[string][]int
	names  []string
}

// structures returns the plan of every struct of the served kinds, the names of all fields in them, sorted, and the index of each name.
var structures = sync.OnceValue(func() (all struct {
	plans  map[reflect.Type]*plan
	names  []string
	places map[string]int
}) {
	all.plans, all.places = map[reflect.Type]*plan{}, map[string]int{}
	for _, s := range servedKinds() {
		planOf(reflect.TypeOf(s.New()), all.plans)
	}
	for _, p := range all.plans {
		all.names = append(all.names, p.names...)
	}
	slices.Sort(all.names)
	all.names = slices.Compact(all.names)
	for i, name := range all.names {
		all.places[name] = i
	}
	return all
})

func planOf(t reflect.Type, plans map[reflect.Type]*plan) {
	switch {
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice:
		planOf(t.Elem(), plans)
		return
	case t.Kind() != reflect.Struct || t == timeType || t == intOrStringType || plans[t] != nil:
		return
	}
	p := &plan{fields: map[string][]int{}}
	plans[t] = p
	for _, f := range reflect.VisibleFields(t) {
		// A file does not set managedFields: see ignoredFields.
		if f.Anonymous || f.Type == reflect.TypeFor[[]object.ManagedFieldsEntry]() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		p.fields[name] = f.Index
		p.names = append(p.names, name)
		planOf(f.Type, plans)
	}
	slices.Sort(p.names)
}

// Nearest returns the name that is most similar to a misspelled word, or "" if none is similar.
func Nearest(word string, names iter.Seq[string]) string {
	const most = 2 // edits that still look like a slip
	best, distance := "", most+1
	for name := range names {
		d := EditDistance(strings.ToLower(word), strings.ToLower(name), most)
		if d <= max(1, len(name)/2) && (d < distance || d == distance && d <= most && name < best) {
			best, distance = name, d
		}
	}
	return best
}

// EditDistance returns the number of edits that turn one name into another (optimal string alignment): inserting, deleting or replacing a letter, or
// swapping two adjacent letters. If more than the given number of edits (most) are needed, it returns some number greater than most.
func EditDistance(a, b string, most int) int {
	if len(a)-len(b) > most || len(b)-len(a) > most {
		return most + 1
	}
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, above, row = above, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := above[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, row[j-1]+1, above[j]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}

// mapping decodes a mapping into a map[string]string, or one of base64 strings (RFC 4648 section 4) into a map[string][]byte.
func (d *decoding) mapping(n *node, v reflect.Value) {
	if n.kind != kindMap {
		d.wrongType(n, "a mapping")
		return
	}
	if v.Type().Elem().Kind() == reflect.Slice {
		m := make(map[string][]byte, len(n.fields))
		d.entries(n, func(key, text string, at *node) {
			value, err := base64.StdEncoding.DecodeString(text) // line breaks are skipped, as encoding/json does
			if err != nil {
				d.problem(at, ReasonWrongType, "not base64; encode the value, or write it as it is under stringData")
			}
			m[key] = value
		})
		v.Set(reflect.ValueOf(m))
		return
	}
	for _, known := range d.texts {
		if saysSame(n, known) && !d.secrets {
			v.Set(reflect.ValueOf(known)) // a map takes 336 bytes, and this one never changes
			return
		}
	}
	m := make(map[string]string, len(n.fields))
	d.entries(n, func(key, text string, _ *node) { m[key] = text })
	d.texts[0], d.texts[1] = m, d.texts[0]
	v.Set(reflect.ValueOf(m))
}

// entries calls each for the entries of a mapping of strings; null is "".
func (d *decoding) entries(n *node, each func(key, text string, at *node)) {
	for _, f := range n.fields {
		d.path.pushKey(f.key)
		text, ok := "", f.value.kind == kindNull
		if !ok {
			text, ok = d.text(f.value)
		}
		if ok {
			each(d.shared(f.key), text, f.value)
		}
		d.path.pop()
	}
}

// saysSame reports whether a node would decode without problems to exactly the map m. It returns false for an empty map.
func saysSame(n *node, m map[string]string) bool {
	if len(m) == 0 || len(n.fields) != len(m) {
		return false
	}
	for _, f := range n.fields {
		if text, has := m[f.key]; !has || f.value.kind != kindString || f.value.oldBool || text != f.value.text {
			return false
		}
	}
	return true
}
