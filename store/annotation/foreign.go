package annotation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// A Foreign is a label or annotation of an object that asks for what does not happen here.
type Foreign struct {
	Field string // metadata.annotations[service.kubernetes.io/topology-mode]
	Text  string // what happens instead
}

// String returns the text for the author of the object.
func (f Foreign) String() string { return f.Field + ": " + f.Text }

// Foreigners are the labels and annotations of an object that ask for what does not happen here,
// those that are refused included. A box reports these as problems of the Service: there
// Unserved leaves them out.
func Foreigners(o object.Object) []Foreign { return foreigners(o, true) }

// Unserved returns the foreign annotations and labels of an object that are reported but not
// refused.
func Unserved(o object.Object) []Foreign { return foreigners(o, false) }

func foreigners(o object.Object, refused bool) (list []Foreign) {
	meta := o.GetMeta()
	if len(meta.Labels)+len(meta.Annotations) == 0 {
		return nil
	}
	if o.GetTypeMeta().Kind != object.KindService { // whose values package resolve judges
		for _, r := range Remarks(o) {
			if !r.Refused {
				list = append(list, Foreign{r.Field, r.Text})
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
				list = append(list, Foreign{fmt.Sprintf("metadata.%s[%s]", of.field, key), text})
			}
		}
	}
	return list
}

// foreign returns what a value asks for in vain; "": nothing.
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

// elsewhere returns the problem of an annotation on an object of a kind that it has no meaning on; "": none.
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

// Notes are about annotations of a Service that nothing is known of, and that are about load balancers by their keys.
// The client that applies the object gets them; the status does not have them.
func Notes(o object.Object) (list []Foreign) {
	if o.GetTypeMeta().Kind != object.KindService {
		return nil
	}
	meta := o.GetMeta()
	for _, key := range slices.Sorted(maps.Keys(meta.Annotations)) {
		if near := misspelled(key); near != "" && Find(key) == nil {
			list = append(list, Foreign{Field(key), "has no effect" + near})
		} else if Find(key) == nil && aboutBalancers(key) && !isAny(meta.Annotations[key], offWords...) {
			list = append(list, Foreign{Field(key), "has no effect here, whatever it requests (TLS, an address, allowed clients): it is about another load balancer; `svcctl explain annotations` lists what takes its place"})
		}
	}
	return list
}

// aboutBalancers reports whether a key is about a load balancer: by one of its words.
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

// misspelled returns the key of the table that differs in upper and lower case only, as a question; "": there is none.
func misspelled(key string) string {
	if i := slices.IndexFunc(table, func(r Row) bool { return !r.isPattern() && r.Key != key && strings.EqualFold(r.Key, key) }); i >= 0 {
		return "; did you mean " + table[i].Key + "?"
	}
	return ""
}

// judgedKinds are the kinds whose annotations of svcctl are judged.
var judgedKinds = []string{
	object.KindService, object.KindEndpointSlice, object.KindEndpoints, object.KindPod, object.KindNamespace,
	object.KindIPAddressPool, object.KindL2Advertisement, object.KindBGPAdvertisement, object.KindBGPPeer, object.KindBFDProfile,
}

// ours names the annotation to write in its place.
func (r *Row) ours() string {
	if r.instead == "" {
		return ""
	}
	return "; write " + r.instead
}
