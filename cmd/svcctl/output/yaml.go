package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"gopkg.in/yaml.v3"
)

// YAML writes an object as YAML as kubectl does: keys sorted, lists not further in
// than their key.
func YAML(o map[string]any) (string, error) {
	w := &yamlWriter{}
	if len(o) == 0 {
		return "{}\n", nil
	}
	w.block(o, "", false)
	if w.err != nil {
		return "", fmt.Errorf("encode as YAML: %w", w.err)
	}
	return w.String(), nil
}

// yamlWriter writes block style. How a text is to be quoted is the YAML library's to say.
type yamlWriter struct {
	strings.Builder
	err error
}

// block writes a mapping or a list that is not empty, every line after indent; of the
// first one that is there already when inline says so.
func (w *yamlWriter) block(v any, indent string, inline bool) {
	begin := func() {
		if !inline {
			w.WriteString(indent)
		}
		inline = false
	}
	if list, is := v.([]any); is {
		for _, item := range list {
			begin()
			w.WriteByte('-')
			if isBlock(item) {
				w.WriteByte(' ')
				w.block(item, indent+"  ", true)
			} else {
				w.scalar(item, indent)
			}
		}
		return
	}
	m := v.(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(m)) {
		begin()
		w.WriteString(w.key(key) + ":")
		switch value := m[key].(type) {
		case map[string]any:
			if len(value) > 0 {
				w.WriteByte('\n')
				w.block(value, indent+"  ", false)
				continue
			}
		case []any:
			if len(value) > 0 {
				w.WriteByte('\n')
				w.block(value, indent, false)
				continue
			}
		}
		w.scalar(m[key], indent)
	}
}

// isBlock tells what takes lines of its own.
func isBlock(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) > 0
	case []any:
		return len(v) > 0
	}
	return false
}

// scalar writes a value that is no block behind its key or dash.
func (w *yamlWriter) scalar(v any, indent string) {
	text := ""
	switch v := v.(type) {
	case map[string]any:
		text = "{}"
	case []any:
		text = "[]"
	case nil:
		text = "null"
	case string:
		text = w.text(v)
	case json.Number:
		text = v.String()
	default:
		text = fmt.Sprint(v)
	}
	lines := strings.SplitAfter(text, "\n") // of a text in block style, which are two further in
	for i, line := range lines {
		if i > 0 && line != "\n" {
			lines[i] = indent + line
		}
	}
	w.WriteString(" " + strings.Join(lines, "") + "\n")
}

// plainText matches scalars that are text in every version of YAML, except the words of plainWords.
var (
	plainText  = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./-]*$`)
	plainWords = regexp.MustCompile(`^(?i:true|false|yes|no|on|off|y|n|null)$`)
)

// text is a text, in quotes or as a block where it has to be.
func (w *yamlWriter) text(s string) string {
	if plainText.MatchString(s) && !plainWords.MatchString(s) {
		return s
	}
	if delicate(s) {
		return w.quoted(s)
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(s); err != nil {
		w.err = err
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// delicate tells which texts the library writes so that some reader, itself among them,
// reads another one: those with control characters or separators of lines, and blocks that
// begin with white space.
func delicate(s string) bool {
	odd := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
	return strings.ContainsFunc(s, odd) || strings.Contains(s, "\n") && strings.ContainsAny(s[:1], " \n")
}

// quoted is a text as JSON has it, which is one in YAML too, with everything escaped that
// is not visible.
func (w *yamlWriter) quoted(s string) string {
	var body bytes.Buffer
	e := json.NewEncoder(&body)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		w.err = err
	}
	var b strings.Builder
	for _, r := range strings.TrimSuffix(body.String(), "\n") {
		switch {
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r <= math.MaxUint16:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}

// key is the name of a field, on one line.
func (w *yamlWriter) key(s string) string {
	if strings.Contains(s, "\n") {
		return w.quoted(s)
	}
	return w.text(s)
}
