package wire

import (
	"fmt"
	"net/http"
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
	Kind   string         `json:"kind,omitempty"` // the plural, or the kind
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

// NotFound returns the Failure of a request for a thing that is not there.
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
