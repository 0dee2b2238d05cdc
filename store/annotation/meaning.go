package annotation

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// Bad is an annotation with an invalid or ineffective value, and the consequence.
type Bad struct {
	Key  string
	Text string // the problem and its consequence
	// Idle means that the value is valid but has no effect on this object.
	Idle bool
}

// Field returns the field path of an annotation, as in "metadata.annotations[KEY]".
func Field(key string) string { return fmt.Sprintf("metadata.annotations[%s]", key) }

// internalValues returns the value of an annotation that asks for an internal load balancer (yes), and the value that asks for none (no). If yes is
// "", every value other than no asks for an internal one. Unknown values count as yes too, because exposing an internal address would be the worse
// mistake.
func (r *Row) internalValues() (yes, no string) {
	if values := strings.Split(r.Values, ", "); len(values) > 1 {
		return values[0], values[1]
	}
	return "", ""
}

// Internal is the result of InternalOf: whether a load balancer is for internal clients only.
type Internal struct {
	// Key is the annotation that asks for an internal load balancer; "" if there is none.
	Key string
	// Sources are client prefixes in the annotation's value, which apply if the Service has no source ranges. It is nil if the value has none.
	Sources []string
	Bad     []Bad
}

// InternalOf parses the annotations, of clouds and of svcctl, that ask for an internal load balancer. They are ignored on Services of other types
// than LoadBalancer.
func InternalOf(svc *object.Service) (i Internal) {
	if svc.Spec.Type != object.TypeLoadBalancer || len(svc.Metadata.Annotations) == 0 {
		return i
	}
	for _, r := range table().internals {
		value := strings.TrimSpace(svc.Metadata.Annotations[r.Key])
		yes, no := r.internalValues()
		if value == "" || strings.EqualFold(value, no) {
			continue
		}
		i.Key = cmp.Or(i.Key, r.Key)
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

// PrefersZone reports whether the annotations of a load balancer disable AWS cross-zone load balancing, so that traffic stays in its zone. It also
// returns invalid annotations.
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

// IsNLB reports whether a load balancer asks to be an AWS NLB, where source ranges apply to node ports too.
func IsNLB(svc *object.Service) bool {
	return svc.Spec.Type == object.TypeLoadBalancer && isNLB(svc.Metadata.Annotations[awsType])
}

func isNLB(value string) bool { return isAny(value, "nlb", "nlb-ip", "external") }

// pairs parses comma-separated key=value pairs.
func pairs(text string) map[string]string {
	values := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if key, value, _ := strings.Cut(pair, "="); strings.TrimSpace(key) != "" {
			values[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return values
}

// askedAddresses lists the keys of annotations that request load balancer IPs, with that of svcctl first.
var askedAddresses = []string{
	LoadBalancerIPs, "metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs", "lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips",
	"kube-vip.io/loadbalancerIPs", azure + "load-balancer-ipv4", azure + "load-balancer-ipv6", openStack + "load-balancer-address",
	aws + "private-ipv4-addresses", aws + "ipv6-addresses", "purelb.io/addresses", "loxilb.io/staticIP",
}

// Asked is one load balancer IP requested by an annotation: the key, and the address as written there.
type Asked struct{ Key, Text string }

// Addresses returns the load balancer IPs that annotations request, in the order of askedAddresses.
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

// AddressPool returns the name of the pool that a Service's annotations request; "" means any pool.
func AddressPool(annotations map[string]string) string {
	return cmp.Or(strings.TrimSpace(annotations["metallb.io/address-pool"]), strings.TrimSpace(annotations["metallb.universe.tf/address-pool"]))
}

var sharingKeys = []string{SharingKey, "metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip", "lbipam.cilium.io/sharing-key", "io.cilium/lb-ipam-sharing-key"}

// Sharing returns the sharing key of a load balancer: Services with equal keys may share an IP; "" if it shares none.
func Sharing(annotations map[string]string) string {
	for _, key := range sharingKeys {
		if text := annotations[key]; text != "" {
			return text
		}
	}
	return ""
}

// UnreadableAccess returns the first annotation of a load balancer that refers to a client list stored in a cloud, which svcctl cannot read; "" if
// there is none.
func UnreadableAccess(svc *object.Service) string {
	lists := table().clientLists
	i := slices.IndexFunc(lists, func(r *Row) bool { return strings.TrimSpace(svc.Metadata.Annotations[r.Key]) != "" })
	if i < 0 || svc.Spec.Type != object.TypeLoadBalancer {
		return ""
	}
	return lists[i].Key
}

// SourceRanges returns the client prefixes in an annotation of a cloud, or in object.AnnotationSourceRanges (already validated), for a Service
// without spec.loadBalancerSourceRanges. It also returns the key of that annotation.
func SourceRanges(annotations map[string]string) (ranges []string, key string) {
	for _, key := range []string{object.AnnotationSourceRanges, azure + "allowed-ip-ranges"} {
		if text := strings.TrimSpace(annotations[key]); text != "" {
			return strings.Split(text, ","), key
		}
	}
	return nil, ""
}

// A Remark informs the author of an object about a label or an annotation, or about a field that an annotation needs.
type Remark struct {
	Field string // such as metadata.annotations[svcctl.io/balance]
	Text  string
	// Refused means that a svcctl annotation is invalid, so that the object is not stored.
	Refused bool
	// Safe means that the affected part of the object is not served.
	Safe bool
}

// String returns the field and the text.
func (r Remark) String() string { return r.Field + ": " + r.Text }

// IsOurs reports whether a field path is that of a svcctl annotation.
func IsOurs(field string) bool { return strings.HasPrefix(field, "metadata.annotations["+domain) }

// Remarks returns remarks about svcctl annotations that are unknown or have no effect on objects of this kind, and about invalid values of labels. It
// includes invalid values of annotations for kinds other than Service (for these see Values), and invalid EndpointsFrom annotations of Services.
func Remarks(o object.Object) (list []Remark) {
	meta := o.GetMeta()
	kind := o.GetTypeMeta().Kind
	for _, key := range found(meta.Annotations, false) {
		switch r := Find(key); {
		case r.Of == ofSvcctl && r.Effect == Named && r.isPattern() && slices.Contains(judgedKinds, kind): // not of one that had an effect once
			list = append(list, Remark{Field: Field(key), Text: r.Text + misspelled(key), Refused: true})
		case !slices.Contains(r.kinds(), kind):
			if text := r.elsewhere(kind); text != "" && r.Of == ofSvcctl {
				list = append(list, Remark{Field: Field(key), Text: text, Refused: true})
			}
		case kind != object.KindService:
			if text := wrongValue(key, meta.Annotations[key]); text != "" {
				list = append(list, Remark{Field: Field(key), Text: text, Refused: r.Of == ofSvcctl})
			}
		}
	}
	if svc, is := o.(*object.Service); is {
		list = append(list, badSources(svc)...)
	}
	for _, key := range found(meta.Labels, true) {
		if slices.Contains(Find(key).kinds(), kind) {
			if text := wrongValue(key, meta.Labels[key]); text != "" {
				list = append(list, Remark{Field: fmt.Sprintf("metadata.labels[%s]", key), Text: text})
			}
		}
	}
	return list
}

// Values returns the annotations of a Service with invalid values, except those that other functions of this package parse.
func Values(svc *object.Service) (bad []Bad) {
	a := svc.Metadata.Annotations
	if AreInert(a) {
		return nil // mostly
	}
	if svc.Spec.Type == object.TypeLoadBalancer {
		for _, asked := range Addresses(a) {
			if addr, err := netip.ParseAddr(asked.Text); err != nil || addr.Zone() != "" || addr.Is4In6() {
				bad = append(bad, Bad{Key: asked.Key, Text: wrongAddress(asked.Text)})
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(a)) {
		if r := Find(key); r == nil || r.balancer && svc.Spec.Type != object.TypeLoadBalancer {
			continue
		}
		if text := wrongValue(key, a[key]); text != "" {
			bad = append(bad, Bad{Key: key, Text: text})
		}
	}
	return bad
}

// wrongAddress returns the message about a value that is not an allowed IP address.
func wrongAddress(text string) string {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Is4In6() {
		return fmt.Sprintf("%q is an IPv4 address written as an IPv6 one, and is not given: write %s", text, addr.Unmap())
	}
	return fmt.Sprintf("%q is no address, so none is given for it: write addresses with commas between them, as 192.0.2.7", text)
}

// wrongValue returns the message about an invalid value of an annotation; "" if the value is valid, or is checked elsewhere.
func wrongValue(key, value string) string {
	trimmed := strings.TrimSpace(value)
	if trimmed == "" && !strings.HasPrefix(key, domain) {
		return ""
	}
	switch key {
	case domain + "allow-host-address":
		return unless(isAny(value, "true", "false"), value, `neither "true" nor "false", so addresses of the box are not served`)
	case InternalPool:
		return unless(isAny(value, "true", "false"), value, `neither "true" nor "false", so the pool is not internal`)
	case digitalOcean + "tls-passthrough":
		return unless(isAny(value, "true", "false"), value, `neither "true" nor "false", so it is taken as "false"`)
	case awsType:
		return unless(isNLB(value), value, "not nlb, nlb-ip or external, and has no effect: connections are balanced as by nlb; for HTTP write "+BackendProtocol)
	case "metallb.io/address-pool", "metallb.universe.tf/address-pool":
		if len(object.NameProblems(trimmed)) > 0 {
			return fmt.Sprintf("%q is no name of an IPAddressPool, so no address is given", value)
		}
	case skipMirror:
		return unless(isAny(value, "true", "false"), value, `neither "true" nor "false", so the Endpoints are mirrored`)
	case overCapacity:
		return unless(isAny(value, "truncated", "warning"), value, `not "truncated": it has no addresses`)
	case Announce:
		return unless(isAny(value, "when-ready", "always"), value, "neither when-ready nor always: it is taken as when-ready")
	case MED:
		return unlessUpTo(value, 1<<32-1)
	case Prepend:
		return unlessUpTo(value, 10)
	case TTLSecurity:
		return unless(isAny(value, "1"), value, "not 1: only that is served, for peers one hop away")
	}
	return ""
}

func unless(is bool, value, text string) string {
	if is {
		return ""
	}
	return fmt.Sprintf("%q is %s", value, text)
}

func unlessUpTo(value string, most uint64) string {
	if n, err := strconv.ParseUint(value, 10, 64); err == nil && n <= most {
		return ""
	}
	return fmt.Sprintf("%q is no number up to %d: it has no effect", value, most)
}

// Foreigners returns remarks about the labels and annotations of an object that ask for something that svcctl does not do, with the consequence and what to write
// instead. They include those that make it refuse to serve the object.
func Foreigners(o object.Object) []Remark { return foreigners(o, true) }

// Unserved is like Foreigners, without the annotations that make svcctl refuse to serve the Service: those are reported as problems of the Service.
func Unserved(o object.Object) []Remark { return foreigners(o, false) }

func foreigners(o object.Object, refused bool) (list []Remark) {
	meta := o.GetMeta()
	if len(meta.Labels)+len(meta.Annotations) == 0 {
		return nil
	}
	if o.GetTypeMeta().Kind != object.KindService { // whose values package resolve judges
		for _, r := range Remarks(o) {
			if !r.Refused {
				list = append(list, r)
			}
		}
	}
	for _, of := range []struct {
		field  string
		values map[string]string
	}{{"annotations", meta.Annotations}, {"labels", meta.Labels}} {
		for _, key := range found(of.values, of.field == "labels") {
			r := Find(key)
			if text := r.foreign(o, of.values[key], refused); text != "" {
				if r.isPattern() {
					text += misspelled(key)
				}
				list = append(list, Remark{Field: fmt.Sprintf("metadata.%s[%s]", of.field, key), Text: text})
			}
		}
	}
	return list
}

// foreign returns the text about a value that asks for something that svcctl does not do; "" for any other value. If refused is set, it includes
// annotations with the effect Refused.
func (r *Row) foreign(o object.Object, value string, refused bool) string {
	kind := o.GetTypeMeta().Kind
	switch svc, isService := o.(*object.Service); {
	case !slices.Contains(r.kinds(), kind):
		return r.elsewhere(kind)
	case r.balancer && isService && svc.Spec.Type != object.TypeLoadBalancer:
		if _, no := r.internalValues(); r.idle != nil && r.asksNothing(value) || r.idle == nil && (isAny(value, offWords...) || r.internal && isAny(value, no)) {
			return ""
		}
		return "has no effect: the Service is not of type LoadBalancer" + r.ours()
	case r.Effect == Named, refused && r.Effect == Refused:
		if !r.asksNothing(value) {
			return r.Text
		}
	}
	return ""
}

// elsewhere returns the message about an annotation on an object of a kind for which it has no effect; "" if no message is needed.
func (r *Row) elsewhere(kind string) string {
	switch {
	case r.Label || !slices.Contains(judgedKinds, kind):
		return ""
	case r.Of == ofSvcctl && r.Effect == Named:
		return r.Text
	case r.Effect == Acts && (r.Of == ofSvcctl || kind == object.KindService):
		return fmt.Sprintf("has no effect here: it is an annotation of %s, not of %s", strings.Join(r.kinds(), ", "), kind) + r.ours()
	}
	return ""
}

// Notes returns notes about unknown annotations of a Service with keys that look like load balancer annotations. They are returned to the client that
// applies the object, and are not part of the status.
func Notes(o object.Object) (list []Remark) {
	if o.GetTypeMeta().Kind != object.KindService {
		return nil
	}
	meta := o.GetMeta()
	for _, key := range slices.Sorted(maps.Keys(meta.Annotations)) {
		if near := misspelled(key); near != "" && Find(key) == nil {
			list = append(list, Remark{Field: Field(key), Text: "has no effect" + near})
		} else if Find(key) == nil && aboutBalancers(key) && !isAny(meta.Annotations[key], offWords...) {
			list = append(list, Remark{Field: Field(key), Text: "has no effect here, whatever it requests (TLS, an address, allowed clients): it is about another load balancer; `svcctl explain annotations` lists what takes its place"})
		}
	}
	return list
}

// aboutBalancers reports whether a key contains a word that suggests a load balancer.
func aboutBalancers(key string) bool {
	key = strings.ToLower(key)
	if strings.Contains(key, "loadbalanc") || strings.Contains(key, "load-balanc") || strings.Contains(key, "proxy-protocol") || strings.Contains(key, "proxyprotocol") {
		return true
	}
	words := strings.FieldsFunc(key, func(r rune) bool { return strings.ContainsRune("./-_", r) })
	return slices.ContainsFunc(words, func(word string) bool {
		return strings.HasSuffix(word, "lb") || slices.Contains([]string{"vip", "vips", "ipvs", "ingress"}, word)
	})
}

// misspelled returns "; did you mean KEY?" with the key of the table that differs in upper and lower case only; "" if there is none.
func misspelled(key string) string {
	if i := slices.IndexFunc(Table(), func(r Row) bool { return !r.isPattern() && r.Key != key && strings.EqualFold(r.Key, key) }); i >= 0 {
		return "; did you mean " + Table()[i].Key + "?"
	}
	return ""
}

// judgedKinds are the kinds of objects on which misplaced annotations are reported.
var judgedKinds = []string{
	object.KindService, object.KindEndpointSlice, object.KindEndpoints, object.KindPod, object.KindNamespace,
	object.KindIPAddressPool, object.KindL2Advertisement, object.KindBGPAdvertisement, object.KindBGPPeer, object.KindBFDProfile,
}

// ours returns the end of a message, "; write KEY", with the svcctl annotation that replaces this one; "" if there is none.
func (r *Row) ours() string {
	if r.instead == "" {
		return ""
	}
	return "; write " + r.instead
}
