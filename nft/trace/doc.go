// Package trace follows packets through the rules of this host, ours and everybody's, as
// `nft monitor trace` does (meta nftrace, NFNLGRP_NFTRACE).
//
// What is traced is chosen by a table of its own, svcctl-trace, just behind connection tracking.
// It belongs to a socket (flag owner, kernel 5.12) and goes with it, by whatever end. At most ten
// packets a second are traced, so that a trace costs the host nothing to speak of.
package trace
