package object

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Annotations of a Service that limit its connections.
const (
	// AnnotationRateLimit bounds the new connections of each port of the Service: "100/s", "600/m".
	AnnotationRateLimit = "svcctl.io/rate-limit"
	// AnnotationClientRateLimit bounds those of each client.
	AnnotationClientRateLimit = "svcctl.io/client-rate-limit"
	// AnnotationClientConnections bounds the open connections of each client: 1 to 65535.
	AnnotationClientConnections = "svcctl.io/client-connections"
	// AnnotationEndpointConnections bounds the open connections of each endpoint: 1 to 65535.
	AnnotationEndpointConnections = "svcctl.io/endpoint-connections"
)

// The largest values of limits.
const (
	MaxRate        = 1_000_000
	MaxConnections = 65535
)

// ParseRate reads a rate, "100/s" or "600/m".
func ParseRate(value string) (count uint32, per time.Duration, err error) {
	number, unit, _ := strings.Cut(strings.TrimSpace(value), "/")
	per = map[string]time.Duration{"s": time.Second, "m": time.Minute}[unit]
	n, failed := strconv.ParseUint(number, 10, 32)
	if failed != nil || per == 0 || n == 0 || n > MaxRate {
		return 0, 0, fmt.Errorf("must be a rate from 1/m to %d/s, as \"100/s\" or \"600/m\"", MaxRate)
	}
	return uint32(n), per, nil
}

// ParseConnections reads a number of connections.
func ParseConnections(value string) (uint32, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
	if err != nil || n == 0 || n > MaxConnections {
		return 0, fmt.Errorf("must be an integer from 1 to %d", MaxConnections)
	}
	return uint32(n), nil
}

// CutPrefix cuts the prefix lengths of both families from the value of a limit of clients: "600/m per 32,64" counts all
// clients of a prefix as one. Without them a client is an address: 32 and 128.
func CutPrefix(value string) (limit string, ipv4, ipv6 uint8, err error) {
	limit, lengths, given := strings.Cut(value, " per ")
	if !given {
		return value, 32, 128, nil
	}
	if ipv4, ipv6, err = ParseAffinityPrefix(lengths); err != nil {
		return limit, ipv4, ipv6, fmt.Errorf("what stands behind \"per\" %w", err)
	}
	return limit, ipv4, ipv6, nil
}

// ofClients has a check read a limit without its prefix lengths.
func ofClients(check func(path, string) Errors) func(path, string) Errors {
	return func(p path, value string) Errors {
		limit, _, _, err := CutPrefix(value)
		if err != nil {
			return invalid(p, value, err.Error())
		}
		return check(p, limit)
	}
}

// checkLimits is about the annotations of a Service. A value that stands in old is not asked again.
func checkLimits(s, old *Service) Errors {
	var before *ObjectMeta
	if old != nil {
		before = &old.Metadata
	}
	rate := checkBy(func(value string) (uint32, error) {
		n, _, err := ParseRate(value)
		return n, err
	})
	errs := checkAnnotation(&s.Metadata, before, AnnotationRateLimit, rate)
	errs = append(errs, checkAnnotation(&s.Metadata, before, AnnotationClientRateLimit, ofClients(rate))...)
	errs = append(errs, checkAnnotation(&s.Metadata, before, AnnotationClientConnections, ofClients(checkBy(ParseConnections)))...)
	return append(errs, checkAnnotation(&s.Metadata, before, AnnotationEndpointConnections, checkBy(ParseConnections))...)
}
