// Package flows keeps what connections through Services came to: totals of each endpoint, and a log of their
// ends.
//
// The kernel sends an event when it forgets a connection. The total of an endpoint is the sum of the ended connections
// and of those in the connection tracking table at a look; it never falls. Connections that were there before events
// were read are in no total.
//
// Totals only compute: events and saved totals are passed to it.
package flows
