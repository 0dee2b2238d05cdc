package rest

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// Conditions computes the conditions of Services, which are not stored. An object can therefore have different conditions with the same
// resourceVersion. Watches send the object again when its conditions change.
type Conditions interface {
	// Of returns the conditions of a stored Service. settled is false while this version of the Service is not in the kernel.
	Of(*object.Service) (conditions []object.Condition, settled bool)
	// Since returns the keys, "namespace/name", of the Services with changed conditions since turn, and the newest turn. A turn is a number that
	// counts these changes. The last result is false if changes since turn are no longer recorded.
	Since(turn uint64) (keys []string, newest uint64, known bool)
	// Changed returns a channel that is closed when conditions may differ from those at the call.
	Changed() <-chan struct{}
}

// servicesOf shows Services with their conditions.
func servicesOf(plain stored, by Conditions) adapted {
	show := func(svc *object.Service) object.Object {
		conditions, _ := by.Of(svc)
		return withConditions(svc, conditions)
	}
	return adapt(plain, func() func(*object.Service) object.Object { return show })
}

// withConditions returns a Service with the computed conditions. They replace stored conditions of the same types.
func withConditions(svc *object.Service, computed []object.Condition) *object.Service {
	c := *svc
	c.Status.Conditions = slices.Concat(computed, slices.DeleteFunc(slices.Clone(svc.Status.Conditions), func(stored object.Condition) bool {
		return slices.ContainsFunc(computed, func(c object.Condition) bool { return c.Type == stored.Type })
	}))
	return &c
}

// conditionNews delivers changes of conditions to one watch of Services.
type conditionNews struct {
	by      Conditions
	turn    uint64
	pending map[viewKey]struct{} // Services sent before the conditions of their version were final
}

// recently is the age below which a change of a condition makes a new watch send the Service again, because the client's list may be older than the
// change.
const recently = time.Minute

// newsOf returns the conditionNews of a watch; nil if the watch does not show conditions of Services.
func (l *watchSession) newsOf() *conditionNews {
	by := l.server.conditions
	if by == nil || l.request.kind.Name != object.KindService || l.request.form.shape != whole {
		return nil
	}
	n := &conditionNews{by: by, pending: map[viewKey]struct{}{}}
	_, n.turn, _ = by.Since(0)
	return n
}

// catchUp marks Services to be sent if their conditions may have changed between the client's list and the start of the watch.
func (n *conditionNews) catchUp(l *watchSession) {
	if n == nil {
		return
	}
	objects, _, err := l.server.store.List(object.KindService, l.request.namespace, 0)
	if err != nil {
		return
	}
	for _, o := range objects {
		if !l.options.selects(o) {
			continue
		}
		conditions, settled := n.by.Of(o.(*object.Service))
		fresh := slices.ContainsFunc(conditions, func(c object.Condition) bool { return l.server.now().Sub(c.LastTransitionTime) < recently })
		if !settled || fresh {
			n.pending[viewKey{o.GetMeta().Namespace, o.GetMeta().Name}] = struct{}{}
		}
	}
}

// seen records that a Service was sent. If its conditions may still change for that version, the Service becomes pending; otherwise it no longer is.
func (n *conditionNews) seen(o object.Object) {
	if svc, is := o.(*object.Service); n != nil && is {
		key := viewKey{svc.Metadata.Namespace, svc.Metadata.Name}
		if _, settled := n.by.Of(svc); settled {
			delete(n.pending, key)
		} else {
			n.pending[key] = struct{}{}
		}
	}
}

// changed returns a channel that is closed when conditions change. It returns nil, a channel that blocks forever, if n is nil.
func (n *conditionNews) changed() <-chan struct{} {
	if n == nil {
		return nil
	}
	return n.by.Changed()
}

