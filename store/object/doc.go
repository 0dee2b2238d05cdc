// Package object holds the shapes of the Kubernetes objects this product accepts,
// what their absent fields mean, and which of them are refused.
//
// It is pure: no I/O, no clock, no randomness. Names, defaults, refusals and their
// texts are those of Kubernetes 1.36 (k8s.io/api core/v1 and discovery/v1,
// pkg/apis/core/validation), so that a document means here what it means there.
//
// It must not import any other package of this module.
package object
