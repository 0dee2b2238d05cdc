package output

import (
	"fmt"
	"strings"

	"svcctl.io/svcctl/store/manifest"
)

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
