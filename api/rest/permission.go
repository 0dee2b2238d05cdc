package rest

import (
	"slices"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// reading are the verbs that change nothing.
var reading = []string{"get", "list", "watch"}

// may reports whether somebody may do something with objects of a kind. Who may only read
// may not read Secrets, as with the role "view" of Kubernetes, and may ask about himself.
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
