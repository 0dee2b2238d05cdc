package output

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

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
