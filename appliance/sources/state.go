package sources

import (
	"fmt"
	"slices"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/manifest"
)

// patience is the time for which no box may read a source before that is a problem.
const patience = time.Minute

// The reasons of problems.
const (
	ReasonDiffers  = "SourceDiffers"     // warning: this box has something else than is in force
	ReasonBehind   = "SourceBehind"      // warning: this box has something older
	ReasonNoReader = "SourceHasNoReader" // no box reads the source
)

// State is the state of a source on this box.
type State struct {
	Name, Dir string
	// Reader is the box that reads it; "" when none does, or it is not known.
	Reader string
	// Mine reports whether this box reads it.
	Mine bool
	// Verdict is why this box may not read it.
	Verdict store.SourceVerdict
	// Orphaned is set when no box has read it for patience.
	Orphaned bool
}

// updateStates stores the states of the sources, and calls Wake when they have changed.
func (r *Reader) updateStates() {
	states := make([]State, 0, len(r.judged))
	for i, j := range r.judged {
		turn := r.cfg.Turns.Turn(j.turn.Name)
		states = append(states, State{
			Name: j.turn.Name, Dir: r.cfg.Dirs[i].Path, Reader: turn.Holder, Mine: turn.Mine, Verdict: j.verdict,
			Orphaned: !turn.Vacant.IsZero() && time.Since(turn.Vacant) > patience,
		})
	}
	r.mu.Lock()
	same := slices.Equal(states, r.states)
	r.states = states
	r.mu.Unlock()
	if !same {
		r.cfg.Wake()
	}
}

// Problems reports sources of which this box has another content than is in force, and sources that
// no box reads.
func (r *Reader) Problems() (problems []manifest.Problem) {
	for _, s := range r.States() {
		take := fmt.Sprintf("`svcctl fleet source take %s --box %s` puts in force what this box has", s.Name, r.cfg.Box)
		switch {
		case s.Orphaned:
			p := manifest.Problem{File: s.Dir, Reason: ReasonNoReader, Message: fmt.Sprintf("no box reads source %s, and its last content stays in force", s.Name)}
			if first := s.Verdict.Differs; first != "" {
				p.Message += fmt.Sprintf(": this box has %s otherwise than it is in force; bring the directory up to date, or %s", first, take)
			}
			if s.Verdict.Given {
				p.Message += fmt.Sprintf("; it was given to %s, which is to read it: see there, or %s", s.Verdict.Reader, take)
			}
			problems = append(problems, p)
		case s.Verdict.Behind:
			problems = append(problems, manifest.Problem{File: s.Dir, Reason: ReasonBehind, Warning: true, Message: fmt.Sprintf(
				"this box has an older generation of source %s than is in force (%s differs), and reads nothing of it: bring the directory up to date", s.Name, s.Verdict.Differs)})
		case s.Verdict.Differs != "":
			problems = append(problems, manifest.Problem{File: s.Dir, Reason: ReasonDiffers, Warning: true, Message: fmt.Sprintf(
				"this box has %s otherwise than it is in force, as %s reads source %s: bring the directory up to date, or %s", s.Verdict.Differs, reader(s), s.Name, take)})
		}
	}
	return problems
}

// reader names the box that reads a source.
func reader(s State) string {
	switch {
	case s.Reader != "":
		return s.Reader
	case s.Verdict.Reader != "":
		return s.Verdict.Reader + " (away)"
	}
	return "no box"
}
