package resolve

import (
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
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

// Times of the annotations. Connections that live longer than maxDrain do so without draining too.
const (
	maxDrain        = 7 * 24 * time.Hour
	elbDrainTimeout = 300 * time.Second // the default of AWS
	minELBDrain     = time.Second       // the bounds of AWS
	maxELBDrain     = 3600 * time.Second
)

// readDrain reads the annotations.
func (r *resolver) readDrain() {
	annotations := r.Service.Metadata.Annotations
	if text, given := annotations[AnnotationDrain]; given {
		timeout, err := object.ParseSeconds(text)
		if err != nil || timeout < 0 || timeout > maxDrain {
			r.warnValue(AnnotationDrain, ReasonInvalidAnnotation, `%q is not a time between 0s and %s, so connections are not drained; write it like "60s", or in seconds`, text, maxDrain)
			return
		}
		r.out.Drain = Drain{true, timeout}
		return
	}
	enabled, given := annotations[AnnotationELBDrain]
	text, timed := annotations[AnnotationELBDrainTime]
	timeout := elbDrainTimeout
	if timed {
		var err error
		if timeout, err = object.ParseSeconds(text); err != nil || timeout < minELBDrain || timeout > maxELBDrain {
			r.warnValue(AnnotationELBDrainTime, ReasonInvalidAnnotation, "%q is no number of seconds from 1 to 3600, so connections are not drained: write one, or %s for a longer time", text, AnnotationDrain)
			return
		}
	}
	switch on, err := strconv.ParseBool(strings.TrimSpace(enabled)); {
	case on:
		r.out.Drain = Drain{true, timeout}
	case given && err != nil:
		r.warnValue(AnnotationELBDrain, ReasonInvalidAnnotation, `%q is neither "true" nor "false", so connections are not drained`, enabled)
	case timed && !given:
		r.warnNoEffect(AnnotationELBDrainTime, "has no effect: write %s: \"true\" too, or %s", AnnotationELBDrain, AnnotationDrain)
	}
}
