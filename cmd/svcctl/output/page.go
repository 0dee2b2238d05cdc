package output

import (
	"fmt"
	"strings"
)

// Colors of Page.Paint (ECMA-48, select graphic rendition).
const (
	Red    = "31"
	Green  = "32"
	Yellow = "33"
	Bold   = "1"
)

// Page builds text of labels with values, under headings. The zero value is an empty page without colors.
type Page struct {
	strings.Builder
	Color bool
}

// Paint returns text in a color, when the page has colors.
func (p *Page) Paint(code, text string) string {
	if !p.Color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Line writes a label and its value.
func (p *Page) Line(label, format string, args ...any) {
	fmt.Fprintf(p, "%-18s%s\n", label, fmt.Sprintf(format, args...))
}

// Heading starts a section.
func (p *Page) Heading(format string, args ...any) {
	fmt.Fprintf(p, "\n%s\n", p.Paint(Bold, fmt.Sprintf(format, args...)))
}
