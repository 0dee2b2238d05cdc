// Package resolve turns one Service and the objects that name its endpoints into the nft.ServicePorts that serve it
// on this box, and returns what the Service needs for that, as a listener or a Secret.
//
// All Service semantics live here: which endpoints count (readiness, termination,
// topology, locality), which addresses a Service answers on, the pool of each kind of
// client, and which clients are masqueraded. Claims decides which of several Services has an address and port.
//
// The package is pure: no I/O, no clock, no logs, no callbacks. States come in Input.Observed, and problems are returned
// as data.
// It must not import the store, the API or any netlink package.
//
//	out := resolve.Service(resolve.Input{Service: svc, Slices: slices}, &facts)
//	compiler.Update(nil, map[string][]nft.ServicePort{"default/web": out.Ports})
package resolve
