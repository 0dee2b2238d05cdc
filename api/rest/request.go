package rest

import (
	"net/http"
	"net/url"
	"strings"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// request is a request for objects of a kind, its path taken apart.
type request struct {
	http        *http.Request
	kind        kind.Kind
	verb        string // get, list, watch, create, update, patch, delete, deletecollection
	namespace   string // "": all namespaces, or a kind without
	name        string // "": the collection
	subresource string // "status", or ""
	query       url.Values
	user        auth.User
	form        form  // of the answer
	held        int64 // bytes that count in Server.bodies until the answer is out
}

// ref names the object that is asked for.
func (r *request) ref() object.Ref {
	return object.Ref{Kind: r.kind.Name, Namespace: r.namespace, Name: r.name}
}

// checkSegment refuses what cannot be the name of anything, as it has a meaning in paths.
func checkSegment(name string) error {
	if name == "" {
		return noResource()
	}
	if name == "." || name == ".." || strings.ContainsAny(name, "/%") {
		return badRequest("invalid name %q in the path: it may not be '.' or '..', nor contain '/' or '%%'", name)
	}
	return nil
}

// statusSubresource is the path below an object where its status is written.
const statusSubresource = "status"
