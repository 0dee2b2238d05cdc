// Package object holds the shapes of the Kubernetes objects this product accepts,
// what their absent fields mean, and which of them are refused.
//
// It is pure: no I/O, no clock, no randomness. Names, defaults, refusals and their
// texts are those of Kubernetes 1.36 (k8s.io/api core/v1 and discovery/v1,
// pkg/apis/core/validation, pkg/apis/discovery/validation, pkg/registry/core/service),
// so that a document means here what it means there.
//
// The way of an object, from its document to the store (as in the example):
// New, decoding, Default; for a Service then PatchFromOld, if there is a stored one,
// and DefaultFamilies; then Validate, or ValidateUpdate against the stored one.
//
// Invariants: the functions that change an object change only the one they are
// given, and never make it share memory with another; the functions that check
// change nothing, report every problem at once, and answer in the same order for
// the same object. Validate does not ask for what an allocator fills in later
// (cluster IPs, node ports, the health-check port), and does not depend on ranges,
// pools or other objects.
//
// It must not import any other package of this module.
package object
