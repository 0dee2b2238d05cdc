package dashboard

import (
	"html/template"
	"io/fs"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"svcctl.io/svcctl/api/wire"
)

// functions lists the functions that pages may call.
var functions = template.FuncMap{
	"manual": func() bool {
		_, err := fs.Stat(files, manual)
		return err == nil
	},
	"rate":    rateText,
	"span":    span,
	"stamp":   func(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) },
	"clock":   clock,
	"graph":   graphOf,
	"spark":   sparkOf,
	"command": func(next string) string { command, _ := commandOf(next); return command },
	"words":   func(next string) string { _, words := commandOf(next); return words },
	"plus": func(n ...int) (sum int) {
		for _, v := range n {
			sum += v
		}
		return sum
	},
	"dict":      dict,
	"head":      func(text string) string { first, _ := headOf(text); return first },
	"rest":      func(text string) string { _, more := headOf(text); return more },
	"ticks":     func(text string) []string { return strings.Split(text, "`") },
	"odd":       func(i int) bool { return i%2 == 1 },
	"minus":     func(n int) int { return -n },
	"part":      part,
	"dots":      dotsOf,
	"headline":  func(text string) string { first, _, _ := strings.Cut(text, "; "); return first },
	"join":      strings.Join,
	"count":     wire.Count,
	"number":    wire.Grouped,
	"total":     total,
	"positive":  func(rate *float64) bool { return rate != nil && *rate > 0 },
	"share":     share,
	"whole":     func(n uint64) string { return total(&n) },
	"more":      func(p wire.Pool) int { return p.Held - len(p.Holders) },
	"protocols": func() []string { return []string{"TCP", "UDP", "SCTP"} },
	"place": func(file string, line int) string {
		if line > 0 {
			return file + ":" + strconv.Itoa(line)
		}
		return file
	},
}

// MostHolders bounds the values of a pool that are listed with their holders.
const MostHolders = 500

// rateText formats a rate a second; "–" if it is nil.
func rateText(r *float64) string {
	if r == nil {
		return "–"
	}
	return wire.Rate(*r)
}

// total formats a count; "–" for nil.
func total(n *uint64) string {
	if n == nil {
		return "–"
	}
	if *n > math.MaxInt {
		return strconv.FormatUint(*n, 10) // a large range of IPv6
	}
	return wire.Grouped(int(*n))
}

// span formats a duration in one unit, rounded, as the script of the pages does.
func span(d time.Duration) string {
	switch s := int(max(d, 0).Round(time.Second) / time.Second); {
	case s < 90:
		return strconv.Itoa(s) + " s"
	case s < 5400:
		return strconv.Itoa((s+30)/60) + " min"
	case s < 129600:
		return strconv.Itoa((s+1800)/3600) + " h"
	default:
		return strconv.Itoa((s+43200)/86400) + " days"
	}
}

// clock formats a time of today, or of the last 12 hours, as the time of day, and any other time as a date, both in UTC.
func clock(now, at time.Time) string {
	if now.Sub(at) < 12*time.Hour || now.UTC().YearDay() == at.UTC().YearDay() && now.Sub(at) < 24*time.Hour {
		return at.UTC().Format("15:04")
	}
	return at.UTC().Format("2 Jan")
}

// commands returns the regular expression that matches the command in the text of a next step, without the explanation after it.
var commands = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("((?:svcctl|systemctl) [a-z][-A-Za-z0-9./_ ]*?)(?:`| lists\\b| checks\\b| confirms\\b|[;,:(]|$)")
})

// commandOf extracts the command from a next step, for a copy button, and the text to show next to the button. command is "" if there is none; words
// is "" if the step is only the command.
func commandOf(next string) (command, words string) {
	found := commands().FindStringSubmatch(next)
	if found == nil || strings.Contains(found[1], "…") {
		return "", next
	}
	if command = strings.TrimSpace(found[1]); command == next {
		return command, ""
	}
	return command, next
}

// share formats a part of a whole in percent; "–" if the whole is 0.
func share(part, whole uint64) string {
	switch {
	case whole == 0:
		return "–"
	case part > 0 && part*100 < whole:
		return "below 1 %"
	}
	return strconv.FormatUint(part*100/whole, 10) + " %"
}

// dict returns a map of names and values that alternate in pairs, to pass several values to a nested template.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

// part returns a rate as a percentage of the largest rate in a list, for the length of a bar. It returns "0" if either is nil or the largest is 0.
func part(rate, most *float64) string {
	if rate == nil || most == nil || *most <= 0 {
		return "0"
	}
	return short(100 * *rate / *most)
}

// dots holds one square for each endpoint of a Service that has at most mostDots endpoints.
type dots struct {
	Width int
	Cells []beatCell
}

const mostDots, dotWidth = 10, 11

func dotsOf(up, all int) *dots {
	if all > mostDots || all <= 0 {
		return nil
	}
	d := &dots{Width: all * dotWidth}
	for i := range all {
		class := "up"
		if i >= up {
			class = "dn"
		}
		d.Cells = append(d.Cells, beatCell{X: i*dotWidth + 1, Class: class})
	}
	return d
}

// mostHead bounds what headOf returns as the head of a message, in characters.
const mostHead = 76

// headOf splits a message after the last colon or semicolon within its first mostHead characters. head is the problem, and more the details.
func headOf(text string) (head, more string) {
	if utf8.RuneCountInString(text) <= mostHead {
		return text, ""
	}
	runes, at, begin := 0, -1, 0
	for i, r := range text {
		if runes++; runes > mostHead {
			break
		}
		if i > 0 && r == ' ' && (text[i-1] == ':' || text[i-1] == ';') {
			if !strings.HasPrefix(text[begin:], "port ") { // which what follows is about
				at = i
			}
			begin = i + 1
		}
	}
	if at < 0 {
		return text, ""
	}
	return text[:at-1], text[at+1:]
}
