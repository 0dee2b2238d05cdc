package wire

import (
	"fmt"
	"net/http"
	"time"
)

// Fleet describes the relation of the box to its fleet.
type Fleet struct {
	Name string `json:"name"`
	// State is Following while all is well; otherwise Waiting, CutOff, Lagging, WentBack, OtherFleet, Emptied,
	// Damaged, Differs, TooNew, KeyMissing or Namesake, and Why has the reason and what to do.
	State string    `json:"state"`
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
	// Revision is the newest revision that this box has received. Newest is the revision in etcd's last response; the next field is the time of that
	// response.
	Revision uint64    `json:"revision"`
	Newest   uint64    `json:"newest"`
	Heard    time.Time `json:"heard"`
	// Writer is the box that runs the controllers for all; "" when it is not known.
	Writer string `json:"writer,omitempty"`
	// Core is the URL of the core box that a leaf follows; "" for a box that follows etcd.
	Core string `json:"core,omitempty"`
	// LostRaces counts the commits of this box that were repeated because another box had committed first.
	LostRaces uint64 `json:"lostRaces"`
	// Replica is why the replica on this box is not written; "" while it is.
	Replica string `json:"replica,omitempty"`
	// Boxes lists the boxes of the fleet by name; present only on request.
	Boxes []FleetBox `json:"boxes,omitempty"`
}

// FleetBox is the newest report of a box of a fleet about itself.
type FleetBox struct {
	Name    string `json:"name"`
	Zone    string `json:"zone,omitempty"`
	Version string `json:"version"`
	// State is OK, Behind (what the box accepted is not in its kernel yet), Failing, Away (it does not
	// report), or a state of Fleet.
	State string `json:"state"`
	// Accepted is the newest revision that the box has received, and Programmed the newest in its kernel.
	Accepted   uint64 `json:"accepted"`
	Programmed uint64 `json:"programmed"`
	Problems   int    `json:"problems"`
	Why        string `json:"why,omitempty"`
	// Since is the start of the State. For the State Away it is when the Node of the box became Unknown; it is absent before.
	Since time.Time `json:"since,omitzero"`
	// Core is the URL of the core box that a leaf follows; "" for a box that follows etcd.
	Core string `json:"core,omitempty"`
	// Rollout is new if the box has the versions of the current rollout, before if it has the earlier ones; "" without a rollout.
	Rollout string `json:"rollout,omitempty"`
}

// The states that only a FleetBox can have. Its other states are those of a Fleet.
const (
	BoxOK      = "OK"
	BoxBehind  = "Behind"
	BoxFailing = "Failing"
	BoxAway    = "Away"
)

// BoxKeyMissing is the state, of a Fleet and of a FleetBox, in which the box lacks the key by which a Secret is sealed.
const BoxKeyMissing = "KeyMissing"

// FleetSource is a source of a fleet: a directory of manifests that one box at a time reads for all boxes.
type FleetSource struct {
	Name string `json:"name"`
	// Reader is the box that last became the reader of the source. Reading is set while it reads the directory.
	Reader  string `json:"reader"`
	Reading bool   `json:"reading"`
	// Files is the number of files in force. Generation is the generation number of the content; 0 if it has none.
	Files      int    `json:"files"`
	Generation uint64 `json:"generation,omitempty"`
	// Since is the time at which Reader became the reader.
	Since time.Time `json:"since"`
}

// ForgottenSource is the last state of a source that was removed from the fleet.
type ForgottenSource struct {
	FleetSource
	// Objects counts the objects that its files had declared. They belong to clients of the API now.
	Objects int `json:"objects"`
}

// FleetFollowing is the state of a Fleet in normal operation. FleetWaiting is the state of a box that has not yet received its objects.
const (
	FleetFollowing = "Following"
	FleetWaiting   = "Waiting"
)

