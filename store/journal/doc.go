// Package journal keeps the version before each change of an object, and the author of the change: an
// undo log. The version after a change is the one before the next change of the same object, or the present
// one, so creations cost next to nothing.
//
// Each entry is a pair of the engine, written in the transaction of its change. All of them are in memory,
// too, bounded by number and bytes: past the bounds the oldest go, an eighth at once. Entries form a chain
// by the revision before; at a start the journal reaches as far back as the chain does.
//
// The package does no I/O: Plan returns the writes of a commit, Apply notes that they were made.
package journal
