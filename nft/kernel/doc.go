// Package kernel keeps the nf_tables of this machine, or of one of its network
// namespaces, as package nft describes them. It is the only code of this product
// that talks nf_tables.
//
// Invariants:
//
//   - A Batch is one transaction: one sendmsg, all of it or nothing. It carries the
//     generation it was computed for, and the kernel refuses it when another program
//     has committed since (ErrStale).
//   - After Commit the outcome is known: committed, refused, or ErrOutcomeUnknown,
//     after which the caller has to Read before the next Commit.
//   - Read never returns half of a ruleset: a dump taken during a commit is
//     silently short, so the generation is compared before and after; and one taken
//     while the kernel resizes a hash table is short too, so elements are counted.
//   - A committed ruleset reads back equal, except for rules, which come back as their
//     marks, and for elements of dynamic sets, which packets make.
//   - `nft list ruleset` prints everything committed here, and loads it again, but for
//     two things: no nft up to 1.1 can load an update that remembers an IPv6 endpoint,
//     and no program can load a sentinel table while its owner lives.
//
// The package must not depend on Services, must not run the nft program, must
// not log, and must not change its thread's network namespace.
//
//	conn, err := kernel.Open(kernel.Options{})
//	...
//	have, generation, err := conn.Read()
//	change := compiler.From(have)
//	generation, err = conn.Commit(&change.Apply, generation)
//	if errors.Is(err, kernel.ErrStale) || errors.Is(err, kernel.ErrOutcomeUnknown) {
//		// read and commit again
//	}
package kernel
