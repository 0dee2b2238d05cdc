package fleet

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"svcctl.io/svcctl/store/engine"
)

// Kind is the state of a box in its fleet.
type Kind string

// The kinds of states.
const (
	Following Kind = "Following" // all is well
	CutOff    Kind = "CutOff"    // etcd does not answer
	Waiting   Kind = "Waiting"   // the box has no replica, and has not read the objects of its fleet yet
	Lagging   Kind = "Lagging"   // etcd answers, and what was committed does not come
	WentBack  Kind = "WentBack"  // what etcd has is older than what is in force, or has another history
	OtherOne  Kind = "OtherFleet"
	Emptied   Kind = "Emptied"  // etcd has no such fleet
	Damaged   Kind = "Damaged"  // the objects do not fit the digest
	Differs   Kind = "Differs"  // the box has other settings than its fleet
	TooNew    Kind = "TooNew"   // a newer version has written what this one cannot read
	Namesake  Kind = "Namesake" // another box has the name
	// KeyMissing means that a Secret, or a key that boxes share, is sealed by a key that the box does not have.
	KeyMissing Kind = "KeyMissing"
)

// State is the state of a box as a member of its fleet.
type State struct {
	Kind Kind
	// Why names what happened and the next step; "" while all is well.
	Why   string
	Since time.Time
	// Revision is the revision of the newest commit that was followed; Of that of the newest in
	// etcd, as of the last answer.
	Revision, Of uint64
	Epoch        uint64
	// Heard is the time of etcd's last answer.
	Heard time.Time
	// Asked is set once etcd has answered since the start, or its time was up.
	Asked bool
	// Writer is the box that runs the controllers, "" when it is not known.
	Writer string
	// Replica is the error of writing the replica, nil if there is none.
	Replica error
	// Untold is why etcd does not take the report of this box; "": it does, or the Kind says so.
	Untold string
	// Foreign names the keys of objects that somebody else than a box has written or removed in etcd; "": none. They are not followed.
	Foreign string
}

// Held reports whether the content of etcd is not taken over until an operator confirms it.
func (s *State) Held() bool {
	switch s.Kind {
	case WentBack, OtherOne, Emptied, Damaged:
		return true
	}
	return false
}

// Hears reports whether the box follows what etcd has, so that it knows what became of something.
func (s *State) Hears() bool {
	switch s.Kind {
	case Following, Differs, KeyMissing, Namesake:
		return true
	}
	return false
}

// state is the internal form of State, under the lock of the Engine.
type state struct {
	kind  Kind
	why   string
	since time.Time
	heard time.Time
	asked bool // see State.Asked
	of    uint64
	// differs lists the settings that differ from the fleet's; "": they agree.
	differs string
	// shut names a Secret or shared key that cannot be opened, with the time; "": all can. blind is set when there is a Secret among
	// them.
	shut      string
	shutSince time.Time
	blind     bool
	untold    string // see State.Untold
}

// refusal is why nothing may be committed; nil: it may.
func (s *state) refusal() error {
	switch {
	case s.kind != Following && s.kind != Lagging:
	case s.differs != "":
		return &engine.AwayError{Why: s.differs}
	case s.blind:
		return &engine.AwayError{Why: s.shut, Since: s.shutSince}
	default:
		return nil
	}
	return &engine.AwayError{Why: s.why, Since: s.since}
}

// heldError is why etcd is not followed, although it answers.
type heldError struct {
	kind Kind
	why  string
}

func (e *heldError) Error() string { return e.why }

// note takes what a look at etcd came to.
func (e *Engine) note(err error) {
	kind, why := Following, ""
	if held, is := err.(*heldError); is { //nolint:errorlint // it is never wrapped
		kind, why = held.kind, held.why
	} else if err != nil {
		kind, why = CutOff, e.origin.silence(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state.kind == TooNew && kind != TooNew {
		return // until a newer program starts
	}
	switch {
	case err != nil && e.read == nil:
		kind, why = Waiting, fmt.Sprintf("this box has no replica and waits for %s: %s; what the kernel has stays in force", e.origin.from(), why)
	case kind == CutOff:
		why = fmt.Sprintf("this box is cut off from %s: %s; what is in force stays, and nothing can be changed", e.origin.from(), why)
	}
	before := e.state.kind
	if before != kind {
		e.state.since = time.Now()
	}
	other := before != kind || kind == Waiting && why != e.state.why || !e.state.asked
	e.state.kind, e.state.why, e.state.asked = kind, why, true
	if kind != CutOff {
		e.state.heard, e.silent = time.Now(), silence{}
	}
	if other {
		e.signal()
		e.leaves.drop() // they ask another core box, or are told the state of this one
		if kind == Following {
			e.cfg.Log.Info("follows the fleet", "fleet", e.cfg.Fleet, "revision", e.read.Revision)
		} else {
			e.cfg.Log.Warn("does not follow the fleet", "fleet", e.cfg.Fleet, "state", kind, "why", why)
		}
	}
}

// noteUntold takes what came of telling the others of this box. That no answer came is the beat's to judge.
func (e *Engine) noteUntold(err error) {
	why := ""
	if err != nil && !NoAnswer(err) {
		why = "etcd does not take the report of this box, and others see an old one: " + e.away(err).Error()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if why != e.state.untold {
		e.state.untold = why
		e.signal()
	}
}

// isDenied reports whether etcd answers that this box may not ask.
func isDenied(err error) bool {
	code := codeOf(err)
	return code == codes.PermissionDenied || code == codes.Unauthenticated
}

// denied is the text for a refusal by etcd, with the next step.
func (e *Engine) denied(err error) string {
	return fmt.Sprintf("etcd refuses this box (%v): give the user that the certificate in --etcd-cert names a role that may read and write %s", err, e.prefix)
}

// State returns the state of this box as a member of its fleet.
func (e *Engine) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := State{Kind: e.state.kind, Why: e.state.why, Since: e.state.since, Of: e.state.of, Heard: e.state.heard, Asked: e.state.asked, Writer: e.turn.holder, Untold: e.state.untold}
	if s.Kind == Following && e.state.differs != "" {
		s.Kind, s.Why = Differs, e.state.differs
	} else if s.Kind == Following && e.state.shut != "" {
		s.Kind, s.Why, s.Since = KeyMissing, e.state.shut, e.state.shutSince
	}
	s.Foreign = e.foreignKeys()
	if e.read != nil {
		s.Revision, s.Epoch = e.read.Revision, e.read.Epoch
	}
	e.replica.mu.Lock()
	s.Replica = e.replica.err
	e.replica.mu.Unlock()
	return s
}

// Changes is closed with the next change of the State, or of what was followed.
func (e *Engine) Changes() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}
