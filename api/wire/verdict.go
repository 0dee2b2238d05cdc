package wire

import "time"

// Verdict is the answer to "do the Services answer their clients", which all of Status.Problems lead to.
type Verdict struct {
	// Text is the answer in one line: "2 of 5 Services do not answer; 1 has a warning".
	Text string `json:"text"`
	// Services counts all Services. Each is in one state: one of Settling, or counted by one of these.
	Services int `json:"services"`
	Fails    int `json:"fails"`   // not Ready, by an error
	Stale    int `json:"stale"`   // Ready in an earlier version: an error keeps the newest one from being in force
	Idle     int `json:"idle"`    // not Ready on purpose: without endpoints, as is written
	Warning  int `json:"warning"` // Ready, with a warning
	Answers  int `json:"answers"` // Ready, without a problem
	// Unchecked counts the Services that have endpoints and no health check.
	Unchecked int `json:"unchecked"`
	// Groups are the problems by cause, the worst first.
	Groups []ProblemGroup `json:"groups"`
	// Settling are Services, "namespace/name", that came a moment ago and wait for endpoints: they are not Ready, and
	// no problem yet.
	Settling []string `json:"settling,omitempty"`
}

// The states of Services.
const (
	ServiceAnswers  = "answers"
	ServiceWarning  = "warning"
	ServiceStale    = "stale"
	ServiceFails    = "fails"
	ServiceIdle     = "idle"
	ServiceSettling = "settling"
)

// ProblemGroup is all problems with one cause.
type ProblemGroup struct {
	Severity string `json:"severity"` // of the worst of them
	Reason   string `json:"reason"`   // of the worst of them
	Text     string `json:"text"`
	// Next is the next step, a command in most cases; "": see Text.
	Next string `json:"next,omitempty"`
	// Place is the file and line that declare the object: "web.yaml:7".
	Place string `json:"place,omitempty"`
	// Since is when the oldest of them came up, as far as this process has seen it.
	Since time.Time `json:"since,omitzero"`
	// Services are the first of the Services that it is about, "namespace/name", those that fail first, and Concerned
	// counts all of them.
	Services  []string `json:"services,omitempty"`
	Concerned int      `json:"concerned,omitempty"`
	// Problems counts the problems, and Details are the first of the others in words.
	Problems int      `json:"problems"`
	Details  []string `json:"details,omitempty"`
}

// The types of the conditions of a Service.
const (
	ConditionReady      = "Ready"      // every port and address that was asked for serves clients
	ConditionProgrammed = "Programmed" // the newest version is in the kernel of this box
)
