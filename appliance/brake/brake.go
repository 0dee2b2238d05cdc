package brake

import "time"

const (
	// Few is the number of Services that may disappear at once without suspicion, unless no Service is left.
	Few = 10
	// fewest is the number of Services that may disappear at once without suspicion even if no Service is left.
	fewest = 2
	// Step is the time within which losses are counted together, because deleting a directory or stopping many servers takes a while.
	Step = 10 * time.Second
)

// Accident reports whether the loss of `gone` out of `of` Services looks like an accident. It does if more than Few and more than half of them are
// gone or, if all is set (no Service is left), if more than fewest are gone.
func Accident(gone, of int, all bool) bool { return gone > Few && 2*gone > of || all && gone > fewest }

// Remains reports whether a loss still looks like an accident. left is the number of Services still missing, most the largest number
// missing so far.
func Remains(left, most int) bool { return left > Few || 2*left > most }
