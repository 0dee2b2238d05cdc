package wire

import "time"

// Trial has changes that are rolled back unless they are confirmed, or the files that are held since a
// rollback.
type Trial struct {
	// ID names it in writes that belong to it (the query parameter trial).
	ID string `json:"id"`
	// Began and Ends are in UTC; Ends is when it goes back, as far as the time of day can be told.
	Began time.Time `json:"began"`
	Ends  time.Time `json:"ends"`
	// Left is the time until then.
	Left Duration `json:"left"`
	User string   `json:"user,omitempty"` // who began it
	// CoversFiles is set when changes of files are part of the trial.
	CoversFiles bool `json:"coversFiles,omitempty"`
	// Objects and Files are what it has changed so far: "Service default/web", and paths. Of one that
	// went back they are what is held.
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
	// Last is the last change by a client before; 0 when the journal knows of none.
	Last    uint64    `json:"last,omitempty"`
	DryRun  bool      `json:"dryRun,omitempty"`
	Objects []Revived `json:"objects"`
}
