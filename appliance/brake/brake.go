package brake

import "time"

const (
	// Few Services may go, unless they are all.
	Few = 10
	// fewest Services may go even if they are all.
	fewest = 2
	// Step is the time within which losses count as one: neither is a directory deleted at once, nor do servers stop at once.
	Step = 10 * time.Second
)

// Accident reports whether the loss of so many of so many Services looks like an accident: most of them, or all.
func Accident(gone, of int, all bool) bool { return gone > Few && 2*gone > of || all && gone > fewest }

// Remains reports whether a loss still looks like an accident when left of the former most are lost.
func Remains(left, most int) bool { return left > Few || 2*left > most }
