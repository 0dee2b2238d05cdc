package selector

import "strings"

// token is a part of a label selector: a symbol, a word, or the end, whose text is "".
type token struct {
	text string
	word bool
}

func (t token) is(symbol string) bool { return !t.word && t.text == symbol }

// isEnd reports whether the token is the end of the selector.
func (t token) isEnd() bool { return t == token{} }

const (
	blanks  = " \t\r\n"
	symbols = "=!(),><"
)

// tokens splits a label selector into tokens. The last one is the end.
func tokens(s string) []token {
	var all []token
	for {
		s = strings.TrimLeft(s, blanks)
		if s == "" {
			return append(all, token{})
		}
		size := strings.IndexAny(s, blanks+symbols)
		switch {
		case size < 0:
			size = len(s)
		case strings.HasPrefix(s, "==") || strings.HasPrefix(s, "!="):
			size = 2
		case size == 0:
			size = 1
		}
		all = append(all, token{text: s[:size], word: !strings.Contains(symbols, s[:1])})
		s = s[size:]
	}
}
