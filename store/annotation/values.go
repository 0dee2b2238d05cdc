package annotation

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// A Remark is about a label or annotation, or a field that one asks for, for the author of the object.
type Remark struct {
	Field string // metadata.annotations[svcctl.io/balance]
	Text  string
	// Refused is set when an annotation of svcctl can mean nothing: no object is to be written with it.
	Refused bool
	// Safe is set when what it is about is not served.
	Safe bool
}

// String returns the text for the author of the object.
func (r Remark) String() string { return r.Field + ": " + r.Text }

// IsOurs reports whether a field is an annotation of svcctl.
func IsOurs(field string) bool { return strings.HasPrefix(field, "metadata.annotations["+domain) }

// Remarks are about the annotations of svcctl that do not exist, or not on objects of this kind; and, except on Services
// (see Values), about values that an annotation or label cannot have. Those about EndpointsFrom are here for all types of Services.
func Remarks(o object.Object) (list []Remark) {
	meta := o.GetMeta()
	kind := o.GetTypeMeta().Kind
	for _, key := range found(meta.Annotations, false) {
		r := Find(key)
		switch {
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

// Values are about the values of a Service's annotations that nothing else of this package reads.
func Values(svc *object.Service) (bad []Bad) {
	a := svc.Metadata.Annotations
	if len(a) == 0 {
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

// wrongAddress describes a text that is no address.
func wrongAddress(text string) string {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Is4In6() {
		return fmt.Sprintf("%q is an IPv4 address written as an IPv6 one, and is not given: write %s", text, addr.Unmap())
	}
	return fmt.Sprintf("%q is no address, so none is given for it: write addresses with commas between them, as 192.0.2.7", text)
}

// wrongValue returns the problem of a value; "": none, or other code reads it.
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
