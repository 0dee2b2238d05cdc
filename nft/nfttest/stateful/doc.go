// Package stateful sends packets one after another through a ruleset: a sim.Host that keeps what they leave in dynamic sets, and what
// they use of limits, until it expires. It serves tests; time is an argument.
//
//	host := stateful.Host{Host: sim.Host{Ruleset: rs, Network: network}}
//	r := host.Send(packet, now, random)
//	host.Answer(packet, r)
package stateful
