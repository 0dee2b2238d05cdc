// Package stream carries the commits of a fleet from a core box to its leaves: the form of a [Commit] on the wire, and a
// [Log] of the newest ones, which are encoded once for all leaves.
//
// A stream is a sequence of members of gzip (RFC 1952), flushed after each commit. In it each frame has its length in front.
// A member holds some 128 KiB: a reader that comes later begins with the member that has the commit it wants, and skips
// those that it knows.
//
//	frame = uvarint(length of body) body
//	body  = kind uvarint(mod) text(head) text(note) { "+" text(key) text(value) | "-" text(key) }
//	text  = uvarint(length) bytes
//
// The package knows nothing of etcd, of HTTP, and of what keys and values mean.
package stream
