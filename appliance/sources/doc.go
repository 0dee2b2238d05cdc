// Package sources reads named directories of manifests for a fleet. Several boxes may have a directory of one
// name; one of them reads it, for all.
//
// A [Reader] gets the snapshots that package watch makes of the directories, and asks for the turn of each
// source that this box may read: its files are those in force, or of a higher generation, or it has
// read the source last. It passes the files of sources whose turn it has to the store, which decides once
// more, in the commit. A box with other files reports that, and changes nothing.
//
// It runs in a task of its own: commits of a fleet wait for etcd, and the loop that repairs the
// tables must not.
//
// Invariants:
//   - Files of a directory that is unavailable, or has not been read yet, are not stored.
//   - A turn is wanted only while the directory is there.
//
// The package depends neither on the loop nor on how turns are kept.
package sources
