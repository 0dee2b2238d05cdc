package annotation

import (
	"fmt"
	"maps"
	"slices"

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
// those that are refused included. Who asks the box what it refuses is told by a problem of the
// Service: then those are left out, see Unserved.
func Foreigners(o object.Object) []Foreign {
	return foreigners(o, Named, Refused)
}

// Unserved returns the foreign annotations and labels of an object that are reported but not
// refused.
func Unserved(o object.Object) []Foreign { return foreigners(o, Named) }

func foreigners(o object.Object, effects ...Effect) (list []Foreign) {
	meta := o.GetMeta()
	if len(meta.Labels)+len(meta.Annotations) == 0 {
		return nil
	}
	kind := o.GetTypeMeta().Kind
	svc, _ := o.(*object.Service)
	for _, of := range []struct {
		field  string
		values map[string]string
	}{{"annotations", meta.Annotations}, {"labels", meta.Labels}} {
		for _, key := range slices.Sorted(maps.Keys(of.values)) {
			r := Find(key)
			if r == nil || r.Label != (of.field == "labels") || !slices.Contains(effects, r.Effect) || !slices.Contains(r.kinds(), kind) {
				continue
			}
			if r.balancer && (svc == nil || svc.Spec.Type != object.TypeLoadBalancer) || r.idle != nil && r.idle(of.values[key]) {
				continue
			}
			list = append(list, Foreign{fmt.Sprintf("metadata.%s[%s]", of.field, key), r.Text})
		}
	}
	return list
}
