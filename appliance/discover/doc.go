// Package discover is the process `svcctl discover`: it follows where the endpoints of Services are, as their annotation
// svcctl.io/endpoints-from names it, and writes them as EndpointSlices. It is a client of the API, and has no state of its own: the
// stored slices are the last good answer.
//
//   - discover.go: the goroutine that decides
//   - objects.go: the watches of Services, EndpointSlices and Leases
//   - question.go: a goroutine for each question, its retries, and the addresses of answers that can be used
//   - lease.go: which of several processes asks a provider, and the report on it
//   - store.go: the writes
//
// The rules of answers are in the ledger, and the adapters of providers in packages beside it.
//
// Invariants:
//
//   - Slices are written for claims whose provider this process has the Lease of, and once all objects were listed.
//   - A restart writes nothing: wanted slices are compared with stored ones.
//   - What cannot be written waits in memory, in its newest form.
package discover
