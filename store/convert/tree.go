package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"svcctl.io/svcctl/store/manifest"
)

// A value is a piece of a document in YAML or JSON, with its place. The zero value is absent.
type value struct {
	tree *manifest.Tree
	path string
	data any // map[string]any, []any, string, json.Number, bool or nil
}

// lenient reads all documents of a text, JSON of programs that do not mind a key that is there twice: the first one
// counts, and twice is called with the path of each. The extension of name is that of the form, .yaml or .json.
func lenient(name, text string, twice func(line int, path string)) (list []value, err error) {
	values, problem := manifest.Values([]byte(text), manifest.DefaultLimits())
	if problem != nil {
		return nil, &Error{Line: max(problem.Line, 1), Text: problem.Message}
	}
	err = manifest.Trees(name, []byte(text), manifest.DefaultLimits(), func(t *manifest.Tree) error {
		if len(list) == len(values) {
			return &Error{Line: t.Line, Text: "more documents than values"} // a List, which is none of ours
		}
		v := values[len(list)]
		list = append(list, value{tree: t, data: v.Data})
		for _, path := range v.Duplicates {
			line, _ := t.Position(path)
			twice(line, path)
		}
		return nil
	})
	if p, is := errors.AsType[manifest.Problem](err); is {
		return nil, &Error{Line: max(p.Line, 1), Text: p.Message}
	}
	return list, err
}

// line returns the line of the value; of an absent one that of its nearest ancestor.
func (v value) line() int {
	line, _ := v.tree.Position(v.path)
	return line
}

// get returns the value of a key.
func (v value) get(key string) value {
	path := key
	if v.path != "" {
		path = v.path + "." + key
	}
	m, _ := v.data.(map[string]any)
	return value{v.tree, path, m[key]}
}

// keys returns the keys of a mapping, sorted.
func (v value) keys() (keys []string) {
	m, _ := v.data.(map[string]any)
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// items returns the items of a list.
func (v value) items() (list []value) {
	all, _ := v.data.([]any)
	for i, item := range all {
		list = append(list, value{v.tree, fmt.Sprintf("%s[%d]", v.path, i), item})
	}
	return list
}

// is reports whether there is something.
func (v value) is() bool { return v.data != nil }

// text is a text, number or bool as text; "" for all else.
func (v value) text() string {
	switch d := v.data.(type) {
	case string:
		return d
	case json.Number:
		return d.String()
	case bool:
		return strconv.FormatBool(d)
	}
	return ""
}

// short is the value in one line.
func (v value) short() string {
	if text := v.text(); text != "" {
		return text
	}
	form, err := json.Marshal(v.data)
	if err != nil {
		return "?"
	}
	const most = 120
	if len(form) > most {
		return string(form[:most]) + "..."
	}
	return string(form)
}
