// Package gateway runs the conformance tests of the Gateway API (sigs.k8s.io/gateway-api/conformance) against svcctl, as
// they are published, and compares its validation with the CustomResourceDefinitions of that version.
//
// The suite is made for a cluster. Two things that it expects of one are answered in its HTTP transport and are no part
// of svcctl: CustomResourceDefinitions, of which it reads the version, and Deployments. A replica of a Deployment is the
// suite's own server, echo-basic, in a network namespace of its own, and a Pod with its address in svcctl, whose own
// controller makes the EndpointSlices. The suite runs in a third namespace, so that each request crosses the kernel's
// rules. The report is bin/conformance/gateway-report.yaml, in the form that upstream publishes.
//
// It holds tests alone. The module is no part of the product and must not import the product's packages.
//
//	go test -count=1 .                                      # as root
//	go test -count=1 -run Conformance . -args -run-test TCPRouteReferenceGrant
package gateway
