package wire

import "time"

// Trial describes a set of changes that are rolled back unless they are confirmed in time. After the rollback it describes the files that stay out of
// force until they are changed or confirmed.
type Trial struct {
	// ID identifies the trial. Writes that belong to it pass the ID in the query parameter trial.
	ID string `json:"id"`
	// Began is the start of the trial, and Ends the time at which it is rolled back, in UTC. Ends is computed from Left and the present time of day.
	Began time.Time `json:"began"`
	Ends  time.Time `json:"ends"`
	// Left is the time until Ends.
	Left Duration `json:"left"`
	User string   `json:"user,omitempty"` // author of the trial
	// CoversFiles is set when changes of files are part of the trial.
	CoversFiles bool `json:"coversFiles,omitempty"`
	// Objects (such as "Service default/web") and Files (paths) are the changes of the trial so far. After a rollback they are the ones that are held
	// back.
	Objects []string `json:"objects,omitempty"`
	Files   []string `json:"files,omitempty"`
	// WentBack is the time of the rollback; nil if there was none.
	WentBack *time.Time `json:"wentBack,omitempty"`
}

// Pending reports whether the trial exists and has not been rolled back.
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
	// Revision is the earlier revision to which the objects were restored.
	Revision uint64 `json:"revision"`
	// Last is the revision of the last change by a client before the rollback; 0 when the journal has none.
	Last    uint64    `json:"last,omitempty"`
	DryRun  bool      `json:"dryRun,omitempty"`
	Objects []Revived `json:"objects"`
}

// Rollout describes changes that the boxes of a fleet program in steps, some boxes before the others. It has more than 15 fields: one for each
// property that clients show.
type Rollout struct {
	// ID identifies the rollout. Writes that belong to it pass the ID in the query parameter rollout.
	ID string `json:"id"`
	// Phase is Gathering (its changes are being written), Programming (not all boxes of the step have them in the kernel yet), Baking (all
	// have them, and are observed), Stopped (it waits for resume or undo; Why has the reason), Done, or Undone (Why has the reason, if that
	// was automatic). Pending is false in Done and Undone.
	Phase   string `json:"phase"`
	Pending bool   `json:"pending"`
	// Began is when the rollout was requested, and User by which user. Since is the start of the present phase. Left is the time until the end of the
	// phase, if that is fixed.
	Began time.Time `json:"began"`
	User  string    `json:"user,omitempty"`
	Since time.Time `json:"since"`
	Left  Duration  `json:"left,omitempty"`
	Why   string    `json:"why,omitempty"`
	// Steps lists the steps. Each is a share of the boxes, such as 25%, or names of boxes joined by +. Step is the index of the present step, from 0.
	Steps []string `json:"steps"`
	Step  int      `json:"step"`
	// Within bounds the time in which the boxes of a step must program the changes. Bake is how long the boxes are observed afterwards.
	Within Duration `json:"within"`
	Bake   Duration `json:"bake"`
	// OnFailure is the action when a step fails: OnFailureStop or OnFailureUndo.
	OnFailure string `json:"onFailure"`
	// Here reports whether the box that was asked programs the new versions.
	Here bool `json:"here"`
	// Objects lists the changed objects, such as "Service default/web", and Boxes the boxes of the fleet. Both are present only on request and while
	// the rollout is pending.
	Objects []string     `json:"objects,omitempty"`
	Boxes   []RolloutBox `json:"boxes,omitempty"`
	// BoxesUnknown is the reason why Boxes could not be determined.
	BoxesUnknown string `json:"boxesUnknown,omitempty"`
}

// RolloutBox is a box during a rollout.
type RolloutBox struct {
	Name string `json:"name"`
	// New reports whether the box should program the new versions, and Programmed whether it has done so.
	New        bool `json:"new"`
	Programmed bool `json:"programmed"`
	// State is the state of the box, as in FleetBox.
	State string `json:"state"`
}

// The actions on a rollout that clients can request.
const (
	RolloutStart  = "start"
	RolloutPause  = "pause"
	RolloutResume = "resume"
	RolloutUndo   = "undo"
)

