package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// The reasons of problems about annotations.
const (
	reasonNotInternal      = "NotInternal"
	reasonTLSNotTerminated = "TLSNotTerminated"
	reasonUnreadableAccess = "UnreadableAccess"
)

// asks holds what annotations ask for besides the fields of a Service. It has more than 15 fields: one for each thing that they ask for.
type asks struct {
	internal    annotation.Internal
	prefersZone bool
	// sources has the source ranges, of the field or of annotations; nil: all clients may connect.
	sources []string
	relayed annotation.Relay
	// balanceNamed is set when the Service names its algorithm itself.
	balanceNamed bool
	// unkeyed are the ports that lack a certificate or a CA, encrypted those that are not served in the clear.
	unkeyed, encrypted []bool
	// wrong has the fields of values that no Service can have.
	wrong map[string]bool

	idle      time.Duration
	options   map[nft.Family]nft.AffinityOptions
	algorithm nft.Balance
	limits    map[nft.Family]nft.Limits
	ranges    []object.PortRange
	adopted   bool
	egress    egress
	slow      string // the reason for which established connections are not fast, for people
}

// readAnnotations reads the annotations that this package follows, and reports their problems.
func (r *resolver) readAnnotations() {
	svc := r.Service
	var bad []annotation.Bad
	r.internal = annotation.InternalOf(svc)
	r.prefersZone, bad = annotation.PrefersZone(svc)
	r.relayed = annotation.RelayOf(svc)
	r.report(slices.Concat(r.internal.Bad, bad, r.relayed.Bad, annotation.Values(svc))...)
	r.readLogging()
	if svc.Spec.Type != object.TypeLoadBalancer {
		return
	}
	ranges := svc.Spec.LoadBalancerSourceRanges
	if len(ranges) == 0 {
		var key string
		ranges, key = annotation.SourceRanges(svc.Metadata.Annotations)
		for _, text := range ranges {
			if _, err := netip.ParsePrefix(strings.TrimSpace(text)); err != nil {
				r.warnValue(key, ReasonInvalidAnnotation, "%q is no prefix and lets no client in; write it as 192.0.2.0/24", strings.TrimSpace(text))
			}
		}
	}
	if len(ranges) == 0 {
		ranges = r.internal.Sources
	}
	switch key := annotation.UnreadableAccess(svc); {
	case key == "":
	case len(ranges) > 0:
		r.warn(r.ref, annotation.Field(key), reasonUnreadableAccess, "it names a list of clients that svcctl cannot read: the source ranges of the Service hold instead")
	default:
		r.refuse(annotation.Field(key), reasonUnreadableAccess,
			"it names a list of clients that svcctl cannot read, so load balancer IPs let no client in: write the prefixes in spec.loadBalancerSourceRanges")
		ranges = []string{}
	}
	r.sources = ranges
}

// report warns about values of annotations.
func (r *resolver) report(list ...annotation.Bad) {
	for _, b := range list {
		if b.Idle {
			r.warnNoEffect(b.Key, "%s", b.Text)
			continue
		}
		r.warnValue(b.Key, ReasonInvalidAnnotation, "%s", b.Text)
	}
}

// warnValue warns about a value that no Service can have.
func (r *resolver) warnValue(key, reason, format string, args ...any) {
	r.isWrong(annotation.Field(key))
	r.warn(r.ref, annotation.Field(key), reason, format, args...)
}

// warnNoEffect warns about a value that has no effect on this Service.
func (r *resolver) warnNoEffect(key, format string, args ...any) {
	r.warn(r.ref, annotation.Field(key), reasonNoEffect, format, args...)
}

// refuseValue is warnValue for a value that keeps the Service from working as written.
func (r *resolver) refuseValue(key, reason, format string, args ...any) {
	r.isWrong(annotation.Field(key))
	r.refuse(annotation.Field(key), reason, format, args...)
}

func (r *resolver) isWrong(field string) {
	if r.wrong == nil {
		r.wrong = map[string]bool{}
	}
	r.wrong[field] = true
}

// mayBeInternal refuses addresses that are not internal to a Service that asks to be internal.
func (r *resolver) mayBeInternal(field string, a netip.Addr) bool {
	if r.internal.Key == "" || r.facts.isInternal(a) {
		return true
	}
	r.refuse(field, reasonNotInternal, "%s is not served: the annotation %s asks for an internal load balancer, and the address lies in no internal pool; "+
		"name that pool with --load-balancer-internal-pool, or leave the annotation out", a, r.internal.Key)
	return false
}

// isInternal reports whether only clients inside reach an address, whichever Service has it.
func (f *Facts) isInternal(a netip.Addr) bool {
	return slices.ContainsFunc(f.InternalPools, func(p nft.Range) bool { return p.Contains(a) })
}

// asksTLS refuses a port that asks for TLS and cannot have it: it would be passed through in the clear.
func (r *resolver) asksTLS(i int) bool {
	port := &r.Service.Spec.Ports[i]
	key, why := annotation.TLSKey(r.Service, port)
	if key == "" || len(r.front(i).Secrets)+len(r.front(i).Services) > 0 || annotation.WithoutTLS(r.Service, port) {
		return false
	}
	field := fmt.Sprintf("spec.ports[%d]", i)
	if why != "" {
		r.refuse(field, reasonTLSNotTerminated, "port %d is not served, rather than passed through in the clear: the annotation %s asks for TLS, and %s; correct it, or write %s",
			port.Port, key, why, annotation.TLSSecret)
		return true
	}
	r.refuse(field, reasonTLSNotTerminated, "port %d is not served: the annotation %s asks for TLS with a certificate that svcctl cannot read, and without it the port would be passed through in the clear; "+
		"put the certificate and its key into a Secret of type kubernetes.io/tls (`kubectl create secret tls`), and name that in %s", port.Port, key, annotation.TLSSecret)
	return true
}
