// Package interop tries announce/bgp and announce/bfd against routers of others: BIRD, FRR,
// OpenBGPD and ExaBGP, in network namespaces. It holds tests only.
package interop
