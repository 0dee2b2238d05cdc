package rest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// The reasons of a Status (metav1.StatusReason).
const (
	reasonAlreadyExists    = "AlreadyExists"
	reasonBadRequest       = "BadRequest"
	reasonConflict         = "Conflict"
	reasonExpired          = "Expired"
	reasonForbidden        = "Forbidden"
	reasonInternal         = "InternalError"
	reasonInvalid          = "Invalid"
	reasonMethodNotAllowed = "MethodNotAllowed"
	reasonNotAcceptable    = "NotAcceptable"
	reasonNotFound         = "NotFound"
	reasonTimeout          = "Timeout"
	reasonTooLarge         = "RequestEntityTooLarge"
	reasonTooManyRequests  = "TooManyRequests"
	reasonUnauthorized     = "Unauthorized"
	reasonUnavailable      = "ServiceUnavailable"
	reasonUnsupportedMedia = "UnsupportedMediaType"
)

// statusError is an error that is answered as a meta/v1 Status.
type statusError struct {
	code       int
	reason     string
	message    string
	details    *statusDetails
	retryAfter int // seconds; 0 is none
	// continueToken goes on with a list whose revision is gone.
	continueToken string
	cause         error // of an internal error
}

func (e *statusError) Error() string { return e.message }
func (e *statusError) Unwrap() error { return e.cause }

// statusDetails is meta/v1 StatusDetails.
type statusDetails struct {
	Name              string        `json:"name,omitempty"`
	Group             string        `json:"group,omitempty"`
	Kind              string        `json:"kind,omitempty"`
	UID               string        `json:"uid,omitempty"`
	Causes            []statusCause `json:"causes,omitempty"`
	RetryAfterSeconds int           `json:"retryAfterSeconds,omitempty"`
}

// statusCause is meta/v1 StatusCause.
type statusCause struct {
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Field   string `json:"field,omitempty"`
}

// status is meta/v1 Status.
type status struct {
	object.TypeMeta
	Metadata struct {
		Continue string `json:"continue,omitempty"`
	} `json:"metadata"`
	Status  string         `json:"status"`
	Message string         `json:"message,omitempty"`
	Reason  string         `json:"reason,omitempty"`
	Details *statusDetails `json:"details,omitempty"`
	Code    int            `json:"code,omitempty"`
}

var statusType = object.TypeMeta{Kind: "Status", APIVersion: "v1"}

// status is the document that an error is answered with.
func (e *statusError) status() *status {
	s := &status{TypeMeta: statusType, Status: "Failure", Message: e.message, Reason: e.reason, Details: e.details, Code: e.code}
	s.Metadata.Continue = e.continueToken
	if e.retryAfter > 0 {
		details := statusDetails{}
		if e.details != nil {
			details = *e.details
		}
		details.RetryAfterSeconds = e.retryAfter
		s.Details = &details
	}
	return s
}

// success is the answer to a removal.
func success(k kind.Kind, name, uid string) *status {
	return &status{TypeMeta: statusType, Status: "Success", Details: &statusDetails{Name: name, Group: k.Group, Kind: k.Plural, UID: uid}}
}

// detailsOf names an object as most errors do.
func detailsOf(k kind.Kind, name string) *statusDetails {
	return &statusDetails{Name: name, Group: k.Group, Kind: k.Plural}
}

func badRequest(format string, args ...any) *statusError {
	return &statusError{code: http.StatusBadRequest, reason: reasonBadRequest, message: fmt.Sprintf(format, args...)}
}

// at adds the field that the answer is about, if its reason names one.
func (e *statusError) at(k kind.Kind, name string, why error) *statusError {
	if wrong, is := errors.AsType[*schema.TypeError](why); is {
		e.details = detailsOf(k, name)
		e.details.Causes = []statusCause{{Reason: "FieldValueTypeInvalid", Message: wrong.Text, Field: wrong.Field}}
	}
	return e
}

// noResource is the answer to a path where nothing is.
func noResource() *statusError {
	return &statusError{
		code: http.StatusNotFound, reason: reasonNotFound, message: "the server could not find the requested resource", details: &statusDetails{},
	}
}

func notFound(k kind.Kind, name string) *statusError {
	return &statusError{
		code: http.StatusNotFound, reason: reasonNotFound, details: detailsOf(k, name),
		message: fmt.Sprintf("%s %q not found", k.GroupResource(), name),
	}
}

func alreadyExists(k kind.Kind, name string) *statusError {
	return &statusError{
		code: http.StatusConflict, reason: reasonAlreadyExists, details: detailsOf(k, name),
		message: fmt.Sprintf("%s %q already exists", k.GroupResource(), name),
	}
}

