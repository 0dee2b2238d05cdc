package wire

import "time"

// Rollout has changes that some boxes of a fleet program before all others do. It has more than 15 fields: one for each that clients
// are told.
type Rollout struct {
	// ID names it in writes that belong to it (the query parameter rollout).
	ID string `json:"id"`
	// Phase is Gathering (its changes are being written), Programming (not all boxes of the step have them in the kernel), Baking (all
	// have, and are watched), Stopped (it waits for resume or undo; Why says what happened), Done or Undone (Why says why, if that was by itself). Pending is false of the last
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
