package output

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"
)

// Colors of Page.Paint (ECMA-48, select graphic rendition).
const (
	Red    = "31"
	Green  = "32"
	Yellow = "33"
	Bold   = "1"
	cyan   = "36"
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

// Diff returns the unified difference of two texts; it is empty when they are equal.
func Diff(nameA, nameB, a, b string) string {
	return strings.TrimPrefix(string(diff.Diff(nameA, []byte(a), nameB, []byte(b))), "diff "+nameA+" "+nameB+"\n") // a line of commands, as of git
}

// PaintDiff colors the lines of a unified diff.
func PaintDiff(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		code := ""
		switch {
		case strings.HasPrefix(line, "---"), strings.HasPrefix(line, "+++"):
			code = Bold
		case strings.HasPrefix(line, "-"):
			code = Red
		case strings.HasPrefix(line, "+"):
			code = Green
		case strings.HasPrefix(line, "@@"):
			code = cyan
		}
		if code != "" {
			line = "\x1b[" + code + "m" + strings.TrimSuffix(line, "\n") + "\x1b[0m\n"
		}
		b.WriteString(line)
	}
	return b.String()
}

// Grid writes rows in columns. A column stays as wide as it ever was, so that rows which
// come later, in a watch, stand below the ones before.
type Grid struct{ widths []int }

const (
	gridGap   = 3 // blanks between columns
	gridLeast = 6 // the least width of a column, as kubectl has it
)

// Text lays out rows.
func (g *Grid) Text(rows ...[]string) string {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(g.widths) {
				g.widths = append(g.widths, gridLeast)
			}
			g.widths[i] = max(g.widths[i], utf8.RuneCountInString(cell)+gridGap)
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", g.widths[i]-utf8.RuneCountInString(cell)))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// CellText is a value in a cell: one line, and nothing that a terminal acts on.
func CellText(v any) string {
	text, is := v.(string)
	if !is {
		text = fmt.Sprint(v)
	}
	if v == nil {
		text = "<none>"
	}
	if i := strings.IndexAny(text, "\r\n"); i >= 0 {
		text = text[:i] + "..."
	}
	return Printable(text)
}

// Printable takes out what a terminal would act on.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
