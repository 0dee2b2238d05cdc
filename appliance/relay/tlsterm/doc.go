// Package tlsterm is TLS for relayed connections: certificates from Secrets, towards clients and towards
// endpoints, and the server name that a client asks for, read without decrypting.
//
// A Keeper keeps the last usable certificate of each Secret, in memory only. What it makes is never
// changed afterwards: a rotated certificate is a new Config for new connections, and established ones go on.
//
// It is independent of Services and listeners; its caller connects.
package tlsterm
