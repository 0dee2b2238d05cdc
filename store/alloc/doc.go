// Package alloc hands out the numbers that Services live at: cluster IPs of one
// family ([Addresses]), node ports and health-check node ports ([Ports]) and
// load balancer IPs ([Pools]).
//
// Invariants:
//   - A holder always wins. A value that is held is never given to anybody else,
//     whatever its holder or the ranges look like by now. Values that were held
//     before a range moved stay held (Hold) until they are released.
//   - The choice of a free value is a function of the owner's name and of the
//     held values, nothing else: the same Service gets the same value again when it is
//     still free.
//   - Automatic values come from the upper band of a range first, so that the lower
//     band stays free for values written by people. Bands are those of Kubernetes
//     (KEP-3070 for cluster IPs, KEP-3668 for node ports).
//   - Finding a free value takes a number of steps that grows with the logarithm of
//     the range, and memory grows with the number of held values, not with the range.
//
// The package is pure: it reads no clock, no file and no random numbers, logs nothing
// and is not safe for concurrent use. It must not import the store or nft.
//
//	addresses, err := alloc.NewAddresses(netip.MustParsePrefix("10.96.0.0/16"))
//	err = addresses.Take(netip.MustParseAddr("10.96.0.10"), "kube-system/dns")
//	ip, err := addresses.Next("default/web", nil)
package alloc
