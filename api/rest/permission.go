package rest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// reading are the verbs that change nothing.
var reading = []string{"get", "list", "watch"}

// may reports whether a role permits a verb on objects of a kind. Readers may not read Secrets, as
// with the role "view" of Kubernetes, and may ask for their own rights.
func may(role auth.Role, verb string, k kind.Kind) bool {
	switch {
	case role == auth.Admin:
		return true
	case role != auth.Reader:
		return false
	case !k.Stored():
		return true
	}
	return slices.Contains(reading, verb) && k.Name != object.KindSecret
}

// forbidden returns the 403 for what the user may not do.
func forbidden(r *request) *statusError {
	resource := r.kind.Plural
	if r.subresource != "" {
		resource += "/" + r.subresource
	}
	scope := "at the cluster scope"
	if r.namespace != "" {
		scope = fmt.Sprintf("in the namespace %q", r.namespace)
	}
	why := fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", r.user.Name, r.verb, resource, r.kind.Group, scope)
	named := r.kind.GroupResource()
	if r.name != "" {
		named += fmt.Sprintf(" %q", r.name)
	}
	return &statusError{
		code: http.StatusForbidden, reason: reasonForbidden, details: detailsOf(r.kind, r.name),
		message: named + " is forbidden: " + why + askAnAdmin,
	}
}

// askAnAdmin names to a reader the ways to get the rights; Kubernetes puts the reasons of an
// authorizer in this place.
const askAnAdmin = ": this needs root, a member of the group that --socket-group names, or a token that one of these made"

// forbiddenPath returns the refusal for a user without any right.
func forbiddenPath(r *request) *statusError {
	return &statusError{
		code: http.StatusForbidden, reason: reasonForbidden, details: &statusDetails{},
		message: fmt.Sprintf("forbidden: User %q cannot %s path %q", r.user.Name, strings.ToLower(r.http.Method), r.http.URL.Path),
	}
}

// mayWriteKind refuses to write what is only a view of other objects.
func mayWriteKind(r *request) error {
	var why string
	switch {
	case r.kind.Name == object.KindIPAddress:
		why = "show which Services hold which addresses, and cannot be written: change the Service"
	case isComputed(r.kind):
		why = "are computed on request, and can be neither written nor watched: svcctl announcements and /svcctl/v1/announcements?watch=true have details"
	default:
		return nil
	}
	e := notSupported(r.kind, r.verb)
	e.message = r.kind.GroupResource() + " " + why
	return e
}
