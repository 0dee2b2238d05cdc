package rest

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// The values of resourceVersionMatch.
const (
	matchExact        = "Exact"
	matchNotOlderThan = "NotOlderThan"
)

// longestWatch bounds the time of a watch that a client may ask for.
const longestWatch = 24 * time.Hour

// listOptions is the query of a list or a watch (meta/v1 ListOptions).
type listOptions struct {
	selection
	limit         int64
	continueToken string
	version       string // resourceVersion: "", "0", or a revision
	revision      uint64 // of version; 0 when it is "" or "0"
	match         string // resourceVersionMatch
	timeout       time.Duration
	bookmarks     bool
	initial       *bool // sendInitialEvents
}

// listOptionsOf reads the query of a list or a watch. Unknown keys are ignored, as by the API
// server of Kubernetes.
func listOptionsOf(r *request) (o listOptions, err error) {
	if o.limit, err = intIn(r, "limit"); err != nil {
		return o, err
	}
	seconds, err := intIn(r, "timeoutSeconds")
	if err != nil {
		return o, err
	}
	o.timeout = time.Duration(min(seconds, int64(longestWatch/time.Second))) * time.Second
	o.continueToken = r.query.Get("continue")
	o.match = r.query.Get("resourceVersionMatch")
	o.bookmarks = boolIn(r, "allowWatchBookmarks")
	if r.query.Has("sendInitialEvents") {
		initial := boolIn(r, "sendInitialEvents")
		o.initial = &initial
	}
	o.version = r.query.Get("resourceVersion")
	if o.revision, err = revisionOf(o.version); err != nil {
		return o, err
	}
	check := o.checkList
	if r.verb == "watch" {
		check = o.checkWatch
	}
	if errs := check(); len(errs) > 0 {
		return o, invalid("meta.k8s.io", "ListOptions", "", errs)
	}
	o.selection, err = selectionOf(r)
	return o, err
}

// intIn is a number in the query of a request; 0 when it is not there.
func intIn(r *request, key string) (int64, error) {
	text := r.query.Get(key)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, badRequest("%s=%s: want a number", key, text)
	}
	return n, nil
}

// boolIn reports whether a query parameter is there and is not 0 or false, in which clients
// differ: some send True.
func boolIn(r *request, key string) bool {
	values := r.query[key]
	return len(values) > 0 && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

// revisionOf reads a resourceVersion; "" is 0.
func revisionOf(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, badRequest("invalid resource version: %q: want a number", text)
	}
	return revision, nil
}

// checkList returns the combinations of query parameters that a list does not accept
// (ValidateListOptions of pkg/apis/meta/internalversion/validation).
func (o *listOptions) checkList() object.Errors {
	var errs object.Errors
	if o.match != "" {
		if o.version == "" {
			errs = append(errs, forbiddenOption("resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"))
		}
		if o.continueToken != "" {
			errs = append(errs, forbiddenOption("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided"))
		}
		if o.match != matchExact && o.match != matchNotOlderThan {
			errs = append(errs, unsupported("resourceVersionMatch", o.match, matchExact, matchNotOlderThan, ""))
		}
		if o.match == matchExact && o.version == "0" {
			errs = append(errs, forbiddenOption("resourceVersionMatch", `resourceVersionMatch "exact" is forbidden for resourceVersion "0"`))
		}
	}
	if o.initial != nil {
		errs = append(errs, forbiddenOption("sendInitialEvents", "sendInitialEvents is forbidden for list"))
	}
	return errs
}

// checkWatch is checkList for a watch.
func (o *listOptions) checkWatch() object.Errors {
	var errs object.Errors
	if o.initial != nil && o.match != matchNotOlderThan {
		errs = append(errs, forbiddenOption("resourceVersionMatch", fmt.Sprintf("sendInitialEvents requires setting resourceVersionMatch to %s", matchNotOlderThan)))
	}
	if o.match == "" {
		return errs
	}
	if o.initial == nil {
		errs = append(errs, forbiddenOption("resourceVersionMatch", "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"))
	}
	if o.match != matchNotOlderThan {
		errs = append(errs, unsupported("resourceVersionMatch", o.match, matchNotOlderThan))
	}
	if o.continueToken != "" {
		errs = append(errs, forbiddenOption("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided"))
	}
	return errs
}

func forbiddenOption(field, detail string) object.Error {
	return object.Error{Type: object.FieldValueForbidden, Field: field, Detail: detail}
}
