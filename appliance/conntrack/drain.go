package conntrack

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Drain is the policy for connections to an endpoint that is gone. The zero value follows
// Kubernetes: those of TCP live on, all others are forgotten at once.
type Drain struct {
	On bool
	// Timeout bounds the life of a connection after its endpoint went.
	Timeout time.Duration
}

// The annotations of a Service that ask for draining. The first is ours and wins; the others are
// those of load balancers of AWS.
const (
	AnnotationDrain        = "svcctl.io/drain-timeout" // "60s", or "60"
	AnnotationELBDrain     = "service.beta.kubernetes.io/aws-load-balancer-connection-draining-enabled"
	AnnotationELBDrainTime = "service.beta.kubernetes.io/aws-load-balancer-connection-draining-timeout" // seconds
)

// elbDrainTimeout is the default drain time of AWS load balancers.
const elbDrainTimeout = 300 * time.Second

// maxDrain bounds what an annotation may ask for; connections that live longer do so
// without draining too.
const maxDrain = 7 * 24 * time.Hour

// ParseDrain reads a Service's annotations. An error names the annotation and says what
// is expected there; the Drain is then the zero one.
func ParseDrain(annotations map[string]string) (Drain, error) {
	if text, ok := annotations[AnnotationDrain]; ok {
		return parseDrain(AnnotationDrain, text)
	}
	enabled, ok := annotations[AnnotationELBDrain]
	if !ok {
		return Drain{}, nil
	}
	on, err := strconv.ParseBool(strings.TrimSpace(enabled))
	switch {
	case err != nil:
		return Drain{}, fmt.Errorf(`annotation %s: %q is neither "true" nor "false"`, AnnotationELBDrain, enabled)
	case !on:
		return Drain{}, nil
	}
	if text, ok := annotations[AnnotationELBDrainTime]; ok {
		return parseDrain(AnnotationELBDrainTime, text)
	}
	return Drain{On: true, Timeout: elbDrainTimeout}, nil
}

func parseDrain(annotation, text string) (Drain, error) {
	trimmed := strings.TrimSpace(text)
	if _, err := strconv.ParseUint(trimmed, 10, 32); err == nil {
		trimmed += "s"
	}
	timeout, err := time.ParseDuration(trimmed)
	if err != nil || timeout < 0 || timeout > maxDrain {
		return Drain{}, fmt.Errorf(`annotation %s: %q is not a time between 0s and %s; write it like "60s", or in seconds`, annotation, text, maxDrain)
	}
	return Drain{On: true, Timeout: timeout}, nil
}
