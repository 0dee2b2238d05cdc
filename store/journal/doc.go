// Package journal keeps what was there before each change of an object, and who asked for the change: an
// undo log. What came of a change is what was there before the next one of the same object, or what is there
// now, so creations cost next to nothing.
//
// Each entry is a pair of the engine, written in the transaction of its change. All of them are in memory,
// too, bounded by number and bytes: past the bounds the oldest go, an eighth at once. Entries form a chain
// by the revision before; at a start the journal reaches as far back as the chain does.
//
// The package does no I/O: Plan says what a commit has to write, Apply notes that it was.
package journal
