package resolve

import (
	"slices"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// ReasonFastPathUnused is the problem reason for a Service that requests the fast path but cannot use it.
const ReasonFastPathUnused = "FastPathUnused"

// FastPath is the fast path setting of the box and whether its kernel supports it. The zero value disables the fast path.
type FastPath struct {
	Asked, All bool   // Asked: Services can request the fast path; All: each Service uses it unless it opts out
	Lacks      string // why the kernel cannot provide the fast path, and how to fix that; "" if it can
}

// readFastPath decides whether established connections of the Service use the fast path. If the annotation requests it but a setting or the kernel
// prevents it, readFastPath adds a warning.
func (r *resolver) readFastPath() {
	value, given := r.Service.Metadata.Annotations[object.AnnotationFastPath]
	wanted, err := object.ParseBool(value)
	fast := r.facts.FastPath
	why, field := "", annotation.Field(object.AnnotationFastPath)
	switch {
	case given && err != nil:
		r.warn(r.ref, field, reasonUnknownValue, "%v: established connections are not fast", err)
		why = "the value of the annotation is wrong"
	case given && !wanted:
		why = object.AnnotationFastPath + ": \"false\""
	case !fast.Asked && !fast.All:
		why = "`svcctl serve` has --fast-path off: set it to services"
	case !given && !fast.All:
		why = "it does not ask: write " + object.AnnotationFastPath + ": \"true\""
	case fast.Lacks != "":
		why = fast.Lacks
	default:
		why = r.tooSlow()
	}
	if wanted && why != "" {
		r.warn(r.ref, field, ReasonFastPathUnused, "has no effect: %s", why)
	}
	r.slow = why
}

// tooSlow returns the reason why the Service cannot use the fast path, in words; "" if it can. The fast path skips connection tracking and
// the rules, which some settings need.
func (r *resolver) tooSlow() string {
	refresh := slices.ContainsFunc(nft.Families[:], func(f nft.Family) bool { return r.options[f].Refresh })
	switch {
	case r.idle > 0:
		return "idle-timeout does not apply to packets that skip connection tracking: remove one of the two"
	case refresh:
		return object.AnnotationAffinityRefresh + ": packets needs every answer, and answers that skip the rules are not seen: remove one of the two"
	case r.relayed.Asked():
		return "its connections end at the relay of this box, and what the box answers itself is not forwarded"
	case !slices.ContainsFunc(r.Service.Spec.Ports, func(p object.ServicePort) bool { return p.Protocol != object.ProtocolSCTP }):
		return "the kernel's flowtables have TCP and UDP, not SCTP"
	}
	return ""
}
