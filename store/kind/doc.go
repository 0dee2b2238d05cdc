// Package kind is the table of the kinds that the API serves: what they are called, where
// they are found, and what can be done with them. Discovery, the schemas, the tables and
// the server are made from it, so that they agree.
//
// Invariants: the table is constant; no two kinds share a group and a plural, or a group
// and a name; object.New makes each kind. The package computes only: it
// does no I/O and reads no clock. It must not import anything of ours but store/object.
//
//	k, ok := kind.ByResource("discovery.k8s.io", "v1", "endpointslices")
//	fmt.Println(k.Name, k.APIVersion(), k.CollectionPath()) // EndpointSlice discovery.k8s.io/v1 /apis/...
package kind
