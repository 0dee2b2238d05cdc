package table

import (
	"fmt"
	"time"
)

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// age returns the time since an event as kubectl shows it: exact if recent, then ever
// rougher (HumanDuration of apimachinery).
func age(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return unknown
	}
	d := now.Sub(*t)
	switch {
	case d <= -2*time.Second:
		return "<invalid>"
	case d < 0:
		return "0s" // clocks of two machines
	case d < 2*time.Minute:
		return units(d, time.Second, "s", 0, "")
	case d < 10*time.Minute:
		return units(d, time.Minute, "m", time.Second, "s")
	case d < 3*time.Hour:
		return units(d, time.Minute, "m", 0, "")
	case d < 8*time.Hour:
		return units(d, time.Hour, "h", time.Minute, "m")
	case d < 2*day:
		return units(d, time.Hour, "h", 0, "")
	case d < 8*day:
		return units(d, day, "d", time.Hour, "h")
	case d < 2*year:
		return units(d, day, "d", 0, "")
	case d < 8*year:
		return units(d, year, "y", day, "d")
	}
	return units(d, year, "y", 0, "")
}

// units formats a duration in one unit, and the rest in another one if there is any.
func units(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d%s", d/large, largeName)
	if small == 0 || d%large < small {
		return text
	}
	return fmt.Sprintf("%s%d%s", text, d%large/small, smallName)
}
