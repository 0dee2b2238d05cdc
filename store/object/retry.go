package object

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// AnnotationRetryAfter of a Service is how long an endpoint may leave a client's SYN unanswered
// until the client's next one is balanced anew: "1s", or "1".
const AnnotationRetryAfter = "svcctl.io/retry-after"

// The shortest and the longest time of AnnotationRetryAfter. A client repeats its SYN after a
// second; less would forget connections to endpoints that are merely far away.
const (
	MinRetryAfter = time.Second
	MaxRetryAfter = 30 * time.Second
)

// AnnotationSlowStart of a Service is how long a new endpoint takes until it has its whole weight: "30s".
const AnnotationSlowStart = "svcctl.io/slow-start"

// The shortest and the longest time of AnnotationSlowStart.
const (
	MinSlowStart = time.Second
	MaxSlowStart = 15 * time.Minute
)

// AnnotationEject of a Service has endpoints without a health check taken out while they do not accept connections:
// "true" or "false".
const AnnotationEject = "svcctl.io/eject"

// ParseEject reads the value of AnnotationEject.
func ParseEject(value string) (bool, error) { return ParseAdopt(value) }

// AnnotationAdopt of a Service has TCP connections to its load balancer IPs and external IPs go on when another box
// takes over: "true" or "false".
const AnnotationAdopt = "svcctl.io/adopt-connections"

// ParseAdopt reads the value of AnnotationAdopt.
func ParseAdopt(value string) (bool, error) {
	switch value {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf(`must be "true" or "false"`)
}

// ParseSlowStart reads the value of AnnotationSlowStart.
func ParseSlowStart(value string) (time.Duration, error) {
	d, err := ParseSeconds(value)
	if err != nil || d < MinSlowStart || d > MaxSlowStart {
		return 0, fmt.Errorf("must be a time from 1s to 15m, as \"30s\"")
	}
	return d, nil
}

// ParseRetryAfter reads the value of AnnotationRetryAfter.
func ParseRetryAfter(value string) (time.Duration, error) {
	d, err := ParseSeconds(value)
	if err != nil || d < MinRetryAfter || d > MaxRetryAfter {
		return 0, fmt.Errorf("must be a time from %s to %s, as \"2s\"", MinRetryAfter, MaxRetryAfter)
	}
	return d, nil
}

// ParseSeconds reads a time as annotations have it: like "5s", or a number of seconds.
func ParseSeconds(value string) (time.Duration, error) {
	text := strings.TrimSpace(value)
	if _, err := strconv.ParseUint(text, 10, 32); err == nil {
		text += "s"
	}
	return time.ParseDuration(text)
}
