package rest

import (
	"errors"
	"fmt"
	"net/http"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// busyRetry is after how many seconds a client may try again what failed for reasons
// that pass by themselves.
const busyRetry = 1

// awayRetry is the Retry-After, in seconds, of requests that fail because other machines do not
// answer.
const awayRetry = 5

// isAway reports whether an error says that other machines have to answer first.
func isAway(err error) bool {
	_, is := errors.AsType[*engine.AwayError](err)
	return is
}

// statusOf returns the answer to an error of a request. Internal errors become a 500.
func statusOf(err error, r *request) *statusError {
	var own *statusError
	var owned *store.OwnedError
	var other *store.PreconditionError
	var invalidities object.Errors
	var invalidity object.Error
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &invalidities):
		return invalidObject(r.kind, r.name, invalidities)
	case errors.As(err, &invalidity):
		return invalidObject(r.kind, r.name, object.Errors{invalidity})
	case errors.As(err, &owned):
		return conflict(r.kind, r.name, owned.Error())
	case errors.Is(err, store.ErrExists):
		return alreadyExists(r.kind, r.name)
	case errors.Is(err, store.ErrNotFound):
		return notFound(r.kind, r.name)
	case errors.As(err, &other):
		return conflict(r.kind, r.name, other.Error())
	case errors.Is(err, store.ErrStale):
		return conflict(r.kind, r.name, store.ErrStale.Error())
	case errors.Is(err, store.ErrTrialOver):
		return conflict(r.kind, r.name, store.ErrTrialOver.Error())
	case errors.Is(err, store.ErrRolloutOver), isInRollout(err):
		return conflict(r.kind, r.name, err.Error())
	case errors.Is(err, store.ErrExpired):
		return expired("The resourceVersion for the provided watch is too old.")
	case errors.As(err, &tooLong):
		return tooLarge(fmt.Sprintf("limit is %d", tooLong.Limit))
	case errors.Is(err, alloc.ErrFull):
		return internalError(err)
	case errors.Is(err, engine.ErrUnsettled):
		return unsettled(engine.ErrUnsettled.Error())
	case isAway(err):
		return unavailable("nothing was changed: "+err.Error(), awayRetry)
	case errors.Is(err, engine.ErrNoSpace):
		return unavailable("nothing was changed: "+err.Error(), busyRetry)
	}
	return internalError(err)
}

// isInRollout reports whether an object is not to be written as it is in a rollout, or cannot be in one.
func isInRollout(err error) bool {
	var other *store.RolloutError
	var tried *store.OnTrialError
	return errors.As(err, &other) || errors.As(err, &tried)
}

// maxTries bounds the attempts of a change without resourceVersion that conflicts with concurrent
// ones (MaxRetryWhenPatchConflicts of the API server of Kubernetes).
const maxTries = 5
