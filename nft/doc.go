// Package nft turns the services of this box into an nftables ruleset, as data.
//
// A State describes the wanted Services: frontends, the backends behind them, and the
// facts of the box they depend on. A Compiler turns it into a Ruleset (tables, chains, rules, sets
// and their elements) and keeps it current at a cost proportional to each change; From returns the
// difference from a ruleset that was read. Both answer with Batches, which package nft/kernel
// commits as one transaction each. A Compiler holds no elements: they are computed from the
// Services again when all are asked for.
//
// Invariants:
//
//   - The number of chains and rules does not depend on the number of Services,
//     VIPs or endpoints: objects are elements. Only pick-N chains (one for each
//     number of slots in use, and those for few in any case) and the affinity chains of
//     a Service port are added.
//   - The same State gives the same Ruleset, byte for byte, except for the slot an
//     endpoint stands in: endpoints keep their slot while they live, so that
//     replacing one endpoint is two element operations.
//   - Every rule prints in nft syntax, and that text loads with `nft -f`.
//
// The package does no I/O, reads no clock and logs nothing. It must never import
// a netlink package.
package nft
