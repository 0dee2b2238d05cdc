package output

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// HelpWidth is the width that texts for people are broken at, in characters.
const HelpWidth = 80

// Wrap breaks text at blanks into lines of at most width characters, each after
// indent.
func Wrap(text, indent string, width int) string {
	var b strings.Builder
	line := indent
	for word := range strings.FieldsSeq(text) {
		if line != indent && len(line)+1+len(word) > width {
			b.WriteString(line + "\n")
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	return b.String() + line + "\n"
}

// Pad fills s with blanks to width characters.
func Pad(s string, width int) string {
	for len(s) < width {
		s += " "
	}
	return s
}

// Count is a number with its noun: "1 problem", "2 problems".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Indent is a text with every line that is not empty further in.
func Indent(text, indent string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line != "\n" {
			b.WriteString(indent)
		}
		b.WriteString(line)
	}
	return b.String()
}

// JSON is a value in JSON, indented.
func JSON(v any) (string, error) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode as JSON: %w", err)
	}
	return string(body) + "\n", nil
}

// Rate is a rate for people; "-" where none is known yet.
func Rate(r *float64) string {
	if r == nil {
		return "-"
	}
	precision := 0
	if *r > 0 && *r < 10 {
		precision = 1
	}
	return strconv.FormatFloat(*r, 'f', precision, 64)
}

// ServicePort names a port of a Service: "shop/web", or "shop/web:http" where the port has a name.
func ServicePort(namespace, service, port string) string {
	if port != "" {
		service += ":" + port
	}
	return namespace + "/" + service
}

// TrimLines takes blanks off the ends of lines.
func TrimLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}
