package annotation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// Bad is a value that an annotation cannot have, and its consequence.
type Bad struct {
	Key  string
	Text string // "“yes” is …; …"
	// Idle is set when the value has a meaning, and no effect on this object.
	Idle bool
}

// Field is the path of an annotation in an object.
func Field(key string) string { return fmt.Sprintf("metadata.annotations[%s]", key) }

// internalValues are the value of an annotation that asks for an internal load balancer and the one that does not; "": every
// value but none asks for it. Any value besides the two asks for it too: an address that is reached by too many would be the worse
// mistake.
func (r *Row) internalValues() (yes, no string) {
	if values := strings.Split(r.Values, ", "); len(values) > 1 {
		return values[0], values[1]
	}
	return "", ""
}

// Internal is whether a Service is to be reached from inside only.
type Internal struct {
	// Key is the annotation that asks for it; "": none does.
	Key string
	// Sources are prefixes that it names besides: the permitted clients where there are no source
	// ranges. Nil: it names none.
	Sources []string
	Bad     []Bad
}

// InternalOf reads the annotations of a load balancer that ask for an internal one. Of other
// Services they mean nothing.
func InternalOf(svc *object.Service) (i Internal) {
	if svc.Spec.Type != object.TypeLoadBalancer || len(svc.Metadata.Annotations) == 0 {
		return i
	}
	for _, r := range internals {
		value := strings.TrimSpace(svc.Metadata.Annotations[r.Key])
		yes, no := r.internalValues()
		if value == "" || strings.EqualFold(value, no) {
			continue
		}
		if i.Key == "" {
			i.Key = r.Key
		}
		if yes == "" || strings.EqualFold(value, yes) {
			continue
		}
		switch prefix, err := netip.ParsePrefix(value); {
		case r.Key != awsInternal || err != nil:
			want := fmt.Sprintf("%q nor %q", yes, no)
			if r.Key == awsInternal {
				want += " nor a prefix"
			}
			i.Bad = append(i.Bad, Bad{Key: r.Key, Text: fmt.Sprintf("%q is neither %s, so the Service is taken to be internal", value, want)})
		case prefix.Bits() > 0:
			i.Sources = append(i.Sources, prefix.Masked().String())
		}
	}
	return i
}

// PrefersZone reports whether a load balancer asks to stay in its zone: cross-zone balancing of
// AWS is off.
func PrefersZone(svc *object.Service) (prefers bool, bad []Bad) {
	if svc.Spec.Type != object.TypeLoadBalancer {
		return false, nil
	}
	key, value := awsCrossZone, strings.TrimSpace(svc.Metadata.Annotations[awsCrossZone])
	if value == "" {
		attribute, given := pairs(svc.Metadata.Annotations[awsAttributes])[attributeCrossZone]
		if !given {
			return false, nil
		}
		key, value = awsAttributes, attribute
	}
	switch {
	case strings.EqualFold(value, "false"):
		return true, nil
	case !strings.EqualFold(value, "true"):
		bad = []Bad{{Key: key, Text: fmt.Sprintf("%q is neither \"true\" nor \"false\", so endpoints of all zones are used", value)}}
	}
	return false, bad
}

// IsNLB reports whether a load balancer asks to be an NLB of AWS, whose source ranges hold for node ports too.
func IsNLB(svc *object.Service) bool {
	return svc.Spec.Type == object.TypeLoadBalancer && isNLB(svc.Metadata.Annotations[awsType])
}

func isNLB(value string) bool { return isAny(value, "nlb", "nlb-ip", "external") }

// pairs reads key=value, with commas between them.
func pairs(text string) map[string]string {
	values := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if key, value, _ := strings.Cut(pair, "="); strings.TrimSpace(key) != "" {
			values[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return values
}

// askedAddresses are the annotations that ask for load balancer IPs, ours first.
var askedAddresses = []string{
	LoadBalancerIPs, "metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs", "lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips",
	"kube-vip.io/loadbalancerIPs", azure + "load-balancer-ipv4", azure + "load-balancer-ipv6", openStack + "load-balancer-address",
	aws + "private-ipv4-addresses", aws + "ipv6-addresses", "purelb.io/addresses", "loxilb.io/staticIP",
}

// Asked is one load balancer IP that an annotation asks for, as it is written.
type Asked struct{ Key, Text string }

// Addresses are the load balancer IPs that annotations ask for, in the order of the annotations.
func Addresses(annotations map[string]string) (list []Asked) {
	if len(annotations) == 0 {
		return nil
	}
	for _, key := range askedAddresses {
		for text := range strings.SplitSeq(annotations[key], ",") {
			if text = strings.TrimSpace(text); text != "" {
				list = append(list, Asked{key, text})
			}
		}
	}
	return list
}

// AddressPool is the name of the pool that a Service's annotations ask for; "": any.
func AddressPool(annotations map[string]string) string {
	return cmp.Or(strings.TrimSpace(annotations["metallb.io/address-pool"]), strings.TrimSpace(annotations["metallb.universe.tf/address-pool"]))
}

var sharingKeys = []string{SharingKey, "metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip", "lbipam.cilium.io/sharing-key", "io.cilium/lb-ipam-sharing-key"}

// Sharing is the text that load balancers with one IP have in common; "": it shares none.
func Sharing(annotations map[string]string) string {
	for _, key := range sharingKeys {
		if text := annotations[key]; text != "" {
			return text
		}
	}
	return ""
}

// UnreadableAccess returns the annotation of a load balancer that names a list of clients which is
// not available here; "": it has none.
func UnreadableAccess(svc *object.Service) string {
	i := slices.IndexFunc(clientLists, func(r *Row) bool { return strings.TrimSpace(svc.Metadata.Annotations[r.Key]) != "" })
	if i < 0 || svc.Spec.Type != object.TypeLoadBalancer {
		return ""
	}
	return clientLists[i].Key
}

// SourceRanges are the prefixes that annotations name where spec.loadBalancerSourceRanges has
// none, and which annotation names them. Those of object.AnnotationSourceRanges are valid.
func SourceRanges(annotations map[string]string) (ranges []string, key string) {
	for _, key := range []string{object.AnnotationSourceRanges, azure + "allowed-ip-ranges"} {
		if text := strings.TrimSpace(annotations[key]); text != "" {
			return strings.Split(text, ","), key
		}
	}
	return nil, ""
}
