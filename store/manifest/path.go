package manifest

import (
	"strconv"
	"strings"
)

// A path is the way from an object to a field of it.
type path []step

// A step is a key of a mapping or an index of a list.
type step struct {
	key   string
	isKey bool
	index int
}

func (p *path) pushKey(key string) { *p = append(*p, step{key: key, isKey: true}) }
func (p *path) pushIndex(i int)    { *p = append(*p, step{index: i}) }
func (p *path) pop()               { *p = (*p)[:len(*p)-1] }

// String is the path as Kubernetes writes it: fields after dots, indexes and the keys
// of free mappings in brackets.
func (p path) String() string {
	var b strings.Builder
	for i, s := range p {
		switch {
		case !s.isKey:
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		case p[:i].isFreeMapping():
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

// dotted is the path as Kubernetes' decoders write it: all keys after dots.
func (p path) dotted() string {
	var b strings.Builder
	for i, s := range p {
		switch {
		case !s.isKey:
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		case i > 0:
			b.WriteString("." + s.key)
		default:
			b.WriteString(s.key)
		}
	}
	return b.String()
}

// isFreeMapping reports whether the keys of a field are the author's, as those of the maps in
// store/object. A selector of namespaces is a LabelSelector.
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
