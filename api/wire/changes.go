package wire

import "time"

// Trial has changes that are rolled back unless they are confirmed, or the files that are held since a
// rollback.
type Trial struct {
	// ID names it in writes that belong to it (the query parameter trial).
	ID string `json:"id"`
	// Began and Ends are in UTC; Ends is when it is undone, by the time of day at the moment.
	Began time.Time `json:"began"`
	Ends  time.Time `json:"ends"`
	// Left is the time until then.
	Left Duration `json:"left"`
	User string   `json:"user,omitempty"` // that began it
	// CoversFiles is set when changes of files are part of the trial.
	CoversFiles bool `json:"coversFiles,omitempty"`
	// Objects and Files are what it has changed so far: "Service default/web", and paths. Of one that
	// was undone they are those that are held.
	Objects []string `json:"objects,omitempty"`
	Files   []string `json:"files,omitempty"`
	// WentBack is the time at which it was rolled back; nil while it waits to be confirmed.
	WentBack *time.Time `json:"wentBack,omitempty"`
}

// Pending reports whether the trial waits to be confirmed.
func (t *Trial) Pending() bool { return t != nil && t.WentBack == nil }

// Revived reports the outcome for an object that was to be as it was.
type Revived struct {
	Object string `json:"object"` // "Service default/web"
	// Did is created, changed, deleted, left (it belongs to a file) or conflict (another one has a value of it).
	Did string `json:"did"`
	Why string `json:"why,omitempty"`
}

// RolledBack lists the effects of a rollback, done or only tried.
type RolledBack struct {
	// Revision is the revision whose state the objects have now.
	Revision uint64 `json:"revision"`
	// Last is the last change by a client before; 0 when the journal has none.
	Last    uint64    `json:"last,omitempty"`
	DryRun  bool      `json:"dryRun,omitempty"`
	Objects []Revived `json:"objects"`
}

// Rollout has changes that some boxes of a fleet program before all others do. It has more than 15 fields: one for each property
// that clients show.
type Rollout struct {
	// ID names it in writes that belong to it (the query parameter rollout).
	ID string `json:"id"`
	// Phase is Gathering (its changes are being written), Programming (not all boxes of the step have them in the kernel), Baking (all
	// have, and are watched), Stopped (it waits for resume or undo; Why has the reason), Done or Undone (Why has the reason, if that was automatic). Pending is false of the last
	// two.
	Phase   string `json:"phase"`
	Pending bool   `json:"pending"`
	// Began is the time of the request and User its author. Since is the start of the present phase; Left is the time left of it, if
	// it ends by time.
	Began time.Time `json:"began"`
	User  string    `json:"user,omitempty"`
	Since time.Time `json:"since"`
	Left  Duration  `json:"left,omitempty"`
	Why   string    `json:"why,omitempty"`
	// Steps are shares of the boxes, 25%, or names of boxes with + between them; Step is the present one, from 0.
	Steps []string `json:"steps"`
	Step  int      `json:"step"`
	// Within is the time that the boxes of a step have to program it; Bake is how long they are observed afterwards.
	Within Duration `json:"within"`
	Bake   Duration `json:"bake"`
	// OnFailure is the action when a step fails: OnFailureStop or OnFailureUndo.
	OnFailure string `json:"onFailure"`
	// Here reports whether the box that was asked programs the new versions.
	Here bool `json:"here"`
	// Objects are the objects that it changes, as "Service default/web", and Boxes the boxes. Both are present on request only, while
	// the rollout is under way.
	Objects []string     `json:"objects,omitempty"`
	Boxes   []RolloutBox `json:"boxes,omitempty"`
	// BoxesUnknown is why the boxes could not be asked for.
	BoxesUnknown string `json:"boxesUnknown,omitempty"`
}

// RolloutBox is a box during a rollout.
type RolloutBox struct {
	Name string `json:"name"`
	// New reports whether it is to program the new versions, Programmed whether it has.
	New        bool `json:"new"`
	Programmed bool `json:"programmed"`
	// State is that of FleetBox.
	State string `json:"state"`
}

// What can be done with a rollout.
const (
	RolloutStart  = "start"
	RolloutPause  = "pause"
	RolloutResume = "resume"
	RolloutUndo   = "undo"
)

// RolloutMoves lists them.
func RolloutMoves() []string { return []string{RolloutStart, RolloutPause, RolloutResume, RolloutUndo} }

// What a rollout does where a step goes wrong.
const (
	OnFailureStop = "stop"
	OnFailureUndo = "undo"
)

// The phases of a Rollout that clients wait for.
const (
	RolloutGathering = "Gathering"
	RolloutStopped   = "Stopped"
	RolloutDone      = "Done"
	RolloutUndone    = "Undone"
)

// ServiceRollout is the state of a rollout for one Service and its endpoints on this box.
type ServiceRollout struct {
	ID    string `json:"id"`
	Phase string `json:"phase"`
	// New reports whether they are those of the rollout; else they are those before.
	New bool `json:"new"`
	// Step and Of are the present step and their number.
	Step int    `json:"step"`
	Of   int    `json:"of"`
	Why  string `json:"why,omitempty"`
}

// What may become of an object that is applied.
const (
	Created    = "created"
	Configured = "configured"
	Unchanged  = "unchanged"
	Refused    = "refused"
)

// Applied is the result of applying one object of a batch: a line of the answer to
// /svcctl/v1/apply.
type Applied struct {
	Result string `json:"result"` // created, configured, unchanged, removed or refused
	// Object is the stored object, or with a dry run the object that would be stored;
	// absent if it is refused.
	Object map[string]any `json:"object,omitempty"`
	// Status is the reason of a refusal.
	Status   *Failure `json:"status,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}
