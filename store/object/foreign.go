package object

import (
	"fmt"
	"slices"
)

// foreign is a label or annotation that asks a program for something which does not run here, so
// that an author may expect what does not happen.
type foreign struct {
	kinds []string
	label bool // else an annotation
	key   string
	// idle are the values that ask for nothing.
	idle []string
	// text says what happens here, and what to write instead.
	text string
}

// foreigners are all of them that are known. What only informs, or is copied along without an
// effect on packets anywhere, is not among them.
var foreigners = []foreign{
	{kinds: []string{KindService}, key: annotationTopologyMode, idle: []string{"", "Disabled", "disabled"},
		text: "has no effect here: nobody writes topology hints by it; set spec.trafficDistribution: PreferSameZone, or write hints at the endpoints"},
	{kinds: []string{KindService}, key: annotationTopologyHints, idle: []string{"", "Disabled", "disabled"},
		text: "has no effect here: nobody writes topology hints by it; set spec.trafficDistribution: PreferSameZone, or write hints at the endpoints"},
	{kinds: []string{KindService}, key: "service.alpha.kubernetes.io/tolerate-unready-endpoints", idle: []string{"", "false"},
		text: "has no effect, as in Kubernetes since 1.24: set spec.publishNotReadyAddresses"},
	{kinds: []string{KindService, KindEndpoints}, label: true, key: "service.kubernetes.io/service-proxy-name",
		text: "leaves the Service to a proxy of that name in a cluster; it is served here all the same"},
	{kinds: []string{KindEndpointSlice}, label: true, key: "endpointslice.kubernetes.io/managed-by",
		text: "names a controller that does not run here: the slice is served as it is written, and changes only when its writer changes it"},
}

// A Foreign is a label or annotation of an object that asks for what does not happen here.
type Foreign struct {
	Field string // metadata.annotations[service.kubernetes.io/topology-mode]
	Text  string // what happens instead
}

// String is what the author of the object is told.
func (f Foreign) String() string { return f.Field + ": " + f.Text }

// Foreigners are the labels and annotations of an object that ask for what does not happen here.
func Foreigners(o Object) (list []Foreign) {
	meta, kind := o.GetMeta(), o.GetTypeMeta().Kind
	if len(meta.Labels) == 0 && len(meta.Annotations) == 0 {
		return nil
	}
	for i := range foreigners {
		f := &foreigners[i]
		values, field := meta.Annotations, "annotations"
		if f.label {
			values, field = meta.Labels, "labels"
		}
		if value, has := values[f.key]; has && slices.Contains(f.kinds, kind) && !slices.Contains(f.idle, value) {
			list = append(list, Foreign{fmt.Sprintf("metadata.%s[%s]", field, f.key), f.text})
		}
	}
	return list
}
