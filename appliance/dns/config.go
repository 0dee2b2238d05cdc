package dns

import (
	"net/netip"
	"slices"

	"svcctl.io/svcctl/appliance/resolve"
)

// Config configures a Server. Its maker has validated it.
type Config struct {
	// Addresses are the listening addresses for UDP and TCP as host:port; an empty host
	// means all.
	Addresses []string
	// Domain is the zone in lower case, without a trailing dot: "cluster.local". It has
	// at most MaxDomain bytes.
	Domain string
	// Upstreams are the resolvers for names outside our zones, in order of preference.
	// Without any, such names are refused.
	Upstreams []netip.AddrPort
	// Internal are the networks, besides this host, whose questions may go to upstreams.
	Internal []netip.Prefix
	// ServiceRanges are the ranges of cluster IPs; their reverse zones are ours.
	ServiceRanges []netip.Prefix
	// Namespaces maps clients to namespaces.
	Namespaces []ClientNamespace
	// Count, if not nil, is called with the result of every answer, one of Results. It
	// must not block.
	Count func(result string)
}

// The results of answers.
const (
	resultSuccess = "success" // with and without records
	resultNoName  = "nxdomain"
	resultFailed  = "failed" // also because an upstream failed
	resultRefused = "refused"
	resultBad     = "bad" // the question cannot be answered by anybody
	resultLimited = "limited"
)

// Results lists the results of answers, for metrics. Messages other than questions have none.
var Results = []string{resultSuccess, resultNoName, resultFailed, resultRefused, resultBad, resultLimited}

// MaxDomain is the maximum length of the domain in bytes, so that every name fits into
// 255 bytes (RFC 1035, section 2.3.4): three labels of 63 for an endpoint, a Service and
// a namespace, and "svc" precede it.
const MaxDomain = 255 - 3*(63+1) - (3 + 1) - 2

// ClientNamespace puts the clients of a prefix into a namespace: they may omit the
// namespace and the domain.
type ClientNamespace struct {
	Prefix    netip.Prefix
	Namespace string
}

// facts returns the facts by which endpoints are selected.
func (c *Config) facts() *resolve.Facts { return &resolve.Facts{ServiceRanges: c.ServiceRanges} }

// byLength sorts namespaces by prefix length, longest first.
func byLength(all []ClientNamespace) []ClientNamespace {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b ClientNamespace) int { return b.Prefix.Bits() - a.Prefix.Bits() })
	return sorted
}
