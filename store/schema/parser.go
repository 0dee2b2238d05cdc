package schema

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"svcctl.io/svcctl/store/kind"
)

// parser parses a text that is known to be one valid JSON value.
type parser struct {
	text       []byte
	at         int
	values     int
	path       []step
	duplicates []string
}

// step is one element of a path: a key or an index.
type step struct {
	key   string
	index int // -1: a key
}

// write appends a step to a path.
func (s step) write(b *strings.Builder) {
	if s.index >= 0 {
		b.WriteString("[" + strconv.Itoa(s.index) + "]")
	} else {
		b.WriteString("." + s.key)
	}
}

// next skips white space and separators, and returns the next byte.
func (p *parser) next() byte {
	for {
		switch c := p.text[p.at]; c {
		case ' ', '\t', '\r', '\n', ',', ':':
			p.at++
		default:
			return c
		}
	}
}

// value is the value that comes next.
func (p *parser) value(depth int) (any, error) {
	if p.values++; p.values > maxValues {
		return nil, fmt.Errorf("the body holds more than %d values: send less at once", maxValues)
	}
	switch p.next() {
	case '{', '[':
		if depth > MaxDepth {
			return nil, fmt.Errorf("the body is nested deeper than %d levels, at byte %d", MaxDepth, p.at)
		}
		if p.text[p.at] == '[' {
			return p.array(depth)
		}
		return p.object(depth)
	case '"':
		return p.string(), nil
	case 't':
		p.at += len("true")
		return true, nil
	case 'f':
		p.at += len("false")
		return false, nil
	case 'n':
		p.at += len("null")
		return nil, nil
	}
	from := p.at
	for p.at < len(p.text) && strings.IndexByte("+-.0123456789Ee", p.text[p.at]) >= 0 {
		p.at++
	}
	return json.Number(p.text[from:p.at]), nil
}

func (p *parser) array(depth int) (any, error) {
	items := []any{}
	p.at++
	p.path = append(p.path, step{})
	for p.next() != ']' {
		p.path[len(p.path)-1].index = len(items)
		item, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	p.path = p.path[:len(p.path)-1]
	p.at++
	return items, nil
}

func (p *parser) object(depth int) (any, error) {
	o := map[string]any{}
	p.at++
	p.path = append(p.path, step{index: -1})
	for p.next() != '}' {
		key, _ := p.string().(string)
		p.path[len(p.path)-1].key = key
		if _, twice := o[key]; twice && len(p.duplicates) < maxStrict {
			p.duplicates = append(p.duplicates, fmt.Sprintf("duplicate field %q", p.where()))
		}
		value, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		o[key] = value
	}
	p.path = p.path[:len(p.path)-1]
	p.at++
	return o, nil
}

// string parses a string.
func (p *parser) string() any {
	from := p.at
	escaped := false
	for p.at++; p.text[p.at] != '"'; p.at++ {
		if p.text[p.at] == '\\' {
			escaped = true
			p.at++
		}
	}
	p.at++
	if escaped {
		var text string
		_ = json.Unmarshal(p.text[from:p.at], &text) // it is valid
		return text
	}
	raw := p.text[from+1 : p.at-1]
	if word, ok := words()[string(raw)]; ok {
		return word
	}
	return string(raw)
}

// where returns the path of the value being parsed: spec.ports[1].port
func (p *parser) where() string {
	var b strings.Builder
	for _, s := range p.path {
		s.write(&b)
	}
	return strings.TrimPrefix(b.String(), ".")
}

// words interns strings that most bodies contain: kinds, versions and field names.
var words = sync.OnceValue(func() map[string]any {
	w := map[string]any{}
	for _, k := range kind.All() {
		w[k.Name], w[k.APIVersion()] = k.Name, k.APIVersion()
	}
	for _, t := range all().structures {
		for _, f := range t.Fields {
			w[f.Name] = f.Name
		}
	}
	return w
})
