// Package stream carries the commits of a fleet from a core box to its leaves: the form of a [Commit] on the wire, and a
// [Log] of the newest ones, which are encoded once for all leaves.
//
// A stream is a sequence of members of gzip (RFC 1952), flushed after each commit. In it each frame has its length in front.
// A member holds some 128 KiB: a reader that comes later begins with the member that has the commit it wants, and skips
// those before it.
//
//	frame = uvarint(length of body) body
//	body  = kind uvarint(mod) text(head) text(note) { "+" text(key) text(value) | "-" text(key) }
//	text  = uvarint(length) bytes
//
// The package depends neither on etcd nor on HTTP, and does not interpret keys and values.
package stream
