// Package flows keeps what connections through Services came to: totals of each endpoint, and a log of their
// ends.
//
// The kernel tells of a connection when it forgets it. So the total of an endpoint is what ended plus what the
// connection tracking table has at a look, and never less than what was told before. Connections that were
// there before the kernel was listened to are in no total.
//
// A Book computes. It knows neither the kernel nor a file: who listens tells it what it hears.
package flows
