package output

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/manifest"
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
	return s + strings.Repeat(" ", max(0, width-len(s)))
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
	if *r > 0 && *r < 10 {
		return strconv.FormatFloat(*r, 'f', 1, 64)
	}
	return strconv.FormatFloat(*r, 'f', 0, 64)
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

// DidYouMean returns the end of a sentence about a word that is not one of words:
// otherwise, when none of them is near.
func DidYouMean(prefix, word string, words []string, otherwise string) string {
	if near := Nearest(word, words); near != "" {
		return fmt.Sprintf("did you mean %s%s?", prefix, near)
	}
	return otherwise
}

// Nearest returns the word of words that was probably meant by a misspelled one; "" when there is
// none.
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

// IsSlip reports whether a word is another one but for one letter.
func IsSlip(word, of string) bool { return len(of) > 2 && manifest.EditDistance(word, of, 1) <= 1 }

// fold takes away what people mix up: case, dashes, and the s of a plural.
func fold(word string) string {
	word = strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(word))
	return strings.TrimSuffix(word, "s")
}

// IsOrAre is "1 connection is" or "2 connections are".
func IsOrAre(n int, noun string) string {
	if n == 1 {
		return "1 " + noun + " is"
	}
	return fmt.Sprintf("%d %ss are", n, noun)
}

// Was is "1 object was" or "2 objects were".
func Was(n int, noun string) string {
	if n == 1 {
		return "1 " + noun + " was"
	}
	return fmt.Sprintf("%d %ss were", n, noun)
}

// OneLine joins the lines of a message.
func OneLine(text string) string {
	return Printable(strings.Join(strings.Fields(text), " "))
}

// Stamp is a time for people, to the second, in UTC.
func Stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// Span is a duration for people: its two largest units.
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

// Shortest is a duration with three digits or so: 412µs, 1.25ms, 2.3s.
func Shortest(d time.Duration) string {
	for unit := time.Second; unit > time.Nanosecond; unit /= 1000 {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

// Roughly rounds a time to three digits.
func Roughly(d time.Duration) time.Duration {
	unit := time.Nanosecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
