// Package kubectl tries the API with the kubectl of the Kubernetes project, unmodified, at
// the version that go.mod pins: the scripts in testdata hold what is asked of a served
// appliance and what must come back.
//
// The module is no part of the product and must not import the product's packages. It
// holds tests alone, and the main package of kubectl in program.
//
//	go test -count=1 .                           # as root, in a network namespace of its own
//	KUBERNETES=1.36 go test -count=1 .           # an older kubectl, of kubernetes-1.36.mod
//	go test -run TestScripts/together/apply -v . # one script
//	go test -against ~/.kube/config .            # another server, as one of Kubernetes
package kubectl
