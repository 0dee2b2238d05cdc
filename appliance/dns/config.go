package dns

import (
	"net/netip"
	"slices"

	"svcctl.io/svcctl/appliance/resolve"
)

// Config is what a Server is told. Who makes it has validated it.
type Config struct {
	// Addresses are where the server answers, over UDP and TCP, each as host:port; an
	// empty host is every address.
	Addresses []string
	// Domain is the zone, in lower case and without a dot at the end: "cluster.local".
	// It has at most MaxDomain bytes.
	Domain string
	// Upstreams are the resolvers for names that are not ours, in order of preference;
	// empty: such names are refused.
	Upstreams []netip.AddrPort
	// Internal are the clients, besides those on this box, that upstreams are asked for.
	Internal []netip.Prefix
	// ServiceRanges are where cluster IPs come from; their reverse zones are ours.
	ServiceRanges []netip.Prefix
	// Namespaces says in which namespace clients are.
	Namespaces []ClientNamespace
	// Count is told of every answer with its result, one of Results; nil: nobody counts.
	// It must not block.
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

// Results are all results of answers. Messages that are no questions have none.
var Results = []string{resultSuccess, resultNoName, resultFailed, resultRefused, resultBad, resultLimited}

// MaxDomain is the longest domain, in bytes, with which every name fits into the 255
// bytes of RFC 1035, section 2.3.4: three labels of 63, those of an endpoint, a Service
// and a namespace, and "svc" stand before it.
const MaxDomain = 255 - 3*(63+1) - (3 + 1) - 2

// ClientNamespace says that the clients in a prefix are in a namespace: they may leave
// it out, and the domain.
type ClientNamespace struct {
	Prefix    netip.Prefix
	Namespace string
}

// facts are what endpoints are judged by.
func (c *Config) facts() *resolve.Facts { return &resolve.Facts{ServiceRanges: c.ServiceRanges} }

// byLength are the namespaces with the most specific prefixes first.
func byLength(all []ClientNamespace) []ClientNamespace {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b ClientNamespace) int { return b.Prefix.Bits() - a.Prefix.Bits() })
	return sorted
}
