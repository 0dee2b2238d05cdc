package wire

// Failure is a meta/v1 Status with status Failure, which every error is answered with.
type Failure struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   struct{} `json:"metadata"`
	Status     string   `json:"status"`
	Message    string   `json:"message"`
	Reason     string   `json:"reason"`
	Code       int      `json:"code"` // the HTTP status
}

// The reasons of a Failure (metav1.StatusReason).
const (
	ReasonBadRequest         = "BadRequest"
	ReasonForbidden          = "Forbidden"
	ReasonNotFound           = "NotFound"
	ReasonMethodNotAllowed   = "MethodNotAllowed"
	ReasonInternalError      = "InternalError"
	ReasonServiceUnavailable = "ServiceUnavailable"
	ReasonTimeout            = "Timeout"
)

// NewFailure is the Failure that goes with an HTTP status code.
func NewFailure(code int, reason, message string) *Failure {
	return &Failure{
		Kind: "Status", APIVersion: "v1", Status: "Failure",
		Message: message, Reason: reason, Code: code,
	}
}

// Error is the message, for people.
func (f *Failure) Error() string { return f.Message }

// Version is version.Info of Kubernetes. Major, Minor and the start of GitVersion
// name the Kubernetes release whose API is spoken: kubectl compares it with its own.
type Version struct {
	Major        string `json:"major"`
	Minor        string `json:"minor"`
	GitVersion   string `json:"gitVersion"` // a semantic version: v1.36.0+svcctl.0.1.0
	GitCommit    string `json:"gitCommit"`
	GitTreeState string `json:"gitTreeState"`
	BuildDate    string `json:"buildDate"` // RFC 3339
	GoVersion    string `json:"goVersion"`
	Compiler     string `json:"compiler"`
	Platform     string `json:"platform"` // linux/amd64
}
