// Package rest serves the objects of a store as the API server of Kubernetes serves its own,
// closely enough for kubectl, informers and CoreDNS: discovery, OpenAPI, get, list and watch
// in all their forms, and the writes with server-side apply.
//
// A request is routed by its path (server.go), may be asked for by its user or not
// (permission.go), and is answered in the form that its Accept header names first among those
// that there are (negotiate.go): JSON, a Table, PartialObjectMetadata, YAML. An error is
// a *statusError, or becomes one (respond.go), and is answered as a Status.
//
// What a path shows is a collection (collections.go): objects as they are stored, or a view that
// is computed from other ones (view.go): Endpoints of the EndpointSlices of Services that have
// none, IPAddresses of the Services that hold them, Events in the form of their other group.
//
// A write (write.go) is planned on the stored version, committed on the condition that this is still
// the newest, and planned again when it is not: the object is read (body.go), changed (plan.go,
// write.go), defaulted, given the managers of its fields (store/managedfields), compared
// with the manifest file that declares it (namespace.go), and passed to the store, which
// allocates and validates. A write without a change is not committed, and an apply
// of the same content again is recognized before any of that. /svcctl/v1/apply applies a whole
// stream of objects in a few commits (batch.go).
//
// Invariants: a refused request has changed nothing; the fields that a file declares are changed by that file only,
// force or not; the store's objects are never changed, nor copied to be read; an answer holds a
// bounded part of itself in memory, however long it is (respond.go, list.go); a watch sends
// every change once and in order, or ends with 410 Expired; it pulls changes from the store's
// history, so that a slow client loses its watch and delays no other; each version of an object
// is encoded once for all watches (negotiate.go); a watch ends with the context of its
// request.
//
// Authentication (api/auth), listening and the semantics of Services are elsewhere: values,
// validation and history are the store's. No goroutine outlives a request but that of Run.
//
//	server := rest.New(rest.Config{Objects: objects, Log: log})
//	mux.Handle("/api/", server.Handler()) // after auth.With(ctx, user)
package rest
