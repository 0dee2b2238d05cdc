// Package advertise makes of the objects of MetalLB's kinds what this box does with them: pools of load
// balancer IPs, and where which of them are announced. It is pure.
//
// Each object counts in its namespace: an advertisement is about the pools and peers of its own one. What an object
// asks for and does not get is a problem of that object, and stops no other.
package advertise
