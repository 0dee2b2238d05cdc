// Package write arranges the endpoints of a claim in EndpointSlices: at most 100 in each, one port, family, weight and priority a slice,
// and endpoints stay in their slice.
//
// It is pure, and uses the types of the objects alone.
package write
