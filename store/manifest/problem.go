package manifest

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"svcctl.io/svcctl/store/object"
)

// The reasons of Problems, stable for programs.
const (
	ReasonSyntax             = "Syntax"             // not YAML or JSON
	ReasonEncoding           = "Encoding"           // not UTF-8, or control characters
	ReasonLimit              = "LimitExceeded"      // one of Limits
	ReasonDuplicateKey       = "DuplicateKey"       // a key twice in one mapping
	ReasonUnknownField       = "UnknownField"       // the kind has no such field
	ReasonWrongType          = "WrongType"          // text where a number is wanted, and the like
	ReasonRequired           = "Required"           // kind, apiVersion or name is missing
	ReasonUnsupportedVersion = "UnsupportedVersion" // a served kind in a version that is not
	ReasonNotServed          = "NotServed"          // warning: a kind that is not served here
	ReasonAmbiguous          = "AmbiguousText"      // warning: unquoted yes, no, on, off
	ReasonIgnoredField       = "IgnoredField"       // warning: a field of Kubernetes that has no effect here
)

// A Problem is something wrong in a file, in words for its author.
type Problem struct {
	File string
	// Line and Column count from 1; 0 is unknown.
	Line, Column int
	// Object is the zero Ref when the problem is the file's or the object has no name.
	Object object.Ref
	// Field is the path of the field, "spec.ports[0].port"; empty when it is none's.
	Field string
	// Reason is one of the Reason constants, or a reason of the caller's.
	Reason  string
	Message string
	// Warning is set when the object is used nevertheless, or left out on purpose.
	Warning bool
	// Cause names the cause (wire.Problem.Cause); "": the object itself.
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
	if p.Object != (object.Ref{}) {
		b.WriteString(p.Object.String() + ": ")
	}
	// "unknown field "spec.bogus"" names its field itself.
	if p.Field != "" && !strings.Contains(p.Message, strconv.Quote(p.Field)) {
		b.WriteString(p.Field + ": ")
	}
	b.WriteString(p.Message)
	return oneLine(b.String())
}

// Error makes a Problem an error.
func (p Problem) Error() string { return p.String() }

// oneLine escapes what would break a line or a terminal: names and keys come from files.
func oneLine(s string) string {
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

// excerpt is text from a file, quoted, short enough for a message.
func excerpt(s string) string {
	const most = 40 // bytes; enough to recognize a value by
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return strconv.Quote(s)
}

// ReasonHost is the reason of problems that the host has rather than an object or a file.
const ReasonHost = "Host"
