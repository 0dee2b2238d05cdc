// Package clientgo tries the API with client-go, at the version that go.mod pins: typed
// clients in protobuf, informers, leader election, and watches that go on over the end of
// the appliance.
//
// It holds tests alone. The module is no part of the product and must not import the
// product's packages.
//
//	go test -count=1 .              # as root, in a network namespace of its own
//	go test -count=1 -run Model -v .
package clientgo
