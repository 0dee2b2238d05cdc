package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"svcctl.io/svcctl/store/object"
)

// indent is the number of spaces that kubectl indents with.
const indent = 2

// EncodeYAML writes an object as a YAML document: apiVersion, kind and metadata first,
// the rest in the order of Kubernetes' types. It ends with a newline and has no ---
// line. Text that a YAML 1.1 reader would take for a bool, a number or a date is quoted.
func EncodeYAML(o object.Object) ([]byte, error) {
	members, err := membersOf(o)
	if err != nil {
		return nil, err
	}
	root := &yaml.Node{Kind: yaml.MappingNode}
	for _, m := range members {
		docs, err := parseJSON(m.raw, 1, DefaultLimits())
		if err != nil {
			return nil, fmt.Errorf("encode %s as YAML: %w", refOf(o), err)
		}
		root.Content = append(root.Content, textNode(m.key), yamlNode(docs[0].root))
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(indent)
	if err := e.Encode(root); err != nil {
		return nil, fmt.Errorf("encode %s as YAML: %w", refOf(o), err)
	}
	if err := e.Close(); err != nil {
		return nil, fmt.Errorf("encode %s as YAML: %w", refOf(o), err)
	}
	return b.Bytes(), nil
}

// A member is a top-level field of an object, its value in JSON.
type member struct {
	key string
	raw []byte
}

// membersOf is an object's fields in the order of printing.
func membersOf(o object.Object) ([]member, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(o); err != nil {
		return nil, fmt.Errorf("encode %s: %w", refOf(o), err)
	}
	var members []member
	s := &jsonScanner{text: b.Bytes(), line: 1, stop: b.Len(), limits: DefaultLimits()}
	if err := s.members(func(key []byte, _, _ int) *refusal {
		start := s.at
		err := s.skip(1)
		members = append(members, member{unquote(key), s.text[start:s.at]})
		return err
	}); err != nil {
		return nil, fmt.Errorf("encode %s: %w", refOf(o), err)
	}
	first := []string{"apiVersion", "kind", "metadata"}
	rank := func(m member) int {
		if i := slices.Index(first, m.key); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortStableFunc(members, func(a, b member) int { return rank(a) - rank(b) })
	return members, nil
}

// yamlNode is a node as the YAML encoder takes it.
func yamlNode(n *node) *yaml.Node {
	switch n.kind {
	case kindMap:
		out := &yaml.Node{Kind: yaml.MappingNode}
		for _, f := range n.fields {
			out.Content = append(out.Content, textNode(f.key), yamlNode(f.value))
		}
		return out
	case kindList:
		out := &yaml.Node{Kind: yaml.SequenceNode}
		for _, child := range n.items {
			out.Content = append(out.Content, yamlNode(child))
		}
		return out
	case kindString:
		return textNode(n.text)
	default:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: n.text}
	}
}

// textNode is text. The encoder quotes what YAML 1.2 reads as something else; what only
// YAML 1.1 does is quoted here.
func textNode(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	if _, ok := oldBoolValue(text); ok || text == mergeKey || isSexagesimal(text) {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

// mergeKey is a key with a meaning of its own when it is not quoted.
const mergeKey = "<<"

// isSexagesimal tells what YAML 1.1 may read as a number to the base of 60: 12:30:45.
func isSexagesimal(text string) bool {
	return strings.Contains(text, ":") && strings.Trim(text, "+-0123456789_:.") == ""
}
