package wire

import "time"

// Trial describes changes that are rolled back unless they are confirmed, or, after the rollback, the files
// that are held until they are changed or confirmed.
type Trial struct {
	// ID names it in writes that belong to it (the query parameter trial).
	ID string `json:"id"`
	// Began and Ends are in UTC. Ends is the time of the rollback by the present time of day.
	Began time.Time `json:"began"`
	Ends  time.Time `json:"ends"`
	// Left is the time until Ends.
	Left Duration `json:"left"`
	User string   `json:"user,omitempty"` // author of the trial
	// CoversFiles is set when changes of files are part of the trial.
	CoversFiles bool `json:"coversFiles,omitempty"`
	// Objects ("Service default/web") and Files (paths) are what the trial has changed so far. After a
	// rollback they are those that are held.
	Objects []string `json:"objects,omitempty"`
	Files   []string `json:"files,omitempty"`
	// WentBack is the time at which it was rolled back; nil while it waits to be confirmed.
	WentBack *time.Time `json:"wentBack,omitempty"`
}

// Pending reports whether the trial waits to be confirmed.
func (t *Trial) Pending() bool { return t != nil && t.WentBack == nil }

// Revived is the outcome of a rollback for one object.
type Revived struct {
	Object string `json:"object"` // "Service default/web"
	// Did is created, changed, deleted, left (it belongs to a file) or conflict (another object holds one of its addresses or ports).
	Did string `json:"did"`
	Why string `json:"why,omitempty"`
}

// RolledBack has the outcomes of a rollback, or of a dry run of one.
type RolledBack struct {
	// Revision is the revision whose state the objects have now.
	Revision uint64 `json:"revision"`
	// Last is the revision of the last change by a client before the rollback; 0 when the journal has none.
	Last    uint64    `json:"last,omitempty"`
	DryRun  bool      `json:"dryRun,omitempty"`
	Objects []Revived `json:"objects"`
}

