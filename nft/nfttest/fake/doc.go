// Package fake is a kernel for tests: it takes batches literally, refuses what the real
// nf_tables refuses (a set or chain that is there already, is missing or is in use, an
// element that exists with other data), keeps a generation, and fails on demand.
//
// It evaluates no packets (package sim does) and is not for production.
//
//	k := fake.New()
//	generation, err := k.Commit(&batch, 0)
package fake
