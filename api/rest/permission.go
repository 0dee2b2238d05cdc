package rest

import (
	"slices"

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
