package resolve

import (
	"slices"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// ReasonFastPathUnused is the reason of the problem of a Service that asks for the fast path and cannot have it.
const ReasonFastPathUnused = "FastPathUnused"

// FastPath is the setting of the fast path for the box. The zero value means that there is none.
type FastPath struct {
	Asked, All bool   // Asked: Services that ask are fast; All: all that do not decline
	Lacks      string // why the kernel has no fast path, with the next step
}

// readFastPath decides whether connections of the Service use the fast path. They do not if another setting of the Service would break;
// that is a problem if the Service asks for the fast path.
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
