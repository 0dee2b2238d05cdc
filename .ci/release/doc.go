// Package release has the script verify, which checks a published release against its signature and its source, and the
// test of it.
package release
