package simulate

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Event is a line of a Script: a verb and its arguments, as in `file a.yaml "TEXT"`.
type Event struct {
	Verb string
	Args []string
}

// The verbs, with their arguments. N counts from 1: the Nth commit or reading from the event on.
const (
	doFile    = "file"    // NAME TEXT: a file is renamed into place
	doSlowly  = "slowly"  // NAME TEXT: a file is written in two parts
	doRemove  = "remove"  // NAME
	doPut     = "put"     // PATH TEXT [lost|gone|half]: a client creates or replaces an object; the fate of the request
	doApply   = "apply"   // PATH TEXT [lost|gone|half]: a client applies an object on the server
	doCreate  = "create"  // PATH TEXT: a client creates an object that is there
	doStale   = "stale"   // PATH TEXT: a client replaces a version that is not there any more
	doDelete  = "delete"  // PATH [lost|gone]: a client deletes an object
	doJunk    = "junk"    // METHOD PATH TEXT: a request whose body is no object
	doDown    = "down"    // ADDRESS:PORT: a server answers no checks
	doUp      = "up"      // ADDRESS:PORT
	doAddress = "address" // add|del INTERFACE PREFIX
	doClock   = "clock"   // DURATION: the wall clock jumps
	doLink    = "link"    // add|del INTERFACE, without addresses
	doSets    = "sets"    // NUMBER of the contents of source sets
	doForeign = "foreign" // flush|chain|elements|data|others now|late|lost|fight: another program changes our tables, or its own; how the message comes, or eight times
	doFault   = "fault"   // disk full|failed|before|torn|after N, kernel refused|stale|unknown|lost|picky N, reading failed N
	doKill    = "kill"    // the process, which starts again
	doStop    = "stop"    // the process is stopped orderly, and starts again
	doReboot  = "reboot"  // the kernel is empty, and the process starts again
	doVanish  = "vanish"  // [restart]: the directory of manifests is away for a while, in which the process may start again
	doStarve  = "starve"  // the disk is full, a file comes, and the host starts again: what is stored is in force
	doWait    = "wait"    // DURATION of virtual time
	doNight   = "night"   // DURATION of virtual time at rest, in which nothing is written and nothing committed
	doRest    = "rest"    // faults end, 100 s pass, the invariants are judged
)

// Script is what happens to a box, or to a fleet of three.
type Script struct {
	Seed   uint64 // of the box; the events are all that happens
	Fleet  bool
	Events []Event
}

// String returns the text that Parse reads.
func (s Script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\n", s.Seed)
	if s.Fleet {
		b.WriteString("fleet\n")
	}
	for _, e := range s.Events {
		b.WriteString(e.Verb)
		for _, a := range e.Args {
			if a == "" || strings.ContainsAny(a, " \n\t\"") {
				a = strconv.Quote(a)
			}
			b.WriteString(" " + a)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// Parse reads a Script. An error has the line.
func Parse(text string) (Script, error) {
	var s Script
	for i, line := range strings.Split(text, "\n") {
		words, err := split(line)
		if err != nil {
			return s, fmt.Errorf("line %d: %w", i+1, err)
		}
		switch {
		case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		case words[0] == "seed" && len(words) == 2:
			if s.Seed, err = strconv.ParseUint(words[1], 10, 64); err != nil {
				return s, fmt.Errorf("line %d: %w", i+1, err)
			}
		case words[0] == "fleet":
			s.Fleet = true
		default:
			s.Events = append(s.Events, Event{words[0], words[1:]})
		}
	}
	return s, nil
}

// split returns the words of a line, of which some are quoted as in Go.
func split(line string) (words []string, err error) {
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		if line[0] != '"' {
			word, rest, _ := strings.Cut(line, " ")
			words, line = append(words, word), rest
			continue
		}
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		words, line = append(words, word), line[len(quoted):]
	}
	return words, nil
}

// arg returns an argument, "" if there is none.
func (e Event) arg(i int) string {
	if i < len(e.Args) {
		return e.Args[i]
	}
	return ""
}

// duration is an argument of a generated or checked script.
func (e Event) duration(i int) time.Duration {
	d, err := time.ParseDuration(e.arg(i))
	if err != nil {
		panic(fmt.Sprintf("%s: %v", e.Verb, err))
	}
	return d
}
