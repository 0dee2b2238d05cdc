package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// A Tree is a document of any kind, parsed but not validated.
type Tree struct {
	// Line is the first line of the object, from 1.
	Line int

	file   string
	root   *node // valid until the next tree is read
	as     implied
	flaws  []flaw
	shift  int // added to the lines of nodes and flaws
	layout layout
}

// Trees calls f for each document of a file, and for each item of a List, in the order of the text.
// It holds one document at a time in memory, so after f returns only Line and Position of a Tree may
// be used. It ends at the first error of f, or with a Problem for a text that cannot be parsed.
func Trees(path string, data []byte, limits Limits, f func(*Tree) error) error {
	r := &reading{path: path, limits: limits.orDefaults(), apart: true, workspace: new(workspace)}
	refused := func(err *refusal) error {
		return Problem{File: path, Line: err.line, Column: err.column, Reason: err.reason, Message: err.message}
	}
	if err := r.read(data); err != nil {
		return refused(err)
	}
	for _, p := range r.pieces {
		docs, err := r.parse(p.text, p.column, p.isJSON)
		if err != nil {
			err.line += p.line - 1
			return refused(err)
		}
		for _, doc := range docs {
			t := &Tree{file: path, root: doc.root, as: p.as, flaws: doc.flaws, shift: p.line - 1, Line: doc.root.line + p.line - 1}
			if err := t.each(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// A piece is the text of a unit that is not decoded yet.
type piece struct {
	text         []byte
	line, column int
	isJSON       bool
	as           implied
}

// each calls f for the tree, or for each item if it is a List. It ignores an empty
// document.
func (t *Tree) each(f func(*Tree) error) error {
	if t.root.kind == kindNull {
		return nil
	}
	items := t.root.get("items")
	kind, isList := strings.CutSuffix(textOf(t.root, "kind"), "List")
	switch {
	case isList && kind == "" && (items == nil || items.kind == kindNull):
		return nil // a List of nothing
	case isList && kind == "" && items.kind != kindList:
		return Problem{File: t.file, Line: items.line + t.shift, Column: items.column, Field: "items",
			Reason: ReasonWrongType, Message: "expected a list, got " + items.what()}
	case !isList || items == nil || items.kind != kindList:
		t.layout = layoutOf(t.root)
		return f(t)
	}
	as := implied{kind, textOf(t.root, "apiVersion")}
	if kind == "" {
		as = implied{}
	}
	for i, item := range items.items {
		one := &Tree{file: t.file, root: item, as: as, shift: t.shift, Line: item.line + t.shift}
		for _, flaw := range t.flaws {
			if flaw.line >= item.line && (i+1 == len(items.items) || flaw.line < items.items[i+1].line) {
				one.flaws = append(one.flaws, flaw)
			}
		}
		if err := one.each(f); err != nil {
			return err
		}
	}
	return nil
}

// Position returns the line and column of a field, from 1, or of its nearest ancestor that is in the text. Paths have the same form as for
// Document.Position.
func (t *Tree) Position(field string) (line, column int) {
	below, column := t.layout.find(field)
	return t.Line + below, column
}

// Object returns the document as the JSON object that kubectl would send, and its problems. The object is nil if any problem is an error, not a
// warning. booleans are paths of fields ("spec.publishNotReadyAddresses") in which an unquoted yes, no, on or off is a bool; elsewhere it is a
// string.
func (t *Tree) Object(booleans map[string]bool) (map[string]any, []Problem) {
	r := &treeReader{tree: t, booleans: booleans, sent: true}
	for _, f := range t.flaws {
		r.report(f.line, f.column, f.path.String(), f.reason, f.message, f.warning)
	}
	if t.root.kind != kindMap {
		r.report(t.root.line, t.root.column, "", ReasonWrongType, "expected an object, got "+t.root.what(), false)
		return nil, r.problems
	}
	o := r.value(t.root).(map[string]any)
	if r.failed {
		return nil, r.problems
	}
	// What the List around the document has for all of its items.
	for key, value := range map[string]string{"apiVersion": t.as.apiVersion, "kind": t.as.kind} {
		if value != "" && t.root.get(key) == nil {
			o[key] = value
		}
	}
	return o, r.problems
}

// treeReader converts the nodes of one tree to the Go types of JSON values.
type treeReader struct {
	tree     *Tree
	booleans map[string]bool
	sent     bool     // the result is the JSON that kubectl sends for the text: see Object
	literal  bool     // the text is JSON, whose numbers are kept as written
	path     []string // path of the current field, without list indexes
	problems []Problem
	failed   bool
}

func (r *treeReader) report(line, column int, field, reason, message string, warning bool) {
	r.failed = r.failed || !warning
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, Problem{File: r.tree.file, Line: line + r.tree.shift, Column: column, Field: field,
			Reason: reason, Message: message, Warning: warning})
	}
}

// value converts a node to map[string]any, []any, string, json.Number, bool or nil.
func (r *treeReader) value(n *node) any {
	switch n.kind {
	case kindMap:
		o := make(map[string]any, len(n.fields))
		for _, f := range n.fields {
			r.path = append(r.path, f.key)
			o[f.key] = r.value(f.value)
			r.path = r.path[:len(r.path)-1]
		}
		return o
	case kindList:
		items := make([]any, len(n.items))
		for i, item := range n.items {
			items[i] = r.value(item)
		}
		return items
	case kindString:
		if n.oldBool && r.sent {
			return r.oldBool(n)
		}
		return n.text
	case kindBool:
		return strings.EqualFold(n.text, "true")
	case kindInt, kindFloat:
		// JSON has fewer ways to write a number, and the API server takes no 80.0 for a whole one.
		if r.literal || r.sent && n.kind == kindInt && json.Valid([]byte(n.text)) {
			return json.Number(n.text)
		}
		number, err := jsonNumber(n.text)
		if err != nil {
			r.report(n.line, n.column, strings.Join(r.path, "."), ReasonWrongType, err.Error(), false)
		}
		return number
	}
	return nil
}

// oldBool converts an unquoted yes, no, on or off, and adds a warning about how kubectl reads it, except in a Secret.
func (r *treeReader) oldBool(n *node) any {
	var result any = n.text
	field := strings.Join(r.path, ".")
	message := fmt.Sprintf("kubectl reads the unquoted %s as a bool; write %q", n.text, n.text)
	if r.booleans[field] {
		value, _ := oldBoolValue(n.text)
		result, message = value, fmt.Sprintf("the unquoted %s is read as %t, as kubectl does; write %t", n.text, value, value)
	}
	if textOf(r.tree.root, "kind") != object.KindSecret {
		r.report(n.line, n.column, field, ReasonAmbiguous, message, true)
	}
	return result
}

// A path leads from an object to one of its fields.
type path []step

// A step is one element of a path: a key of a mapping or an index of a list.
type step struct {
	key   string
	isKey bool
	index int
}

func (p *path) pushKey(key string) { *p = append(*p, step{key: key, isKey: true}) }
func (p *path) pushIndex(i int)    { *p = append(*p, step{index: i}) }
func (p *path) pop()               { *p = (*p)[:len(*p)-1] }

// String formats the path as Kubernetes does: fields after dots, indexes and the keys of free
// mappings in brackets.
func (p path) String() string { return p.text(path.isFreeMapping) }

func (p path) text(isFree func(path) bool) string {
	var b strings.Builder
	for i, s := range p {
		switch {
		case !s.isKey:
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		case isFree(p[:i]):
			b.WriteString("[" + s.key + "]")
		default:
			if i > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s.key)
		}
	}
	return b.String()
}

// isFreeMapping reports whether the keys of a field are chosen by the author of the object, as
// those of labels, rather than names of fields.
func (p path) isFreeMapping() bool {
	if len(p) == 0 {
		return false
	}
	switch p[len(p)-1].key {
	case "selector":
		return len(p) < 2 || p[len(p)-2].key != "namespaces"
	case "labels", "annotations", "deprecatedTopology", "matchLabels", "data", "stringData", "options":
		return true
	}
	return false
}

// cutStep takes the first step off a path in text, "ports[0].port" into "ports" and
// "[0].port".
func cutStep(field string) (first, rest string) {
	field = strings.TrimPrefix(field, ".")
	if strings.HasPrefix(field, "[") {
		if end := strings.IndexByte(field, ']'); end > 0 {
			return field[1:end], field[end+1:]
		}
		return field[1:], ""
	}
	if end := strings.IndexAny(field, ".["); end >= 0 {
		return field[:end], field[end:]
	}
	return field, ""
}

// A Value is the content of one document of any kind, in the Go types of JSON values.
type Value struct {
	// Data is made of map[string]any, []any, string, bool, json.Number and nil.
	Data any
	// Line is the first line of the document, from 1.
	Line int
	// Duplicates lists the paths of fields that occur more than once, such as "spec.type". The last occurrence counts, as for kubectl.
	Duplicates []string

	layout layout // only of PlacedValues
}

// Position returns the line and column of a field of a Value of PlacedValues, as Tree.Position does.
func (v *Value) Position(field string) (line, column int) {
	below, column := v.layout.find(field)
	return v.Line + below, column
}

// Values decodes all documents of a text in YAML or JSON, for callers that need plain values and not objects. It interprets YAML and applies limits
// like Decode.
func Values(text []byte, limits Limits) ([]Value, *Problem) {
	return values(text, limits, false)
}

// PlacedValues is Values for callers that ask for positions of fields, which cost some time.
func PlacedValues(text []byte, limits Limits) ([]Value, *Problem) {
	return values(text, limits, true)
}

func values(text []byte, limits Limits, placed bool) (list []Value, problem *Problem) {
	limits = limits.orDefaults()
	text, err := checkText(text)
	if err == nil && len(text) > limits.Bytes {
		err = refuse(0, 0, ReasonLimit, "the text has %d bytes, more than the limit of %d; split it", len(text), limits.Bytes)
	}
	var docs []parsed
	if err == nil {
		docs, err = (&reading{limits: limits, workspace: new(workspace)}).parseYAML(text)
	}
	for i := 0; i < len(docs) && err == nil; i++ {
		var value Value
		if value, err = valueOf(docs[i]); value.Data == nil {
			continue
		}
		if placed {
			value.layout = layoutOf(docs[i].root)
		}
		list = append(list, value)
	}
	if err != nil {
		return nil, &Problem{Line: err.line, Column: err.column, Reason: err.reason, Message: err.message}
	}
	return list, nil
}

func valueOf(doc parsed) (Value, *refusal) {
	value := Value{Line: doc.root.line}
	for _, f := range doc.flaws {
		switch {
		case f.reason == ReasonDuplicateKey:
			value.Duplicates = append(value.Duplicates, f.path.String())
		case !f.warning:
			return value, &refusal{line: f.line, column: f.column, reason: f.reason, message: f.message}
		}
	}
	r := &treeReader{tree: new(Tree)}
	value.Data = r.value(doc.root)
	if r.failed {
		p := r.problems[0]
		return value, &refusal{line: p.Line, column: p.Column, reason: p.Reason, message: p.Message}
	}
	return value, nil
}

// jsonNumber returns a YAML number in JSON notation, integers without fraction or exponent:
// 0x10 is 16, 1_000 and 1e3 are 1000.
func jsonNumber(text string) (json.Number, error) {
	switch whole, float, isWhole, err := parseNumber(text); {
	case err != nil:
		return "", err
	case isWhole:
		return json.Number(strconv.FormatInt(whole, 10)), nil
	case math.IsNaN(float) || math.IsInf(float, 0):
		return "", fmt.Errorf("%s is no number in JSON", text)
	default:
		return json.Number(strconv.FormatFloat(float, 'g', -1, 64)), nil
	}
}

// parseNumber parses a YAML number. isWhole is set if it is an integer or a float without a fraction (kubectl also reads 1e3 as 1000), and whole is
// its value. Otherwise float is the value, NaN if the text is no number.
func parseNumber(text string) (whole int64, float float64, isWhole bool, err error) {
	plain := strings.TrimPrefix(strings.ReplaceAll(text, "_", ""), "+")
	if digits := strings.TrimLeft(plain, "-"); len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9' {
		return 0, 0, false, fmt.Errorf("the leading zero of %s makes it an octal number to some readers; write it without", text)
	}
	whole, err = strconv.ParseInt(plain, 0, 64)
	if err == nil {
		return whole, 0, true, nil
	}
	if errors.Is(err, strconv.ErrRange) {
		return 0, 0, false, fmt.Errorf("%s is too large", text)
	}
	if float, err = strconv.ParseFloat(plain, 64); err != nil {
		return 0, math.NaN(), false, nil
	}
	return int64(float), float, float == math.Trunc(float) && math.Abs(float) <= 1<<53, nil
}

// JSON decodes a text in UTF-8 that is one JSON value (RFC 8259). Of duplicate keys the last one
// counts, as in the API server of Kubernetes, and Duplicates lists their paths:
// "metadata.labels.app".
func JSON(text []byte, limits Limits) (Value, *Problem) {
	s := &jsonScanner{text: text, line: 1, last: true, limits: limits.orDefaults()}
	root, err := s.document()
	if err != nil {
		return Value{}, &Problem{Line: err.line, Column: err.column, Reason: err.reason, Message: err.message}
	}
	value := Value{Data: (&treeReader{tree: new(Tree), literal: true}).value(root), Line: 1}
	for _, f := range s.flaws[:min(len(s.flaws), maxProblems)] {
		value.Duplicates = append(value.Duplicates, f.path.text(func(path) bool { return false }))
	}
	return value, nil
}
