// Package control has the controllers that write back to the store what follows from other
// objects, and from the host: [ClusterObjects] (Namespaces, the Node, the ServiceCIDR),
// [Endpoints] (EndpointSlices and Endpoints of Services with a selector, and the mirrors of
// Endpoints), and [Recorder] (Events of problems and of assigned addresses).
//
// Each controller owns the objects it writes (store.Owner.Controller) and leaves those of files
// and of clients alone. A Sync without a change costs nothing and writes nothing. The first two
// are called by the reconcile loop; the Recorder runs in a task of its own, for which the loop never waits.
package control
