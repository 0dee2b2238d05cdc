// Package resolve says what a Service asks of this box: it turns one Service and
// the objects that name its endpoints into the nft.ServicePorts that serve it.
//
// All Service semantics live here: which endpoints count (readiness, termination,
// topology, locality), which addresses a Service answers on, what each kind of
// client gets there, and which clients are masqueraded. What Services take from each other
// is decided by Claims.
//
// The package is pure: no I/O, no clock, no logs. Problems are returned as data.
// It must not import the store, the API or any netlink package.
//
//	out := resolve.Service(resolve.Input{Service: svc, Slices: slices}, &facts)
//	compiler.Update(nil, map[string][]nft.ServicePort{"default/web": out.Ports})
package resolve
