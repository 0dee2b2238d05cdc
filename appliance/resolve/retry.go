package resolve

import (
	"slices"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// retryAfter reads the annotation; 0: a client's SYNs all go to one endpoint.
func (r *resolver) retryAfter(balance nft.Balance) time.Duration {
	value, given := r.Service.Metadata.Annotations[object.AnnotationRetryAfter]
	if !given {
		return 0
	}
	field := annotation.Field(object.AnnotationRetryAfter)
	after, err := object.ParseRetryAfter(value)
	switch {
	case err != nil:
		r.warn(r.ref, field, reasonUnknownValue, "%v: clients stay with an endpoint that does not answer", err)
		return 0
	case !slices.ContainsFunc(r.Service.Spec.Ports, func(p object.ServicePort) bool { return p.Protocol == object.ProtocolTCP }):
		r.warn(r.ref, field, reasonNoEffect, "has no effect: the Service has no port of TCP")
		return 0
	case r.relayed.Asked():
		r.warn(r.ref, field, reasonNoEffect, "has no effect on ports that are relayed: %s and %s set when and how often another endpoint is tried", annotation.ConnectTimeout, annotation.ConnectRetries)
	case balance == nft.Maglev || balance == nft.SourceHash || balance == nft.DestinationHash:
		r.warn(r.ref, field, "RetrySame",
			"with %s a client's next SYN gets the same endpoint until a health check has taken that out: write svcctl.io/health-check too", BalanceName(balance))
	case r.affinity() > 0:
		r.warn(r.ref, field, "RetrySame",
			"with session affinity a client that is remembered gets the same endpoint until a health check has taken that out: write svcctl.io/health-check too")
	}
	return after
}
