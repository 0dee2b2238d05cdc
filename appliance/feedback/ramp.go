package feedback

import "time"

// Whole is the share of its weight that an endpoint has which is not new, and Least that of one that has
// just come.
const (
	Whole = 1000
	Least = Whole / 10
)

// steps is in how many steps a share grows, unless that would be more than one a second.
const steps = 50

// Step is the time between two steps of a slow start.
func Step(over time.Duration) time.Duration { return max(time.Second, over/steps) }

// Ramp is the share of its weight, in thousandths, that an endpoint of an age has whose slow start takes
// so long: the age's share of that time in whole steps, and Least at least.
func Ramp(age, over time.Duration) uint32 {
	if over <= 0 || age >= over {
		return Whole
	}
	step := Step(over)
	return max(Least, uint32(Whole*(age/step*step)/over))
}
