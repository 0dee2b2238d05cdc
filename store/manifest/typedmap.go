package manifest

import (
	"encoding/base64"
	"reflect"
)

// textMap fills a map of texts.
func (d *decoding) textMap(n *node, v reflect.Value) {
	if n.kind != kindMap {
		d.wrongType(n, "a mapping")
		return
	}
	for _, known := range d.texts {
		if saysSame(n, known) && !d.secrets {
			v.Set(reflect.ValueOf(known)) // a map takes 336 bytes, and this one never changes
			return
		}
	}
	m := make(map[string]string, len(n.fields))
	for _, f := range n.fields {
		d.path.pushKey(f.key)
		if f.value.kind == kindNull {
			m[d.shared(f.key)] = ""
		} else if text, ok := d.text(f.value); ok {
			m[d.shared(f.key)] = text
		}
		d.path.pop()
	}
	d.texts[0], d.texts[1] = m, d.texts[0]
	v.Set(reflect.ValueOf(m))
}

// saysSame reports whether a node would become a map that is not empty, without a word about it.
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

// bytesMap fills a map of bytes, which JSON has in base64 (RFC 4648, 4).
func (d *decoding) bytesMap(n *node, v reflect.Value) {
	if n.kind != kindMap {
		d.wrongType(n, "a mapping")
		return
	}
	m := make(map[string][]byte, len(n.fields))
	for _, f := range n.fields {
		d.path.pushKey(f.key)
		if f.value.kind == kindNull {
			m[d.shared(f.key)] = []byte{}
		} else if text, ok := d.text(f.value); ok {
			// Line breaks are skipped, as encoding/json does.
			value, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				d.problem(f.value, ReasonWrongType, "not base64; encode the value, or write it as it is under stringData")
			}
			m[d.shared(f.key)] = value
		}
		d.path.pop()
	}
	v.Set(reflect.ValueOf(m))
}
