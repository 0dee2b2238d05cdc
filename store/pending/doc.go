// Package pending has changes that are in force and not final: the versions before them are stored, in the same commits, so that
// they can be restored, or programmed by machines that do not have the changes yet.
//
// A Set is of one of two kinds. A Timed one (a trial) goes back at its end unless it is confirmed. A Staged one (a rollout) comes to
// the machines that share a store step by step. Both have a head, stored under KIND/head, and the versions before, stored under
// KIND/object/KEY; an empty version is of an object that did not exist.
package pending