// Failure is a meta/v1 Status with status Failure: the body of every error.
type Failure struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Metadata   struct {
		Continue string `json:"continue,omitempty"` // goes on with a list whose revision is gone
	} `json:"metadata"`
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
	Reason  string `json:"reason,omitempty"`
	// Details are further details; nil if there are none.
	Details *FailureDetails `json:"details,omitempty"`
	Code    int             `json:"code,omitempty"` // the HTTP status
}

// FailureDetails is meta/v1 StatusDetails.
type FailureDetails struct {
	Name   string         `json:"name,omitempty"`
	Group  string         `json:"group,omitempty"`
	Kind   string         `json:"kind,omitempty"` // plural name of the resource, or the kind
	UID    string         `json:"uid,omitempty"`
	Causes []FailureCause `json:"causes,omitempty"`
	// RetryAfterSeconds is the time to wait before trying again; 0: unspecified.
	RetryAfterSeconds int `json:"retryAfterSeconds,omitempty"`
}

// FailureCause is meta/v1 StatusCause: one of several errors.
type FailureCause struct {
	Reason  string `json:"reason,omitempty"` // FieldValueInvalid, FieldManagerConflict
	Message string `json:"message,omitempty"`
	Field   string `json:"field,omitempty"` // spec.ports[0].port
}

// The reasons of a Failure (metav1.StatusReason).
const (
	ReasonAlreadyExists        = "AlreadyExists"
	ReasonBadRequest           = "BadRequest"
	ReasonConflict             = "Conflict"
	ReasonExpired              = "Expired"
	ReasonForbidden            = "Forbidden"
	ReasonInternalError        = "InternalError"
	ReasonInvalid              = "Invalid"
	ReasonMethodNotAllowed     = "MethodNotAllowed"
	ReasonNotAcceptable        = "NotAcceptable"
	ReasonNotFound             = "NotFound"
	ReasonServiceUnavailable   = "ServiceUnavailable"
	ReasonTimeout              = "Timeout"
	ReasonTooLarge             = "RequestEntityTooLarge"
	ReasonTooManyRequests      = "TooManyRequests"
	ReasonUnauthorized         = "Unauthorized"
	ReasonUnsupportedMediaType = "UnsupportedMediaType"
)

// NewFailure returns the Failure for an HTTP status code.
func NewFailure(code int, reason, message string) *Failure {
	return &Failure{
		Kind: "Status", APIVersion: "v1", Status: "Failure",
		Message: message, Reason: reason, Code: code,
	}
}

// BadRequest returns the Failure of parameters that are invalid.
func BadRequest(format string, args ...any) *Failure {
	return NewFailure(http.StatusBadRequest, ReasonBadRequest, fmt.Sprintf(format, args...))
}

// NotFound returns the Failure for a request about something that does not exist (404).
func NotFound(format string, args ...any) *Failure {
	return NewFailure(http.StatusNotFound, ReasonNotFound, fmt.Sprintf(format, args...))
}

// Conflict returns the Failure of a request that the state does not permit.
func Conflict(format string, args ...any) *Failure {
	return NewFailure(http.StatusConflict, ReasonConflict, fmt.Sprintf(format, args...))
}

// Unavailable returns the Failure of a request that cannot be served now.
func Unavailable(format string, args ...any) *Failure {
	return NewFailure(http.StatusServiceUnavailable, ReasonServiceUnavailable, fmt.Sprintf(format, args...))
}

// Error returns the message.
func (f *Failure) Error() string { return f.Message }

// Version is version.Info of Kubernetes. Major, Minor and the start of GitVersion name
// the Kubernetes release of the API: kubectl compares it with its own.
type Version struct {
	Major        string `json:"major"`
	Minor        string `json:"minor"`
	GitVersion   string `json:"gitVersion"` // a semantic version: v1.37.0+svcctl.0.1.0
	GitCommit    string `json:"gitCommit"`
	GitTreeState string `json:"gitTreeState"`
	BuildDate    string `json:"buildDate"` // RFC 3339
	GoVersion    string `json:"goVersion"`
	Compiler     string `json:"compiler"`
	Platform     string `json:"platform"` // linux/amd64
}
