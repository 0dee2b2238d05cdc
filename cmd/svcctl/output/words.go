package output

import (
	"fmt"
	"strings"
	"time"
)

// IsOrAre is "1 connection is" or "2 connections are".
func IsOrAre(n int, noun string) string {
	if n == 1 {
		return "1 " + noun + " is"
	}
	return fmt.Sprintf("%d %ss are", n, noun)
}

// Was is "1 object was" or "2 objects were".
func Was(n int, noun string) string {
	if n == 1 {
		return "1 " + noun + " was"
	}
	return fmt.Sprintf("%d %ss were", n, noun)
}

// OneLine joins the lines of a message.
func OneLine(text string) string {
	return Printable(strings.Join(strings.Fields(text), " "))
}

// Stamp is a time for people, to the second, in UTC.
func Stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// Span is a duration for people: its two largest units.
func Span(d time.Duration) string {
	d = max(d, 0)
	days, hours := int(d.Hours())/24, int(d.Hours())%24
	minutes, seconds := int(d.Minutes())%60, int(d.Seconds())%60
	switch {
	case days > 0:
		return fmt.Sprintf("%dd%dh", days, hours)
	case hours > 0:
		return fmt.Sprintf("%dh%dm", hours, minutes)
	case minutes > 0:
		return fmt.Sprintf("%dm%ds", minutes, seconds)
	}
	return fmt.Sprintf("%ds", seconds)
}

// Shortest is a duration with three digits or so: 412µs, 1.25ms, 2.3s.
func Shortest(d time.Duration) string {
	for unit := time.Second; unit > time.Nanosecond; unit /= 1000 {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

// Roughly rounds a time to three digits.
func Roughly(d time.Duration) time.Duration {
	unit := time.Nanosecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
