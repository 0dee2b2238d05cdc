// Package annotation holds one table of the annotations, and of the labels with a meaning, that
// Kubernetes, load balancers of clouds, MetalLB and svcctl itself have, each with what it does
// here. It reads those whose meaning is shared by several rooms: `internal`, TLS, cross-zone,
// addresses that are asked for. docs/reference/annotations.md is written from the table.
package annotation
