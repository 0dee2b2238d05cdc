package brake

import "time"

const (
	// Few is the number of Services that may go at once without suspicion, unless they are all of them.
	Few = 10
	// fewest is the number of Services that may go at once without suspicion even if they are all of them.
	fewest = 2
	// Step is the time within which losses are counted together: deleting a directory takes a while, and so does the stop of many servers.
	Step = 10 * time.Second
)

// Accident reports whether the loss of gone out of of Services looks like an accident: more than Few and more than half, or, with all (none
// is left), more than fewest.
func Accident(gone, of int, all bool) bool { return gone > Few && 2*gone > of || all && gone > fewest }

// Remains reports whether a loss still looks like an accident. left is the number of Services lost now, most the largest number so far.
func Remains(left, most int) bool { return left > Few || 2*left > most }
