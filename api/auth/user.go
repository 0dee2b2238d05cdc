package auth

import (
	"context"
	"fmt"
)

// Role is a set of permissions.
type Role int

const (
	Nobody    Role = iota // no permission
	Box                   // a leaf of the fleet: follows its commits, and reports
	Reader                // get, list, watch
	Endpoints             // those, and writes the objects of svcctl discover: its EndpointSlices and Leases, and Events
	Admin                 // all requests
)

// The names of the roles, as tokens and flags have them.
var roleNames = [...]string{Nobody: "nobody", Box: "box", Reader: "reader", Endpoints: "endpoints", Admin: "admin"}

// String returns "reader", "endpoints" or "admin", and "box" for a leaf, which no token is for.
func (r Role) String() string { return roleNames[r] }

// ParseRole parses the name of a role that can be granted.
func ParseRole(name string) (Role, error) {
	for _, r := range []Role{Reader, Endpoints, Admin} {
		if name == r.String() {
			return r, nil
		}
	}
	return Nobody, fmt.Errorf("%q is not a role: give %s, %s or %s", name, Reader, Endpoints, Admin)
}

// The groups of users. Those of Kubernetes mean what they mean there.
const (
	GroupAuthenticated   = "system:authenticated"
	GroupUnauthenticated = "system:unauthenticated"
	GroupMasters         = "system:masters" // may do everything
	GroupReaders         = "svcctl:readers"
	GroupEndpoints       = "svcctl:endpoints"
)

// Anonymous is the name of a user without credentials.
const Anonymous = "system:anonymous"

// User is the authenticated user of a request.
type User struct {
	Name   string   // "root", "uid:1000", "root:ci" for a token that root has named ci
	Groups []string // as in SelfSubjectReview
	Role   Role
}

// newUser returns a user with a role and the groups that belong to it.
func newUser(name string, role Role) User {
	u := User{Name: name, Role: role, Groups: []string{GroupAuthenticated}}
	switch role {
	case Admin:
		u.Groups = []string{GroupMasters, GroupAuthenticated}
	case Reader:
		u.Groups = []string{GroupReaders, GroupAuthenticated}
	case Endpoints:
		u.Groups = []string{GroupEndpoints, GroupAuthenticated}
	}
	return u
}

// Nameless is the user of a request without a token.
func Nameless() User {
	return User{Name: Anonymous, Groups: []string{GroupUnauthenticated}}
}

type userKey struct{}

// With returns a context that carries the user of a request.
func With(ctx context.Context, u User) context.Context { return context.WithValue(ctx, userKey{}, u) }

// From returns the user of a request's context, or the zero User.
func From(ctx context.Context) User {
	u, _ := ctx.Value(userKey{}).(User)
	return u
}
