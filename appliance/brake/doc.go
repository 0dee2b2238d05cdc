// Package brake decides when the loss of Services, or of all their endpoints, looks like an accident. The guard of files and the
// ledger of `svcctl discover` have the same limits from here.
//
// It is pure.
package brake
