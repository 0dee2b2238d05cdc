package auth

import (
	"context"
	"fmt"
)

// Role is what somebody may do.
type Role int

const (
	Nobody Role = iota // nothing
	Reader             // get, list, watch
	Admin              // everything
)

// The names of the roles, as tokens and flags have them.
const (
	nameNobody = "nobody"
	nameReader = "reader"
	nameAdmin  = "admin"
)

// String is "reader" or "admin".
func (r Role) String() string {
	switch r {
	case Reader:
		return nameReader
	case Admin:
		return nameAdmin
	}
	return nameNobody
}

// ParseRole reads the name of a role that somebody can be given.
func ParseRole(name string) (Role, error) {
	switch name {
	case nameReader:
		return Reader, nil
	case nameAdmin:
		return Admin, nil
	}
	return Nobody, fmt.Errorf("%q is not a role: give %s or %s", name, nameReader, nameAdmin)
}

// The groups of users. Those of Kubernetes mean what they mean there.
const (
	GroupAuthenticated   = "system:authenticated"
	GroupUnauthenticated = "system:unauthenticated"
	GroupMasters         = "system:masters" // may do everything
	GroupReaders         = "svcctl:readers"
)

// Anonymous is the name of who does not say who they are.
const Anonymous = "system:anonymous"

// User is who makes a request.
type User struct {
	Name   string   // "root", "uid:1000", "root:ci" for a token that root has named ci
	Groups []string // as SelfSubjectReview tells them
	Role   Role
}

// newUser is a user of a role, with the groups that go with it.
func newUser(name string, role Role) User {
	u := User{Name: name, Role: role, Groups: []string{GroupAuthenticated}}
	switch role {
	case Admin:
		u.Groups = []string{GroupMasters, GroupAuthenticated}
	case Reader:
		u.Groups = []string{GroupReaders, GroupAuthenticated}
	}
	return u
}

// Nameless is the user of a request that shows no token.
func Nameless() User {
	return User{Name: Anonymous, Groups: []string{GroupUnauthenticated}}
}

type userKey struct{}

// With is a context in which a request of a user is served.
func With(ctx context.Context, u User) context.Context { return context.WithValue(ctx, userKey{}, u) }

// From is the user of a request's context; the zero User when nobody is known.
func From(ctx context.Context) User {
	u, _ := ctx.Value(userKey{}).(User)
	return u
}
