package output

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"svcctl.io/svcctl/store/manifest"
)

// HelpWidth is the maximum line width of help and other long texts, in characters.
const HelpWidth = 80

// Wrap breaks text at spaces into lines of at most width characters, including indent, which begins each line.
func Wrap(text, indent string, width int) string {
	var b strings.Builder
	line := indent
	for word := range strings.FieldsSeq(text) {
		if line != indent && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
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

// Pad appends spaces to s until it has at least width characters.
func Pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}

// Count returns a number with its noun in singular or plural: "1 problem", "2 problems".
func Count(n int, noun string) string { return counted(n, noun, "", "") }

// counted returns a number with its noun and a text that depends on the number: counted(n, "object", " was", " were") returns "1 object was" or "2
// objects were".
func counted(n int, noun, one, several string) string {
	if n == 1 {
		return "1 " + noun + one
	}
	return fmt.Sprintf("%d %ss%s", n, noun, several)
}

// Indent inserts indent before each nonempty line of text.
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

// JSON encodes a value as indented JSON.
func JSON(v any) (string, error) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode as JSON: %w", err)
	}
	return string(body) + "\n", nil
}

// Rate formats a rate a second; "-" for nil.
func Rate(r *float64) string {
	if r == nil {
		return "-"
	}
	if *r > 0 && *r < 10 {
		return strconv.FormatFloat(*r, 'f', 1, 64)
	}
	return strconv.FormatFloat(*r, 'f', 0, 64)
}

// ServicePort returns the name of a Service port: "shop/web", or "shop/web:http" if the port has a name.
func ServicePort(namespace, service, port string) string {
	if port != "" {
		service += ":" + port
	}
	return namespace + "/" + service
}

// TrimLines removes blanks at the ends of lines.
func TrimLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

// DidYouMean returns "did you mean X?", where X is prefix followed by the word in words that word resembles. If word resembles none, it returns the
// text in otherwise.
func DidYouMean(prefix, word string, words []string, otherwise string) string {
	if near := Nearest(word, words); near != "" {
		return fmt.Sprintf("did you mean %s%s?", prefix, near)
	}
	return otherwise
}

// Nearest returns the word in words that a misspelled word probably means; "" if there is none.
func Nearest(word string, words []string) string {
	best, distance := "", 1+len(word)/4 // one slip in every four letters, and one more
	folded := fold(word)
	for _, w := range words {
		if d := manifest.EditDistance(folded, fold(w), distance); d <= distance && (best == "" || d < distance) {
			best, distance = w, d
		}
	}
	return best
}

// IsSlip reports whether two words differ by at most one inserted, missing, wrong or swapped letter. It returns false if the second word, of, has
// fewer than 3 letters.
func IsSlip(word, of string) bool { return len(of) > 2 && manifest.EditDistance(word, of, 1) <= 1 }

// fold removes differences that users confuse: letter case, dashes, underscores and a final s.
func fold(word string) string {
	word = strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(word))
	return strings.TrimSuffix(word, "s")
}

// IsOrAre returns a count with the verb: "1 connection is", "2 connections are".
func IsOrAre(n int, noun string) string { return counted(n, noun, " is", " are") }

// Was returns a count with the verb: "1 object was", "2 objects were".
func Was(n int, noun string) string { return counted(n, noun, " was", " were") }

// OneLine joins the lines of a message to one line.
func OneLine(text string) string {
	return Printable(strings.Join(strings.Fields(text), " "))
}

// Stamp formats a time in UTC, with seconds.
func Stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// Span formats a duration by its two largest units: "3d4h", "2m5s".
func Span(d time.Duration) string {
	d = max(d, 0)
	days, hours := int(d.Hours())/24, int(d.Hours())%24
	minutes, seconds := int(d.Minutes())%60, int(d.Seconds())%60
	switch {
	case days > 0:
		return fmt.Sprintf("%dd%dh", days, hours)
	case hours > 0:
		return fmt.Sprintf("%dh%dm", hours, minutes)
	case minutes > 0:
		return fmt.Sprintf("%dm%ds", minutes, seconds)
	}
	return fmt.Sprintf("%ds", seconds)
}

// Shortest formats a duration in its largest unit of s, ms and µs, with at most two decimals: 412µs, 1.25ms, 2.3s. Minutes and hours are shown as by
// Duration.String.
func Shortest(d time.Duration) string {
	for unit := time.Second; unit > time.Nanosecond; unit /= 1000 {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

// Roughly rounds a duration to three digits.
func Roughly(d time.Duration) time.Duration {
	unit := time.Nanosecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

// Colors for Page.Paint: parameters of the SGR escape sequence (ECMA-48).
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

// Paint returns text in a color (one of the constants above); it returns text unchanged if the page has no colors.
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

// Diff returns the unified diff of two texts; "" if they are equal.
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

// Grid formats rows as columns. Columns never become narrower, so that rows added later, in a watch, are aligned with earlier ones.
type Grid struct{ widths []int }

const (
	gridGap   = 3 // blanks between columns
	gridLeast = 6 // minimum width of a column, as in kubectl
)

// Text formats rows, with the column widths of all rows so far.
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

// CellText formats a value as a cell: one line without control characters.
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

// Printable replaces control characters, which a terminal would obey, and other unprintable characters with U+FFFD.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
