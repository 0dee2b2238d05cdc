package simulate

import (
	"slices"
	"strings"
	"time"
)

// Shrink returns a smaller script for which fails is still true: without rounds, events, and objects of files. It ends after a
// time, which bounds real work.
func Shrink(s Script, fails func(Script) bool, most time.Duration) Script {
	end := time.Now().Add(most)
	try := func(events []Event) bool {
		if time.Now().After(end) {
			return false
		}
		if candidate := (Script{s.Seed, s.Fleet, events}); fails(candidate) {
			s = candidate
			return true
		}
		return false
	}
	// The last event is the rest that failed.
	for size := len(s.Events) / 2; size >= 1; size /= 2 {
		for at := 0; at < len(s.Events)-1; {
			upTo := min(at+size, len(s.Events)-1)
			if !try(slices.Delete(slices.Clone(s.Events), at, upTo)) {
				at = upTo
			}
		}
	}
	for i := 0; i < len(s.Events); i++ {
		if e := s.Events[i]; e.Verb == doFile || e.Verb == doSlowly {
			docs := strings.Split(e.arg(1), "\n---\n")
			for j := 0; j < len(docs) && len(docs) > 1; {
				without := slices.Delete(slices.Clone(docs), j, j+1)
				events := slices.Clone(s.Events)
				events[i] = Event{e.Verb, []string{e.arg(0), strings.Join(without, "\n---\n")}}
				if try(events) {
					docs = without
				} else {
					j++
				}
			}
		}
	}
	return s
}