// send sends the Services with changed conditions. It skips a Service with a version that is newer than the revision of the watch, because the event
// of that version will follow. The events have the resourceVersion of the stored object, which can be lower than that of earlier events. A bookmark
// follows them, so that the client does not resume at that resourceVersion.
func (n *conditionNews) send(l *watchSession) error {
	if n == nil {
		return nil
	}
	sent := false
	keys, turn, known := n.by.Since(n.turn)
	n.turn = turn
	about := map[viewKey]struct{}{}
	maps.Copy(about, n.pending)
	for _, key := range keys {
		namespace, name, _ := strings.Cut(key, "/")
		about[viewKey{namespace, name}] = struct{}{}
	}
	if !known {
		objects, _, err := l.server.store.ListPacked(object.KindService, l.request.namespace, 0)
		if err != nil {
			return nil // the next change finds them
		}
		for _, o := range objects {
			about[viewKey{o.GetMeta().Namespace, o.GetMeta().Name}] = struct{}{}
		}
	}
	for key := range about {
		o, _ := l.server.store.Get(object.Ref{Kind: object.KindService, Namespace: key.namespace, Name: key.name})
		svc, is := o.(*object.Service)
		if !is {
			delete(n.pending, key)
			continue
		}
		version, _ := strconv.ParseUint(svc.Metadata.ResourceVersion, 10, 64)
		if l.request.namespace != "" && l.request.namespace != key.namespace || !l.options.selects(svc) || version > l.after {
			continue
		}
		conditions, settled := n.by.Of(svc)
		shown := withConditions(svc, conditions)
		if _, waits := n.pending[key]; waits && !settled {
			continue
		}
		delete(n.pending, key)
		if err := l.stream.event(modified, shown); err != nil {
			return err
		}
		sent = true
	}
	if sent && l.options.bookmarks {
		return l.bookmark(false)
	}
	return nil
}

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
	cause error // the cause of an internal error; otherwise nil
}

func (e *statusError) Unwrap() error { return e.cause }

// refusal returns the error for a Status reason. details is nil where Kubernetes has none.
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

// success returns the Status that answers a completed deletion.
func success(k kind.Kind, name, uid string) *wire.Failure {
	return &wire.Failure{Kind: "Status", APIVersion: "v1", Status: "Success", Details: &wire.FailureDetails{Name: name, Group: k.Group, Kind: k.Plural, UID: uid}}
}

// detailsOf returns the details that name an object in a Status.
func detailsOf(k kind.Kind, name string) *wire.FailureDetails {
	return &wire.FailureDetails{Name: name, Group: k.Group, Kind: k.Plural}
}

func badRequest(format string, args ...any) *statusError {
	return refusal(wire.ReasonBadRequest, nil, format, args...)
}

// at adds to the answer the object and the field that have a value of the wrong type, if why is a *schema.TypeError.
func (e *statusError) at(k kind.Kind, name string, why error) *statusError {
	if wrong, is := errors.AsType[*schema.TypeError](why); is {
		e.Details = detailsOf(k, name)
		e.Details.Causes = []wire.FailureCause{{Reason: "FieldValueTypeInvalid", Message: wrong.Text, Field: wrong.Field}}
	}
	return e
}

// noResource returns the error for a path that the API does not serve.
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

// invalid returns the error for an object with invalid fields. The message qualifies the kind with its group: Service,
// EndpointSlice.discovery.k8s.io.
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

// unsupportedMedia returns the error for a body with an unsupported media type; types are the supported ones.
func unsupportedMedia(types ...string) *statusError {
	return refusal(wire.ReasonUnsupportedMediaType, nil, "the body of the request was in an unknown format - accepted media types include: %s", strings.Join(types, ", "))
}

func expired(message string) *statusError { return refusal(wire.ReasonExpired, nil, "%s", message) }

// fromTheFuture returns the error for a read at a revision above the newest. client-go recognizes its cause.
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

// refused returns the error for a request that no user may make (403).
func refused(k kind.Kind, name, why string) *statusError {
	return refusal(wire.ReasonForbidden, detailsOf(k, name), "%s %q is forbidden: %s", k.GroupResource(), name, why)
}
