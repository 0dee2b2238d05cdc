// Package sources reads named directories of manifests for a fleet. Several boxes may have a directory of one
// name; one of them reads it, for all.
//
// A [Reader] takes the snapshots that package watch makes of the directories, and asks for the turn of each
// source that this box may read: it has what is in force, or something of a higher generation, or it has
// read the source last. It hands the files of those that it has the turn of to the store, which decides once
// more, in the commit. A box that has something else says so, and changes nothing.
//
// All of it happens in a task of its own: commits of a fleet wait for etcd, and the loop that heals the
// tables must not.
//
// Invariants:
//   - Nothing of a directory that is unavailable, or has not been read yet, is handed on.
//   - A turn is wanted only while the directory is there.
//
// The package must not know who programs the kernel, nor how the turn is kept.
package sources
