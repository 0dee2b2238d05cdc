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
	errs = append(errs, checkAnnotation(&s.Metadata, before, AnnotationClientRateLimit, rate)...)
	errs = append(errs, checkAnnotation(&s.Metadata, before, AnnotationClientConnections, checkBy(ParseConnections))...)
	return append(errs, checkAnnotation(&s.Metadata, before, AnnotationEndpointConnections, checkBy(ParseConnections))...)
}