// RolloutMoves returns all actions on a rollout.
func RolloutMoves() []string { return []string{RolloutStart, RolloutPause, RolloutResume, RolloutUndo} }

// The values of Rollout.OnFailure: what happens when a step fails.
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
	// New reports whether this box serves the new versions of the rollout rather than the versions before it.
	New bool `json:"new"`
	// Step is the present step, from 1, and Of the number of steps.
	Step int    `json:"step"`
	Of   int    `json:"of"`
	Why  string `json:"why,omitempty"`
}

// The results of applying an object.
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

// KernelPlan lists changes of objects and of the kernel that have not been made. It is the response of POST /svcctl/v1/plan.
type KernelPlan struct {
	// Revision is the revision of the objects that the plan begins with.
	Revision uint64 `json:"revision"`
	// Objects has the objects that would change, or would be refused.
	Objects []PlannedObject `json:"objects"`
	// Services describes the changes of each Service, independently of nftables.
	Services []PlannedService `json:"services"`
	// Tables lists the changes of nftables tables, one for each family; empty if nothing changes in the kernel.
	Tables []PlannedTable `json:"tables"`
	// Problems lists the problems of Services that would be new.
	Problems []Problem `json:"problems,omitempty"`
	// Undecided has sentences about results that depend on more than the objects, such as health checks that have not run yet.
	Undecided []string `json:"undecided,omitempty"`
}

// The results of planned objects, in addition to Created, Configured and Refused.
const (
	// Removed means that the object is removed. The result of an apply is Removed if the object was being deleted and the write removed its last
	// finalizer.
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
	// Values lists the values that would be allocated to the object: "cluster IP 10.96.0.7", "node port 30123 (http)".
	Values []string `json:"values,omitempty"`
	// Message is the reason of a refused or held object, with file and line where a file declares it.
	Message string `json:"message,omitempty"`
	// Document is the position of a refused object among the objects of the request, from 1. Status is its whole error. They are 0 and nil if a file
	// declares the object.
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
	// Port is the name of the Service port, "" if it has none. Protocol and Family are its protocol and IP family.
	Port     string `json:"port,omitempty"`
	Protocol string `json:"protocol"`
	Family   string `json:"family"`
	// Name is the address and port of a frontend or endpoint; of a node port the port alone.
	Name string `json:"name,omitempty"`
	// What names the property that changes. From and To are its old and new values.
	What string `json:"what,omitempty"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// The values of Did for a table, set or chain.
const (
	Added   = "added"
	Deleted = "deleted"
	Changed = "changed"
)

// PlannedTable has the changes of the table of one family.
type PlannedTable struct {
	Family string `json:"family"` // ip or ip6
	// Did is added or deleted for a whole table; empty if the table already exists and stays.
	Did    string         `json:"did,omitempty"`
	Sets   []PlannedSet   `json:"sets"`
	Chains []PlannedChain `json:"chains,omitempty"`
	// Others lists changed counters and ct timeouts.
	Others []PlannedChain `json:"others,omitempty"`
}

// PlannedSet lists the changed elements of an nftables set or map, in the syntax of nft.
type PlannedSet struct {
	Name string `json:"name"`
	// Did is added or deleted for a whole set, with all its elements; empty if the set already exists and stays.
	Did     string   `json:"did,omitempty"`
	Added   []string `json:"added,omitempty"`
	Removed []string `json:"removed,omitempty"`
	// Changed lists map elements with the same key and new data.
	Changed []ElementChange `json:"changed,omitempty"`
	// Forgotten lists the endpoints that lose their session affinity entries. Capped is a new, shorter maximum timeout of the remaining entries; 0 if
	// that does not change.
	Forgotten []string `json:"forgotten,omitempty"`
	Capped    Duration `json:"capped,omitempty"`
}

// ElementChange is a changed map element, before and after.
type ElementChange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// PlannedChain is a changed chain with its new rules, or a changed counter or ct timeout without rules.
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

// PlanFile is a file that a plan uses in place of the file with the same path in a watched directory. The body of /svcctl/v1/plan?directory=DIR has
// one per line, in JSON.
type PlanFile struct {
	Path string `json:"path"` // path relative to the watched directory
	Data []byte `json:"data"` // content of the file; base64 in JSON
}
