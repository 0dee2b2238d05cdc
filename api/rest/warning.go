package rest

import (
	"net/http"
	"strings"
	"unicode/utf8"
)

// Headers are not made for long texts: when all warnings of an answer are longer than
// maxWarnings characters, each is cut to maxWarning, and those that are still too much are
// left out (the limits of the API server of Kubernetes).
const (
	maxWarnings = 4 << 10
	maxWarning  = 256
)

// send puts the warnings into the headers of an answer (RFC 7234 section 5.5): code 299,
// no agent, and the text.
func (w warnings) send(to http.ResponseWriter) {
	total := 0
	for _, text := range w {
		total += utf8.RuneCountInString(text)
	}
	cut := total > maxWarnings
	told := 0
	for _, text := range w {
		if cut && told >= maxWarnings {
			return
		}
		if runes := []rune(text); cut && len(runes) > maxWarning {
			text = string(runes[:maxWarning])
		}
		told += utf8.RuneCountInString(text)
		to.Header().Add("Warning", "299 - "+quoted(text))
	}
}

// quoted is a text as a header may hold it: on one line, in quotes.
func quoted(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, char := range strings.ToValidUTF8(text, "?") {
		switch {
		case char == '"' || char == '\\':
			b.WriteByte('\\')
			b.WriteRune(char)
		case char == '\n' || char == '\t':
			b.WriteByte(' ')
		case char < ' ' || char == 0x7f:
		default:
			b.WriteRune(char)
		}
	}
	b.WriteByte('"')
	return b.String()
}
