// Package rest serves the objects of a store as the API server of Kubernetes serves its own,
// closely enough for kubectl, informers and CoreDNS: discovery, OpenAPI, get, list and watch
// in all their forms, and the writes with server-side apply.
//
// A request is routed by its path (server.go), may be asked for by its user or not
// (review.go), and is answered in the form that its Accept header names first among those
// that there are (negotiate.go): JSON, a Table, PartialObjectMetadata, YAML. What goes wrong is
// a *statusError, or becomes one (failure.go), and is answered as a Status.
//
// What a path shows is a collection (collections.go): objects as they are stored, or a view that
// is computed from other ones (view.go): Endpoints of the EndpointSlices of Services that have
// none, IPAddresses of the Services that hold them, Events in the form of their other group.
//
// A write (write.go) is planned on what is stored, committed on the condition that this still
// stands, and planned again when it does not: the object is read (body.go), changed (update.go,
// patch.go, apply.go), defaulted, told who manages which of its fields (store/managedfields), compared
// with what a manifest file declares about it (owner.go), and handed to the store, which
// allocates and validates. What changes nothing is not written, and an application that says
// what it said the last time is recognized before any of that. /svcctl/v1/apply applies a whole
// stream of objects in a few commits (batch.go).
//
// Invariants: what is refused has changed nothing; what a file declares is changed by that file only,
// force or not; the store's objects are never changed, nor copied to be read; an answer holds a
// bounded part of itself in memory, however long it is (answer.go, listing.go); a watch tells
// every change once and in order, or ends with 410 Expired; it pulls changes from the store's
// history, so that a slow client loses its watch and delays no other; each version of an object
// is encoded once for all who watch it (negotiate.go); a watch ends with the context of its
// request.
//
// It must not decide who a user is (api/auth), nor listen, nor know what Services mean: values,
// validation and history are the store's. It leaves no goroutine behind: Run is for a caller's.
//
//	server := rest.New(rest.Config{Objects: objects, Log: log})
//	mux.Handle("/api/", server.Handler()) // after auth.With(ctx, user)
package rest
