package rest

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// codes are the HTTP statuses of the reasons.
var codes = map[string]int{
	wire.ReasonAlreadyExists: http.StatusConflict, wire.ReasonBadRequest: http.StatusBadRequest, wire.ReasonConflict: http.StatusConflict,
	wire.ReasonExpired: http.StatusGone, wire.ReasonForbidden: http.StatusForbidden, wire.ReasonInternalError: http.StatusInternalServerError,
	wire.ReasonInvalid: http.StatusUnprocessableEntity, wire.ReasonMethodNotAllowed: http.StatusMethodNotAllowed,
	wire.ReasonNotAcceptable: http.StatusNotAcceptable, wire.ReasonNotFound: http.StatusNotFound,
	wire.ReasonServiceUnavailable: http.StatusServiceUnavailable, wire.ReasonTimeout: http.StatusGatewayTimeout,
	wire.ReasonTooLarge: http.StatusRequestEntityTooLarge, wire.ReasonTooManyRequests: http.StatusTooManyRequests,
	wire.ReasonUnauthorized: http.StatusUnauthorized, wire.ReasonUnsupportedMediaType: http.StatusUnsupportedMediaType,
}

// statusError is an error that is answered as a meta/v1 Status.
type statusError struct {
	wire.Failure
	cause error // of an internal error
}

func (e *statusError) Unwrap() error { return e.cause }

// refusal returns the error of a reason. details are nil where Kubernetes has none.
func refusal(reason string, details *wire.FailureDetails, format string, args ...any) *statusError {
	e := &statusError{Failure: *wire.NewFailure(codes[reason], reason, fmt.Sprintf(format, args...))}
	e.Details = details
	return e
}

// retryAfter sets the seconds after which a client may try again.
func (e *statusError) retryAfter(seconds int) *statusError {
	if e.Details == nil {
		e.Details = &wire.FailureDetails{}
	}
	e.Details.RetryAfterSeconds = seconds
	return e
}

// success is the answer to a removal.
func success(k kind.Kind, name, uid string) *wire.Failure {
	return &wire.Failure{Kind: "Status", APIVersion: "v1", Status: "Success", Details: &wire.FailureDetails{Name: name, Group: k.Group, Kind: k.Plural, UID: uid}}
}

// detailsOf names an object as most errors do.
func detailsOf(k kind.Kind, name string) *wire.FailureDetails {
	return &wire.FailureDetails{Name: name, Group: k.Group, Kind: k.Plural}
}

func badRequest(format string, args ...any) *statusError {
	return refusal(wire.ReasonBadRequest, nil, format, args...)
}

// at adds the field that the answer is about, if its reason names one.
func (e *statusError) at(k kind.Kind, name string, why error) *statusError {
	if wrong, is := errors.AsType[*schema.TypeError](why); is {
		e.Details = detailsOf(k, name)
		e.Details.Causes = []wire.FailureCause{{Reason: "FieldValueTypeInvalid", Message: wrong.Text, Field: wrong.Field}}
	}
	return e
}

// noResource is the answer to a path where nothing is.
func noResource() *statusError {
	return refusal(wire.ReasonNotFound, &wire.FailureDetails{}, "the server could not find the requested resource")
}

func notFound(k kind.Kind, name string) *statusError {
	return refusal(wire.ReasonNotFound, detailsOf(k, name), "%s %q not found", k.GroupResource(), name)
}

func alreadyExists(k kind.Kind, name string) *statusError {
	return refusal(wire.ReasonAlreadyExists, detailsOf(k, name), "%s %q already exists", k.GroupResource(), name)
}

// conflict refuses a change that the state does not permit.
func conflict(k kind.Kind, name, why string) *statusError {
	return refusal(wire.ReasonConflict, detailsOf(k, name), "Operation cannot be fulfilled on %s %q: %s", k.GroupResource(), name, why)
}

// invalid refuses an object for its fields. The kind is named as it is in
// documents: Service, EndpointSlice.discovery.k8s.io.
func invalid(group, kindName, name string, errs object.Errors) *statusError {
	details := &wire.FailureDetails{Name: name, Group: group, Kind: kindName}
	for _, e := range object.Join(errs) {
		details.Causes = append(details.Causes, wire.FailureCause{Reason: string(e.Type), Message: e.Body(), Field: e.Field})
	}
	qualified := kindName
	if group != "" {
		qualified += "." + group
	}
	return refusal(wire.ReasonInvalid, details, "%s %q is invalid: %s", qualified, name, errs.Error())
}

func invalidObject(k kind.Kind, name string, errs object.Errors) *statusError {
	return invalid(k.Group, k.Name, name, errs)
}

func methodNotAllowed(method string) *statusError {
	return refusal(wire.ReasonMethodNotAllowed, &wire.FailureDetails{}, "the server does not allow this method on the requested resource: %s", method)
}

// notSupported refuses a verb that a kind does not have.
func notSupported(k kind.Kind, verb string) *statusError {
	return refusal(wire.ReasonMethodNotAllowed, detailsOf(k, ""), "%s is not supported on resources of kind %q", verb, k.GroupResource())
}

func notAcceptable(types ...string) *statusError {
	return refusal(wire.ReasonNotAcceptable, nil, "only the following media types are accepted: %s", strings.Join(types, ", "))
}

// unsupportedMedia refuses the form of a body.
func unsupportedMedia(types ...string) *statusError {
	return refusal(wire.ReasonUnsupportedMediaType, nil, "the body of the request was in an unknown format - accepted media types include: %s", strings.Join(types, ", "))
}

func expired(message string) *statusError { return refusal(wire.ReasonExpired, nil, "%s", message) }

// fromTheFuture refuses to read at a revision that is not there yet. client-go recognizes the
// cause.
func fromTheFuture(asked, current uint64) *statusError {
	details := &wire.FailureDetails{Causes: []wire.FailureCause{{Reason: "ResourceVersionTooLarge", Message: "Too large resource version"}}}
	return refusal(wire.ReasonTimeout, details, "Timeout: Too large resource version: %d, current: %d", asked, current).retryAfter(1)
}

func tooLarge(message string) *statusError {
	return refusal(wire.ReasonTooLarge, nil, "Request entity too large: %s", message)
}

func tooManyRequests(message string, retryAfter int) *statusError {
	return refusal(wire.ReasonTooManyRequests, nil, "%s", message).retryAfter(retryAfter)
}

func internalError(err error) *statusError {
	e := refusal(wire.ReasonInternalError, &wire.FailureDetails{Causes: []wire.FailureCause{{Message: err.Error()}}}, "Internal error occurred: %v", err)
	e.cause = err
	return e
}

func unavailable(message string, retryAfter int) *statusError {
	return refusal(wire.ReasonServiceUnavailable, nil, "%s", message).retryAfter(retryAfter)
}

// refused returns the answer to a request that no user may make.
func refused(k kind.Kind, name, why string) *statusError {
	return refusal(wire.ReasonForbidden, detailsOf(k, name), "%s %q is forbidden: %s", k.GroupResource(), name, why)
}
