// Package discovery lists the kinds that the API serves, in the two forms that clients request:
// the old documents, one for each group version, and the aggregated ones, which are two in
// all.
//
// The aggregated form differs by its media type alone: a client that gets it as plain
// application/json reads it as the old one and finds nothing. Send it with AggregatedType.
//
// Everything is made from the table in package kind. The package computes only.
//
//	GET /api                        Versions, or Aggregated("v2", true)
//	GET /apis                       Groups, or Aggregated("v2", false)
//	GET /apis/discovery.k8s.io      GroupOf("discovery.k8s.io")
//	GET /apis/discovery.k8s.io/v1   ResourcesOf("discovery.k8s.io/v1")
package discovery
