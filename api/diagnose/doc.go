// Package diagnose finds out why a Service does not answer, from what a client of the API
// can see: the objects, the status of the appliance, and the holders of addresses. It goes
// from the object to the kernel, one check after the other: each finding has the fact and,
// if that is wrong, the next step.
//
// Its findings about endpoints and policies follow the rules of package appliance/resolve
// that matter to the question "why": which endpoints are ready, which are local. It
// decides nothing: resolve does.
//
// Invariants: the same facts give the same findings, in the same order; facts that are
// missing are never taken for bad news. The package computes only; it reads no clock. It
// must not import the server or the client.
//
//	findings := diagnose.Service(diagnose.Facts{Service: svc, Slices: slices, Status: status})
//	if diagnose.Worst(findings) == diagnose.Bad { ... }
package diagnose
