// Package feedback chooses the endpoints of the next connections of a Service by its present ones.
//
// The kernel draws a slot of a table at random, whatever the load of endpoints. So a table is
// replaced after each look at connection tracking: Connections counts what began and ended since the last
// look, and a Pool gives slots to the endpoints that are to get more. The caller commits them. Between
// two looks endpoints are drawn at random, by slots.
//
// Ramp computes the weight of a new endpoint.
//
// The package computes only. It has no clock: times are handed in.
package feedback
