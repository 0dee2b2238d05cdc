// Package coredns tries the API with CoreDNS and its kubernetes plugin, at the version that
// go.mod pins: CoreDNS runs in the test, follows a served appliance, and is asked over UDP.
//
// It holds tests alone. The module is no part of the product and must not import the
// product's packages.
//
//	go test -count=1 . # as root, in a network namespace of its own
package coredns
