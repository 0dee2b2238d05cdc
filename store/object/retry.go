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
