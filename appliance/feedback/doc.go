// Package feedback turns what is seen of a Service's connections into who gets the next ones.
//
// The kernel draws a slot of a table at random and cannot ask who is busy. So a table is set anew, from
// look to look at connection tracking: Connections counts what began and ended since the last look, and a
// Pool gives slots to the endpoints that are to get more. Whoever calls commits them. Between two looks
// endpoints are drawn at random, by slots.
//
// Ramp is the weight of an endpoint that is new.
//
// The package computes only. It has no clock: times are handed in.
package feedback
