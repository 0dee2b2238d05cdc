package output

import (
	"fmt"
	"strings"
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
		if d := editDistance(folded, fold(w)); d <= distance && (best == "" || d < distance) {
			best, distance = w, d
		}
	}
	return best
}

// fold takes away what people mix up: case, dashes, and the s of a plural.
func fold(word string) string {
	word = strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(word))
	return strings.TrimSuffix(word, "s")
}

// editDistance returns the Levenshtein distance of a and b, in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0] // the value up and left
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, corner+1, row[j]+1)
		}
	}
	return row[len(b)]
}
