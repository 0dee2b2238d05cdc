package manifest

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// A Tree is a document of any kind, as it is written: nothing in it is judged.
type Tree struct {
	// Line is the first line of the object, from 1.
	Line int

	file   string
	root   *node // good until the next tree is read
	as     implied
	flaws  []flaw
	shift  int // added to the lines of nodes and flaws
	layout layout
}

// Trees calls f for each document of a file, the items of Lists one by one, in the order
// of the text; what is in memory is the text and one document. Of a Tree that f keeps only
// Line and Position may be used. An error of f ends it, and so does a text that cannot be
// taken apart, with a Problem.
func Trees(path string, data []byte, limits Limits, f func(*Tree) error) error {
	r := &reading{path: path, limits: limits.orDefaults(), apart: true, workspace: new(workspace)}
	refused := func(err *refusal) error {
		return Problem{File: path, Line: err.line, Column: err.column, Reason: err.reason, Message: err.message}
	}
	if err := r.read(data); err != nil {
		return refused(err)
	}
	for _, p := range r.pieces {
		docs, err := p.parse(p.text, p.column)
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

// A piece is the text of a unit that is not read yet.
type piece struct {
	text         []byte
	line, column int
	parse        parser
	as           implied
}

// each calls f for the tree, or for the items of the List that it is. An empty document
// is none.
func (t *Tree) each(f func(*Tree) error) error {
	if t.root.kind == kindNull {
		return nil
	}
	items := t.root.get("items")
	kind, isList := strings.CutSuffix(t.text("kind"), "List")
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
	as := implied{kind, t.text("apiVersion")}
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

// text is the text of a field of the object.
func (t *Tree) text(key string) string {
	if n := t.root.get(key); n != nil && n.kind == kindString {
		return n.text
	}
	return ""
}

// Position is the line and column of a field, from 1, or those of its nearest ancestor
// that the text has. Paths are Kubernetes', as Document.Position has them.
func (t *Tree) Position(field string) (line, column int) {
	below, column := t.layout.find(field)
	return t.Line + below, column
}

// JSON writes the document as kubectl would send it. An unquoted yes, no, on or off is a
// bool where boolean says that the field (its names, from the top) wants one, and text
// elsewhere. The problems are errors, for which there is no JSON, and warnings.
func (t *Tree) JSON(boolean func(field []string) bool) ([]byte, []Problem) {
	w := &treeWriter{tree: t, boolean: boolean}
	for _, f := range t.flaws {
		w.report(f.line, f.column, f.path.String(), f.reason, f.message, f.warning)
	}
	if t.root.kind != kindMap {
		w.report(t.root.line, t.root.column, "", ReasonWrongType, "expected an object, got "+t.root.what(), false)
		return nil, w.problems
	}
	w.object(t.root, t.missing())
	if w.failed {
		return nil, w.problems
	}
	return w.out, w.problems
}

// missing are the fields that the List around the document says for it.
func (t *Tree) missing() []field {
	var fields []field
	add := func(key, value string) {
		if value != "" && t.root.get(key) == nil {
			fields = append(fields, field{key: key, value: &node{kind: kindString, text: value}})
		}
	}
	add("apiVersion", t.as.apiVersion)
	add("kind", t.as.kind)
	return fields
}

// treeWriter writes one tree as JSON.
type treeWriter struct {
	tree     *Tree
	boolean  func(field []string) bool
	out      []byte
	path     []string // without the indexes of lists
	problems []Problem
	failed   bool
}

func (w *treeWriter) report(line, column int, field, reason, message string, warning bool) {
	w.failed = w.failed || !warning
	if len(w.problems) < maxProblems {
		w.problems = append(w.problems, Problem{File: w.tree.file, Line: line + w.tree.shift, Column: column, Field: field,
			Reason: reason, Message: message, Warning: warning})
	}
}

func (w *treeWriter) value(n *node) {
	switch n.kind {
	case kindNull:
		w.out = append(w.out, "null"...)
	case kindBool:
		w.out = strconv.AppendBool(w.out, strings.EqualFold(n.text, "true"))
	case kindInt, kindFloat:
		w.number(n)
	case kindString:
		if n.oldBool {
			w.oldBool(n)
			return
		}
		w.text(n.text)
	case kindMap:
		w.object(n, nil)
	case kindList:
		w.out = append(w.out, '[')
		for i, item := range n.items {
			if i > 0 {
				w.out = append(w.out, ',')
			}
			w.value(item)
		}
		w.out = append(w.out, ']')
	}
}

// oldBool writes an unquoted yes, no, on or off, and tells how kubectl reads it, but not of a Secret.
func (w *treeWriter) oldBool(n *node) {
	value, _ := oldBoolValue(n.text)
	message := fmt.Sprintf("kubectl reads the unquoted %s as a bool; write %q", n.text, n.text)
	if w.boolean(w.path) {
		w.out = strconv.AppendBool(w.out, value)
		message = fmt.Sprintf("the unquoted %s is read as %t, as kubectl does; write %t", n.text, value, value)
	} else {
		w.text(n.text)
	}
	if w.tree.text("kind") != object.KindSecret {
		w.report(n.line, n.column, strings.Join(w.path, "."), ReasonAmbiguous, message, true)
	}
}

func (w *treeWriter) object(n *node, first []field) {
	w.out = append(w.out, '{')
	for i, fields := 0, append(first, n.fields...); i < len(fields); i++ {
		if i > 0 {
			w.out = append(w.out, ',')
		}
		w.text(fields[i].key)
		w.out = append(w.out, ':')
		w.path = append(w.path, fields[i].key)
		w.value(fields[i].value)
		w.path = w.path[:len(w.path)-1]
	}
	w.out = append(w.out, '}')
}

func (w *treeWriter) text(s string) {
	body, err := json.Marshal(s)
	if err != nil {
		panic("manifest: encode a text: " + err.Error()) // texts are UTF-8, see checkText
	}
	w.out = append(w.out, body...)
}

// number writes what YAML calls a number: JSON has fewer ways to write one, and the API server takes no
// 80.0 for a whole one.
func (w *treeWriter) number(n *node) {
	if n.kind == kindInt && json.Valid([]byte(n.text)) {
		w.out = append(w.out, n.text...)
		return
	}
	number, err := jsonNumber(n.text)
	if err != nil {
		w.report(n.line, n.column, strings.Join(w.path, "."), ReasonWrongType, err.Error(), false)
		return
	}
	w.out = append(w.out, number...)
}
