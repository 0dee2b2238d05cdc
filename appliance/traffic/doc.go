// Package traffic counts the connections of Services, by looks through the connection tracking
// table that happen only on request.
//
// Concurrent requests share one look: the next one comes no sooner than a second after the last (the second of all a quarter of one),
// and no sooner than 100 times the CPU time that the last one took, of which the time outside of
// the kernel counts three times: looks take at most 1 % of a core at any size of the table, and
// with the answers that are made of them 2 %. Nothing runs without a request, and the
// history of looks is dropped a quarter of an hour after the last.
package traffic