// conflict is a refusal of a change that is right in itself.
func conflict(k kind.Kind, name, why string) *statusError {
	return &statusError{
		code: http.StatusConflict, reason: reasonConflict, details: detailsOf(k, name),
		message: fmt.Sprintf("Operation cannot be fulfilled on %s %q: %s", k.GroupResource(), name, why),
	}
}

// invalid is a refusal of an object for its fields. The kind is named as it is in
// documents: Service, EndpointSlice.discovery.k8s.io.
func invalid(group, kindName, name string, errs object.Errors) *statusError {
	details := &statusDetails{Name: name, Group: group, Kind: kindName}
	for _, e := range object.Join(errs) {
		details.Causes = append(details.Causes, statusCause{Reason: string(e.Type), Message: e.Body(), Field: e.Field})
	}
	qualified := kindName
	if group != "" {
		qualified += "." + group
	}
	return &statusError{
		code: http.StatusUnprocessableEntity, reason: reasonInvalid, details: details,
		message: fmt.Sprintf("%s %q is invalid: %s", qualified, name, errs.Error()),
	}
}

func invalidObject(k kind.Kind, name string, errs object.Errors) *statusError {
	return invalid(k.Group, k.Name, name, errs)
}

// unauthorized returns the answer to an unknown user.
func unauthorized() *statusError {
	return &statusError{code: http.StatusUnauthorized, reason: reasonUnauthorized, message: "Unauthorized"}
}

func methodNotAllowed(method string) *statusError {
	return &statusError{
		code: http.StatusMethodNotAllowed, reason: reasonMethodNotAllowed, details: &statusDetails{},
		message: fmt.Sprintf("the server does not allow this method on the requested resource: %s", method),
	}
}

// notSupported refuses a verb that a kind does not have.
func notSupported(k kind.Kind, verb string) *statusError {
	return &statusError{
		code: http.StatusMethodNotAllowed, reason: reasonMethodNotAllowed, details: detailsOf(k, ""),
		message: fmt.Sprintf("%s is not supported on resources of kind %q", verb, k.GroupResource()),
	}
}

func notAcceptable(types ...string) *statusError {
	return &statusError{
		code: http.StatusNotAcceptable, reason: reasonNotAcceptable,
		message: "only the following media types are accepted: " + strings.Join(types, ", "),
	}
}

// unsupportedMedia refuses the form of a body.
func unsupportedMedia(types ...string) *statusError {
	return &statusError{
		code: http.StatusUnsupportedMediaType, reason: reasonUnsupportedMedia,
		message: "the body of the request was in an unknown format - accepted media types include: " + strings.Join(slices.Clone(types), ", "),
	}
}

func expired(message string) *statusError {
	return &statusError{code: http.StatusGone, reason: reasonExpired, message: message}
}

// fromTheFuture refuses to read at a revision that is not there yet. client-go recognizes the
// cause.
func fromTheFuture(asked, current uint64) *statusError {
	return &statusError{
		code: http.StatusGatewayTimeout, reason: reasonTimeout, retryAfter: 1,
		message: fmt.Sprintf("Timeout: Too large resource version: %d, current: %d", asked, current),
		details: &statusDetails{Causes: []statusCause{{Reason: "ResourceVersionTooLarge", Message: "Too large resource version"}}},
	}
}

func tooLarge(message string) *statusError {
	return &statusError{code: http.StatusRequestEntityTooLarge, reason: reasonTooLarge, message: "Request entity too large: " + message}
}

func tooManyRequests(message string, retryAfter int) *statusError {
	return &statusError{code: http.StatusTooManyRequests, reason: reasonTooManyRequests, message: message, retryAfter: retryAfter}
}

func internalError(err error) *statusError {
	return &statusError{
		code: http.StatusInternalServerError, reason: reasonInternal, message: fmt.Sprintf("Internal error occurred: %v", err),
		details: &statusDetails{Causes: []statusCause{{Message: err.Error()}}}, cause: err,
	}
}

// unsettled returns the answer to a change whose outcome is unknown.
func unsettled(message string) *statusError {
	return &statusError{code: http.StatusGatewayTimeout, reason: reasonTimeout, message: message}
}

func unavailable(message string, retryAfter int) *statusError {
	return &statusError{code: http.StatusServiceUnavailable, reason: reasonUnavailable, message: message, retryAfter: retryAfter}
}

// refused returns the answer to a request that no user may make.
func refused(k kind.Kind, name, why string) *statusError {
	return &statusError{
		code: http.StatusForbidden, reason: reasonForbidden, details: detailsOf(k, name),
		message: fmt.Sprintf("%s %q is forbidden: %s", k.GroupResource(), name, why),
	}
}
