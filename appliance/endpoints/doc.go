// Package endpoints generates the endpoints of Services: it turns Services with a selector and the
// Pods they select into EndpointSlices and an Endpoints object, and mirrors hand-written
// Endpoints into EndpointSlices, as the controllers of Kubernetes 1.37 do.
//
// A Controller remembers where every endpoint lies, so that its work is that of the
// change: one Pod among 50,000 touches the slices it is in. Its result is a Batch, which its caller writes.
//
// Invariants:
//
//   - Every Pod that a Service selects and that may be an endpoint of it is in exactly
//     one slice of each of the Service's families. A slice has one set of ports and at
//     most 100 endpoints.
//   - Nothing moves without need: an endpoint stays in its slice while its ports are the
//     same, also over a restart, and no endpoint is moved to make room or to fill it.
//   - Slices and Endpoints of others are never touched. Names are made of the Service's
//     and of what the slice holds, and avoid those that are taken.
//   - Same objects, same bytes: no clock, no randomness.
//
// The package is pure: it does no I/O, reads no clock and logs nothing; problems are
// data. It imports neither the store, the API nor the dataplane.
//
//	controller := endpoints.New(endpoints.Facts{NodeName: "gw1", Zone: "zone-a"})
//	batch := controller.Update(store, endpoints.Changes{Pods: []string{"default/web-1"}})
//	if err := write(batch); err != nil {
//		controller.Forget(batch) // objects that could not be written are made again
//	}
package endpoints
