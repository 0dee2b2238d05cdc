package selector

import "strings"

// The tests compare selectors by their text, which the product never writes.

// String returns the selector in its syntax, sorted by key.
func (l Labels) String() string {
	texts := make([]string, len(l.requirements))
	for i, r := range l.requirements {
		texts[i] = r.String()
	}
	return strings.Join(texts, ",")
}

func (r requirement) String() string {
	values := strings.Join(r.values, ",")
	switch r.operator {
	case opExists:
		return r.key
	case opAbsent:
		return "!" + r.key
	case opIn, opNotIn:
		return r.key + " " + r.operator + " (" + values + ")"
	}
	return r.key + r.operator + values
}

// String returns the selector in its syntax.
func (f Fields) String() string {
	texts := make([]string, len(f.terms))
	for i, t := range f.terms {
		operator := "="
		if t.not {
			operator = "!="
		}
		texts[i] = t.field + operator + escaper.Replace(t.value)
	}
	return strings.Join(texts, ",")
}

var escaper = strings.NewReplacer(`\`, `\\`, `,`, `\,`, `=`, `\=`)
