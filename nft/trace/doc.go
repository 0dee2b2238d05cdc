// Package trace follows packets through all rules of this host, ours and others', as `nft monitor
// trace` does (meta nftrace, NFNLGRP_NFTRACE).
//
// The packets to trace are chosen by a table of its own, svcctl-trace, just behind connection tracking. It
// belongs to a socket (flag owner, kernel 5.12) and is deleted with it, also when the process is
// killed. At most ten packets a second are traced, so that a trace costs the host nothing to speak
// of.
package trace
