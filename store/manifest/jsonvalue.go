package manifest

import "encoding/json"

// JSON reads a text that is one value of JSON (RFC 8259). Of keys that are there twice the last
// one counts, as for the API server of Kubernetes, and Duplicates names them in its way:
// "metadata.labels.app". The text is UTF-8.
func JSON(text []byte, limits Limits) (Value, *Problem) {
	r := &jsonReader{jsonScanner: jsonScanner{text: text, line: 1, limits: limits.orDefaults()}}
	data, err := r.document()
	if err != nil {
		return Value{}, &Problem{Line: err.line, Column: err.column, Reason: err.reason, Message: err.message}
	}
	return Value{Data: data, Line: 1, Duplicates: r.duplicates}, nil
}

// A jsonReader reads values without their places.
type jsonReader struct {
	jsonScanner
	duplicates []string
}

func (r *jsonReader) document() (any, *refusal) {
	r.space()
	if r.at == len(r.text) {
		return nil, r.bad("a value")
	}
	data, err := r.data(0)
	if err != nil {
		return nil, err
	}
	if r.space(); r.at < len(r.text) {
		return nil, r.fail(ReasonSyntax, "could not be parsed: there is more after the end of the value; send one value")
	}
	return data, nil
}

// data reads the next value: map[string]any, []any, string, bool, json.Number or nil.
func (r *jsonReader) data(depth int) (any, *refusal) {
	if err := r.count(depth); err != nil {
		return nil, err
	}
	switch r.text[r.at] {
	case '{':
		out := map[string]any{}
		err := r.members(func(raw []byte, _, _ int) (err *refusal) {
			key := sharedText(raw)
			r.path.pushKey(key)
			if _, twice := out[key]; twice && len(r.duplicates) < maxProblems {
				r.duplicates = append(r.duplicates, r.path.dotted())
			}
			if out[key], err = r.data(depth + 1); err == nil {
				r.path.pop()
			}
			return err
		})
		return out, err
	case '[':
		out := []any{}
		err := r.elements(func(i int) *refusal {
			r.path.pushIndex(i)
			item, err := r.data(depth + 1)
			if err == nil {
				r.path.pop()
				out = append(out, item)
			}
			return err
		})
		return out, err
	case '"':
		raw, err := r.quoted()
		if err != nil {
			return nil, err
		}
		return sharedText(raw), nil
	}
	raw, err := r.word()
	if err != nil {
		return nil, err
	}
	switch raw[0] {
	case 'n':
		return nil, nil
	case 't':
		return true, nil
	case 'f':
		return false, nil
	}
	return json.Number(raw), nil
}

// sharedText is the text of a string in quotes, held once if it is frequent.
func sharedText(raw []byte) string {
	if s, ok := frequent[string(raw[1:len(raw)-1])]; ok {
		return s
	}
	return unquote(raw)
}
