package object

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// A Problem is something wrong in a file, or the reason why an object does not work as written.
type Problem struct {
	File string
	// Line and Column count from 1; 0 is unknown.
	Line, Column int
	// Object is the zero Ref when the problem concerns the whole file, or the object has no name.
	Object Ref
	// Field is the path of the field, "spec.ports[0].port"; empty when the problem concerns no single field.
	Field string
	// Reason is one word in CamelCase, for programs.
	Reason  string
	Message string
	// Warning is set when the object works in all other respects, or is left out on purpose.
	Warning bool
	// Cause identifies the underlying fault if it may cause problems of several objects (wire.Problem.Cause).
	Cause string
}

// String is the problem in one line:
//
//	edge.yaml:12:9: Service default/web: spec.ports[0].port: expected a whole number, got the text "http"
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
		if p.Column > 0 {
			fmt.Fprintf(&b, ":%d", p.Column)
		}
	}
	b.WriteString(": ")
	if p.Warning {
		b.WriteString("warning: ")
	}
	if p.Object != (Ref{}) {
		b.WriteString(p.Object.String() + ": ")
	}
	// "unknown field "spec.bogus"" names its field itself.
	if p.Field != "" && !strings.Contains(p.Message, strconv.Quote(p.Field)) {
		b.WriteString(p.Field + ": ")
	}
	b.WriteString(p.Message)
	return OneLine(b.String())
}

// Error implements error.
func (p Problem) Error() string { return p.String() }

// OneLine escapes line breaks and control characters of a text from a file.
func OneLine(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRuneToASCII(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}
