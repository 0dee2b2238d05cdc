// Package styles writes manifests of Services in the forms in which kubectl, kustomize and
// people write them. It is for tests and benchmarks: a reader that is fast for one form only
// would be of no use.
//
// The text is a pure function of the Service, so two runs measure the same bytes.
//
//	text := styles.Kubectl.File(styles.Service{Name: "web", ClusterIP: ip, Protocol: "TCP", Endpoints: addrs})
package styles
