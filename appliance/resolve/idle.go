package resolve

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Annotations that say after how much silence a connection ends. The first is ours and wins; the
// other one is how Service authors know it from load balancers of AWS.
const (
	AnnotationIdle    = "svcctl.io/idle-timeout"                                               // "60s", or "60"
	AnnotationELBIdle = "service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout" // seconds, 1 to 4000
)

const (
	maxIdle    = 7 * 24 * time.Hour
	maxELBIdle = 4000 * time.Second // as AWS has it
)

// idleTimeout reads the annotations; 0: connections live as long as the host says.
func (r *resolver) idleTimeout() time.Duration {
	annotations := r.Service.Metadata.Annotations
	key, most, unit := AnnotationIdle, maxIdle, "write it like \"60s\", or in seconds"
	text, given := annotations[key]
	if !given {
		key, most, unit = AnnotationELBIdle, maxELBIdle, "write seconds, from 1 to 4000"
		if text, given = annotations[key]; !given {
			return 0
		}
		if r.Service.Spec.Type != object.TypeLoadBalancer {
			return 0
		}
	}
	idle, ok := parseIdle(strings.TrimSpace(text), key == AnnotationIdle)
	switch {
	case !ok || idle > most:
		r.warnValue(key, ReasonInvalidAnnotation,
			"%q is no time from 1s to %s in whole seconds, so connections live by the settings of the host: %s", text, most, unit)
		return 0
	case r.facts.NoTimeouts:
		r.warn(r.ref, annotation.Field(key), "NotSupported",
			"has no effect: this kernel has no timeouts of connection tracking for nf_tables; it needs CONFIG_NF_CONNTRACK_TIMEOUT and kernel 4.19")
		return 0
	}
	if slices.ContainsFunc(r.Service.Spec.Ports, func(p object.ServicePort) bool { return p.Protocol == object.ProtocolSCTP }) {
		r.warn(r.ref, annotation.Field(key), reasonNoEffect, "has no effect on ports of SCTP")
	}
	return idle
}

// parseIdle reads seconds, or where it may be with a unit a time in whole seconds.
func parseIdle(text string, units bool) (time.Duration, bool) {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, seconds > 0
	}
	d, err := time.ParseDuration(text)
	return d, err == nil && units && d >= time.Second && d%time.Second == 0
}
