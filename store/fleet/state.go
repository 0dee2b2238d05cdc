package fleet

import (
	"time"

	"svcctl.io/svcctl/store/engine"
)

// Kind is the state of a box in its fleet.
type Kind string

// The kinds of states.
const (
	Following Kind = "Following" // all is well
	CutOff    Kind = "CutOff"    // etcd does not answer
	Waiting   Kind = "Waiting"   // the box has no replica, and has not read the objects of its fleet yet
	Lagging   Kind = "Lagging"   // etcd answers, and commits do not arrive
	WentBack  Kind = "WentBack"  // etcd is older than the state in force, or has another history
	OtherOne  Kind = "OtherFleet"
	Emptied   Kind = "Emptied"  // etcd has no such fleet
	Damaged   Kind = "Damaged"  // the objects do not fit the digest
	Differs   Kind = "Differs"  // the box has other settings than its fleet
	TooNew    Kind = "TooNew"   // a newer version has written records that this one cannot read
	Namesake  Kind = "Namesake" // another box has the name
	// KeyMissing means that a Secret, or a key that boxes share, is sealed by a key that the box does not have.
	KeyMissing Kind = "KeyMissing"
)

// State is the state of a box as a member of its fleet.
type State struct {
	Kind Kind
	// Why has the reason and the next step; "" while all is well.
	Why   string
	Since time.Time
	// Revision is the revision of the newest commit that was followed; Of that of the newest in
	// etcd, as of the last answer.
	Revision, Of uint64
	Epoch        uint64
	// Answered is the time of etcd's last answer.
	Answered time.Time
	// Asked is set once etcd has answered since the start, or its time was up.
	Asked bool
	// Writer is the box that runs the controllers, "" when it is not known.
	Writer string
	// Replica is the error of writing the replica, nil if there is none.
	Replica error
	// Unreported is why etcd refuses the report of this box; "": it does not, or Kind is the reason.
	Unreported string
	// Foreign names the keys of objects that another program has written or removed in etcd; "": none. They are not followed.
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

// Follows reports whether the box follows the commits of etcd, so that it has their outcome.
func (s *State) Follows() bool {
	switch s.Kind {
	case Following, Differs, KeyMissing, Namesake:
		return true
	}
	return false
}

// state is the State of a box with its causes, under position.mu.
type state struct {
	State // without the fields of other parts
	// differs lists the settings that differ from the fleet's; "": they agree.
	differs string
	// unreadable names a Secret or shared key that cannot be opened, with the time; "": all can. blind is set when there is a
	// Secret among them.
	unreadable      string
	unreadableSince time.Time
	blind           bool
	silent          silence
}

// silence has the failures before the heartbeat has decided that the box is cut off, so that later calls fail at once. Any
// answer of the origin ends it.
type silence struct {
	read  error // why the last question was not answered
	write error // why the last commit was not
}

// refusal is why nothing may be committed; nil: it may.
func (s *state) refusal() error {
	switch {
	case s.Kind != Following && s.Kind != Lagging:
	case s.differs != "":
		return &engine.AwayError{Why: s.differs}
	case s.blind:
		return &engine.AwayError{Why: s.unreadable, Since: s.unreadableSince}
	default:
		return nil
	}
	return &engine.AwayError{Why: s.Why, Since: s.Since}
}
