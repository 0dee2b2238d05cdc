package object

import (
	"fmt"
	"strconv"
	"strings"
)

// Annotations of a Service with session affinity.
const (
	// AnnotationAffinityScope is the scope of session affinity: the port, or all ports of the Service. spec
	// has no field for it (kubernetes#103000).
	AnnotationAffinityScope = "svcctl.io/affinity-scope"
	// AnnotationAffinityPrefix is the length of the client's prefix that affinity uses: "24,64", for IPv4
	// and IPv6.
	AnnotationAffinityPrefix = "svcctl.io/affinity-prefix"
	// AnnotationAffinityRefresh selects what restarts the affinity timeout: new connections, or all packets.
	AnnotationAffinityRefresh = "svcctl.io/affinity-refresh"
)

// The values of AnnotationAffinityScope and AnnotationAffinityRefresh; the first of each is the default.
const (
	AffinityScopePort          = "port"
	AffinityScopeService       = "service"
	AffinityRefreshConnections = "connections"
	AffinityRefreshPackets     = "packets"
)

// ParseAffinityPrefix reads the value of AnnotationAffinityPrefix. What is not written is a whole
// address: 32 or 128.
func ParseAffinityPrefix(value string) (ipv4, ipv6 uint8, err error) {
	four, six, both := strings.Cut(value, ",")
	if !both {
		six = "128"
	}
	v4, err4 := strconv.ParseUint(strings.TrimSpace(four), 10, 8)
	v6, err6 := strconv.ParseUint(strings.TrimSpace(six), 10, 8)
	if err4 != nil || err6 != nil || v4 < 1 || v4 > 32 || v6 < 1 || v6 > 128 {
		return 32, 128, fmt.Errorf("must be a prefix length of IPv4 from 1 to 32, or one of each family, as \"24,64\"")
	}
	return uint8(v4), uint8(v6), nil
}

func checkAffinity(meta, before *ObjectMeta) Errors {
	oneOf := func(key string, values ...string) Errors {
		return checkAnnotation(meta, before, key, func(p path, value string) Errors {
			for _, v := range values {
				if value == v {
					return nil
				}
			}
			return notSupported(p, value, values)
		})
	}
	errs := oneOf(AnnotationAffinityScope, AffinityScopePort, AffinityScopeService)
	errs = append(errs, oneOf(AnnotationAffinityRefresh, AffinityRefreshConnections, AffinityRefreshPackets)...)
	return append(errs, checkAnnotation(meta, before, AnnotationAffinityPrefix, func(p path, value string) Errors {
		if _, _, err := ParseAffinityPrefix(value); err != nil {
			return invalid(p, value, err.Error())
		}
		return nil
	})...)
}
