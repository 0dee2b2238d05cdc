// Command program is kubectl, unmodified, as the Kubernetes project builds it, at the
// version that go.mod pins.
package main