// Rollout has changes that some boxes of a fleet program before all others do. It has more than 15 fields: one for each property
// that clients show.
type Rollout struct {
	// ID names it in writes that belong to it (the query parameter rollout).
	ID string `json:"id"`
	// Phase is Gathering (its changes are being written), Programming (not all boxes of the step have them in the kernel yet), Baking (all
	// have them, and are observed), Stopped (it waits for resume or undo; Why has the reason), Done, or Undone (Why has the reason, if that
	// was automatic). Pending is false in Done and Undone.
	Phase   string `json:"phase"`
	Pending bool   `json:"pending"`
	// Began is the time of the request and User its author. Since is the start of the present phase, and Left the time until its end,
	// if that is at a fixed time.
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
	// BoxesUnknown is the reason why Boxes could not be determined.
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

// The moves of a rollout, which clients request.
const (
	RolloutStart  = "start"
	RolloutPause  = "pause"
	RolloutResume = "resume"
	RolloutUndo   = "undo"
)

// RolloutMoves returns all moves of a rollout.
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
	// New reports whether this box serves the versions of the rollout; else it serves those before it.
	New bool `json:"new"`
	// Step is the present step, from 1, and Of the number of steps.
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

// KernelPlan lists the changes of objects and of the kernel: the answer to POST /svcctl/v1/plan.
type KernelPlan struct {
	// Revision is the revision of the objects that the plan begins with.
	Revision uint64 `json:"revision"`
	// Objects has the objects that would change, or would be refused.
	Objects []PlannedObject `json:"objects"`
	// Services has the changes in words, by Service.
	Services []PlannedService `json:"services"`
	// Tables has the changes in nft's terms, by family; empty: nothing changes in the kernel.
	Tables []PlannedTable `json:"tables"`
	// Problems has the problems that the Services would have and do not have now.
	Problems []Problem `json:"problems,omitempty"`
	// Undecided has sentences about what depends on more than the objects, such as health checks that were not made yet.
	Undecided []string `json:"undecided,omitempty"`
}

// The results of planned objects, in addition to Created, Configured and Refused.
const (
	// Removed: the object is removed. Applying does so if the object was being deleted and the write removed its last finalizer.
	Removed = "removed"
	// Held: no file declares the object any more, and it stays until `svcctl confirm --removals`.
	Held = "held"
)

// PlanRemoval is an object that the plan removes.
type PlanRemoval struct {
	// Path is the path of the object in the API, "/api/v1/namespaces/default/services/web".
	Path string `json:"path"`
	UID  string `json:"uid,omitempty"` // the UID that the object must have; "": any
}

// PlannedObject is an object that would change, or would be refused.
type PlannedObject struct {
	Object string `json:"object"` // "Service default/web"
	// Did is created, configured, removed, held or refused.
	Did string `json:"did"`
	// Values lists the values that it would get: "cluster IP 10.96.0.7", "node port 30123 (http)".
	Values []string `json:"values,omitempty"`
	// Message is the reason of a refused or held object, with file and line where a file declares it.
	Message string `json:"message,omitempty"`
	// Document is the position of a refused object among those that were sent, from 1, and Status the whole refusal;
	// 0 and nil if a file declares the object.
	Document int      `json:"document,omitempty"`
	Status   *Failure `json:"status,omitempty"`
}

// PlannedService has the changes of a Service.
type PlannedService struct {
	Service string          `json:"service"` // "namespace/name"
	Changes []PlannedChange `json:"changes"`
}

// The values of PlannedChange.Of.
const (
	OfFrontend = "frontend"
	OfEndpoint = "endpoint"
	OfPort     = "port"
)

// The values of PlannedChange.Did: what happens to the frontend, endpoint or port.
const (
	Begins  = "begins"
	Ends    = "ends"
	Changes = "changes"
)

// PlannedChange is one change of a Service.
type PlannedChange struct {
	Did string `json:"did"` // begins, ends or changes
	Of  string `json:"of"`  // frontend, endpoint or port
	// Port is the name of the Service's port, "" if it has none; Protocol and Family are those of the port.
	Port     string `json:"port,omitempty"`
	Protocol string `json:"protocol"`
	Family   string `json:"family"`
	// Name is the address and port of a frontend or endpoint; of a node port the port alone.
	Name string `json:"name,omitempty"`
	// What names the aspect that changes, From and To are its values.
	What string `json:"what,omitempty"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// What happens to a table, set or chain as a whole.
const (
	Added   = "added"
	Deleted = "deleted"
	Changed = "changed"
)

// PlannedTable has the changes of the table of one family.
type PlannedTable struct {
	Family string `json:"family"` // ip or ip6
	// Did is added or deleted, or empty: the table stays.
	Did    string         `json:"did,omitempty"`
	Sets   []PlannedSet   `json:"sets"`
	Chains []PlannedChain `json:"chains,omitempty"`
	// Others are counters and ct timeouts.
	Others []PlannedChain `json:"others,omitempty"`
}

// PlannedSet has the elements of a set or map that change, as nft writes them.
type PlannedSet struct {
	Name string `json:"name"`
	// Did is added or deleted, with all elements, or empty: the set stays.
	Did     string   `json:"did,omitempty"`
	Added   []string `json:"added,omitempty"`
	Removed []string `json:"removed,omitempty"`
	// Changed are keys that stay and get other data.
	Changed []ElementChange `json:"changed,omitempty"`
	// Forgotten lists endpoints whose remembered clients (session affinity) are removed. Capped is the longest time for
	// which clients stay remembered afterwards.
	Forgotten []string `json:"forgotten,omitempty"`
	Capped    Duration `json:"capped,omitempty"`
}

// ElementChange is an element before and after.
type ElementChange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// PlannedChain is a chain, with its rules as they would be, or a counter or ct timeout, which have none.
type PlannedChain struct {
	Name  string   `json:"name"`
	Did   string   `json:"did"` // added, deleted or changed
	Rules []string `json:"rules,omitempty"`
}

// Changes reports whether anything would change, in the kernel or among the objects.
func (p *KernelPlan) Changes() bool {
	if len(p.Tables) > 0 {
		return true
	}
	for i := range p.Objects {
		if did := p.Objects[i].Did; did != Refused && did != Held {
			return true
		}
	}
	return false
}

// Refused counts the objects that would be refused.
func (p *KernelPlan) Refused() (n int) {
	for i := range p.Objects {
		if p.Objects[i].Did == Refused {
			n++
		}
	}
	return n
}

// PlanFile is a file that a plan reads instead of the one of that name in a watched directory: a line of JSON in the body of
// /svcctl/v1/plan?directory=DIR.
type PlanFile struct {
	Path string `json:"path"` // below the directory
	Data []byte `json:"data"` // base64
}
