package rest

import "crypto/rand"

const (
	// nameLetters make no words (alphanums of apimachinery's util/rand).
	nameLetters = "bcdfghjklmnpqrstvwxz2456789"
	// nameSuffix is the number of letters behind a prefix, and maxPrefix bounds the prefix, so that
	// the name is a label.
	nameSuffix = 5
	maxPrefix  = 63 - nameSuffix
)

// generateName returns a new name that begins with a prefix.
func generateName(prefix string) string {
	var random [nameSuffix]byte
	rand.Read(random[:]) // never fails
	for i, b := range random {
		random[i] = nameLetters[int(b)%len(nameLetters)]
	}
	return prefix[:min(len(prefix), maxPrefix)] + string(random[:])
}
