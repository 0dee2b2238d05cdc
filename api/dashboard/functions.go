package dashboard

import (
	"fmt"
	"html/template"
	"io/fs"
	"math"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// functions lists the functions that pages may call.
var functions = template.FuncMap{
	"manual": func() bool {
		_, err := fs.Stat(files, manual)
		return err == nil
	},
	"rate":      rateText,
	"ago":       ago,
	"spark":     sparkline,
	"join":      strings.Join,
	"count":     wire.Count,
	"number":    wire.Grouped,
	"total":     total,
	"refusing":  func(rate *float64) bool { return rate != nil && *rate > 0 },
	"share":     share,
	"whole":     func(n uint64) string { return total(&n) },
	"first":     func(list []wire.Holder) []wire.Holder { return list[:min(len(list), mostHolders)] },
	"more":      func(list []wire.Holder) int { return max(0, len(list)-mostHolders) },
	"anchor":    func(parts ...string) string { return strings.Join(parts, "|") },
	"protocols": func() []string { return []string{"TCP", "UDP", "SCTP"} },
	"place": func(file string, line int) string {
		if line > 0 {
			return file + ":" + strconv.Itoa(line)
		}
		return file
	},
}

// mostHolders bounds the values of a pool that are listed with their holders.
const mostHolders = 500

// rateText is a rate a second; "–" where none is known yet.
func rateText(r *float64) string {
	switch {
	case r == nil:
		return "–"
	case *r == 0 || *r >= 10:
		return wire.Grouped(int(*r + 0.5))
	}
	return strconv.FormatFloat(*r, 'f', 1, 64)
}

// total is a count that may not be made; "–" then.
func total(n *uint64) string {
	if n == nil {
		return "–"
	}
	if *n > math.MaxInt {
		return strconv.FormatUint(*n, 10) // a large range of IPv6
	}
	return wire.Grouped(int(*n))
}

// ago returns the time since then as text, roughly.
func ago(now, then time.Time) string {
	d := now.Sub(then)
	switch {
	case then.IsZero():
		return "never"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s ago", max(0, int(d/time.Second)))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min ago", int(d/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d/time.Hour))
	}
	return fmt.Sprintf("%d days ago", int(d/(24*time.Hour)))
}

// share is a part of a whole in percent.
func share(part, whole uint64) string {
	switch {
	case whole == 0:
		return "–"
	case part > 0 && part*100 < whole:
		return "below 1 %"
	}
	return strconv.FormatUint(part*100/whole, 10) + " %"
}

// The size of a sparkline, in its own units.
const sparkWidth, sparkHeight = 120, 24

// sparkline draws open connections over the last looks, as the points of an SVG polyline.
func sparkline(history []wire.TrafficSample) string {
	if len(history) < 2 {
		return ""
	}
	first, last, most := history[0].At, history[len(history)-1].At, 1
	for _, s := range history {
		most = max(most, s.Open)
	}
	span := max(last.Sub(first), time.Second).Seconds()
	var b strings.Builder
	for _, s := range history {
		x := s.At.Sub(first).Seconds() / span * sparkWidth
		y := sparkHeight - 1 - float64(s.Open)/float64(most)*(sparkHeight-2)
		fmt.Fprintf(&b, "%.1f,%.1f ", x, y)
	}
	return strings.TrimSpace(b.String())
}
