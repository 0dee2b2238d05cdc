package endpoints

import (
	"fmt"
	"hash/fnv"
	"maps"
	"reflect"
	"slices"

	"svcctl.io/svcctl/store/object"
)

// The values of the label managed-by of generated slices. Mirrors have the value that Kubernetes uses, since clients select by it.
const (
	managedBySelector = "endpointslice-controller.svcctl.io"
	managedByMirror   = "endpointslicemirroring-controller.k8s.io"
)

// labelHeadless is the label of the generated slices and Endpoints of headless Services (core/v1).
const labelHeadless = "service.kubernetes.io/headless"

// service is a Service with the objects that were generated for it.
type service struct {
	key string
	basis
	layout    *layout
	pods      map[string]struct{} // names of Pods that are endpoints, including those in no slice
	lacking   map[string][]string // names of target ports that Pods lack, by Pod
	strangers map[string]struct{} // Pods without an address of the family of a single-stack Service
}

// examine recomputes all endpoints of a Service if its objects in the store changed. Otherwise it recomputes only the endpoints of the Pods that
// w.pods lists for the Service.
func (c *Controller) examine(w *work, key string, batch *Batch) {
	now := read(w.objs, key)
	before := c.services[key]
	if before != nil && before.isStill(&now) {
		if len(w.pods[key]) > 0 {
			c.updatePods(w, key, batch)
		} else {
			c.noteService(before)
		}
		return
	}
	batch.services = append(batch.services, key)
	for _, o := range now.leftovers {
		batch.Deletes = append(batch.Deletes, object.RefOf(o))
	}
	s := now.adopt(key)
	var members []string
	if before != nil {
		members = slices.Collect(maps.Keys(before.pods))
	}
	switch s.managedBy {
	case managedBySelector:
		members = slices.AppendSeq(members, maps.Keys(s.layout.places))
		for _, pod := range w.objs.Selected(s.object.Metadata.Namespace, s.object.Spec.Selector) {
			members = append(members, pod.Metadata.Name)
		}
	case managedByMirror:
		c.setMirrored(s)
	}
	if s.managedBy != managedByMirror {
		c.mirrored.set(key, nil)
	}
	c.setPods(w, s, members)
	c.finish(w, s, true, batch)
	if delete(c.services, key); !s.isEmpty() {
		c.services[key] = s
	}
}

// isEmpty reports whether there are no generated objects for a Service and nothing to generate them from. An example is a Service whose
// EndpointSlices are in manifests.
func (s *service) isEmpty() bool {
	return s.managedBy == "" || len(s.pods)+len(s.layout.slices)+len(s.layout.places) == 0 && s.endpoints == nil && s.foreign == nil
}

// updatePods recomputes the endpoints of some Pods of a Service whose own objects did not change.
func (c *Controller) updatePods(w *work, key string, batch *Batch) {
	s := c.services[key]
	if s.managedBy != managedBySelector {
		return
	}
	c.setPods(w, s, w.pods[key])
	before := len(batch.Puts) + len(batch.Deletes)
	c.finish(w, s, false, batch)
	if len(batch.Puts)+len(batch.Deletes) > before {
		batch.services = append(batch.services, key)
	}
}

// basis is a Service with its Endpoints.
type basis struct {
	object    *object.Service
	foreign   *object.Endpoints // an Endpoints object that was not generated; nil if there is none
	endpoints *object.Endpoints // the generated Endpoints object; nil if there is none
	others    bool              // there are EndpointSlices that were not generated here
	managedBy string            // the managed-by label of the generated slices; "" if none are generated
}

// stored has a Service and its related objects from the store.
type stored struct {
	basis
	slices    map[string]*object.EndpointSlice // generated slices with the label managedBy
	leftovers []object.Object                  // generated objects that the Service no longer needs
}

// read reads a Service from the store, with its slices and Endpoints.
func read(objs Objects, key string) stored {
	svc, all, endpoints := objs.Service(key)
	now := stored{basis: basis{object: svc}}
	if endpoints != nil {
		if objs.Holder(object.RefOf(endpoints)) == Ours {
			now.endpoints = endpoints
		} else {
			now.foreign = endpoints
		}
	}
	switch {
	case svc == nil || svc.Spec.Type == object.TypeExternalName:
	case len(svc.Spec.Selector) > 0:
		now.managedBy = managedBySelector
	case now.foreign != nil && now.foreign.Metadata.Labels[labelSkipMirror] != "true":
		now.managedBy = managedByMirror
	}
	for _, o := range all {
		manager := o.Metadata.Labels[object.LabelManagedBy]
		switch ours := (manager == managedBySelector || manager == managedByMirror) && objs.Holder(object.RefOf(o)) == Ours; {
		case !ours:
			now.others = true
		case manager == now.managedBy:
			put(&now.slices, o.Metadata.Name, o)
		default:
			now.leftovers = append(now.leftovers, o)
		}
	}
	if now.endpoints != nil && now.managedBy != managedBySelector {
		now.leftovers = append(now.leftovers, now.endpoints)
		now.endpoints = nil
	}
	return now
}

// adopt returns the service for stored objects, with a layout of its stored slices.
func (now *stored) adopt(key string) *service {
	s := &service{key: key, basis: now.basis, layout: &layout{mirrors: now.managedBy == managedByMirror}}
	for _, name := range slices.Sorted(maps.Keys(now.slices)) {
		s.layout.adopt(now.slices[name])
	}
	return s
}

// isStill reports whether the stored objects equal those that this controller last read or wrote. If so, it replaces the slices and Endpoints in s by
// the stored versions.
func (s *service) isStill(now *stored) bool {
	if s.object != now.object || s.foreign != now.foreign || s.managedBy != now.managedBy || s.others != now.others ||
		len(now.leftovers) > 0 || len(s.layout.slices) != len(now.slices) || !sameEndpoints(s.endpoints, now.endpoints) {
		return false
	}
	for name, o := range now.slices {
		if mine := s.layout.slices[name]; mine == nil || !sameSlice(mine.object, o) {
			return false
		}
	}
	for name, o := range now.slices {
		s.layout.slices[name].object = o
	}
	s.endpoints = now.endpoints
	return true
}

// setPods updates the endpoints of some Pods, by name, in the layout of a Service.
func (c *Controller) setPods(w *work, s *service, names []string) {
	namespace, _ := cutKey(s.key)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		key := namespace + "/" + name
		pod := w.objs.Pod(key)
		var places [len(families)]*placed
		var lacking []string
		var problem *Problem
		is := s.managedBy == managedBySelector && pod != nil && !pod.Terminal() && object.HasLabels(pod.Metadata.Labels, s.object.Spec.Selector)
		if is {
			places, lacking, problem = c.placesOf(w.objs, s.object, pod)
			put(&s.pods, name, struct{}{})
		} else {
			delete(s.pods, name)
		}
		s.layout.set(name, places)
		c.member(key, s.key, is)
		c.note("pod/"+s.key+"/"+name, problem)
		if is && len(s.object.Spec.IPFamilies) == 1 && !pod.Addr(s.object.Spec.IPFamilies[0]).IsValid() && len(addressesOf(pod)) > 0 {
			put(&s.strangers, name, struct{}{})
		} else {
			delete(s.strangers, name)
		}
		if len(lacking) > 0 {
			put(&s.lacking, name, lacking)
		} else {
			delete(s.lacking, name)
		}
	}
}

// finish puts waiting endpoints into slices, and adds all changed objects to the batch. whole is set when the Service itself may have
// changed.
func (c *Controller) finish(w *work, s *service, whole bool, batch *Batch) {
	newName := func(g group) string { return s.newName(w.objs, g) }
	s.layout.settle(newName)
	var served []string
	// Nothing is generated where the selector matches no Pod and others have written slices, as with the manifests of a cluster,
	// whose Pods are not here: a generated slice would have the Service without endpoints.
	says := s.managedBy == managedBySelector && !(s.others && len(s.pods) == 0 && len(s.layout.places) == 0)
	if says {
		served = s.object.Spec.IPFamilies
	}
	namespace, name := cutKey(s.key)
	for _, slice := range s.layout.keep(served, newName) {
		ref := object.Ref{Kind: object.KindEndpointSlice, Namespace: namespace, Name: slice}
		if w.objs.Holder(ref) == Ours {
			batch.Deletes = append(batch.Deletes, ref)
		}
	}
	for _, part := range s.layout.slices {
		if !part.touched && !whole {
			continue
		}
		if o := s.sliceObject(part); part.object == nil || !sameSlice(part.object, o) {
			part.object = o
			batch.Puts = append(batch.Puts, o)
		}
		part.touched, part.own = false, false
	}
	switch {
	case says && s.foreign == nil:
		if o := s.endpointsObject(); s.endpoints == nil || !sameEndpoints(s.endpoints, o) {
			s.endpoints = o
			batch.Puts = append(batch.Puts, o)
		}
	case s.managedBy == managedBySelector && s.endpoints != nil:
		s.endpoints = nil
		batch.Deletes = append(batch.Deletes, object.Ref{Kind: object.KindEndpoints, Namespace: namespace, Name: name})
	}
	c.noteService(s)
}

// newName returns the name for a new slice of a group: the Service's name and a hash of the group, so that every box computes the same
// name.
func (s *service) newName(objs Objects, g group) string {
	const alphabet, length = "bcdfghjklmnpqrstvwxz2456789", 8 // no vowels: no words
	namespace, name := cutKey(s.key)
	for n := 0; ; n++ {
		hash := fnv.New64a()
		fmt.Fprintf(hash, "%s %s %s%d", s.managedBy, g.family, g.ports, n) // never fails
		if g.weight != "" || g.priority != "" {
			fmt.Fprintf(hash, " %s %s", g.weight, g.priority)
		}
		suffix := make([]byte, length)
		for i, rest := 0, hash.Sum64(); i < length; i++ {
			suffix[i] = alphabet[rest%uint64(len(alphabet))]
			rest /= uint64(len(alphabet))
		}
		candidate := name + "-" + string(suffix)
		ref := object.Ref{Kind: object.KindEndpointSlice, Namespace: namespace, Name: candidate}
		if s.layout.slices[candidate] == nil && objs.Holder(ref) == Nobody {
			return candidate
		}
	}
}

// sliceObject returns a slice as the EndpointSlice to store.
func (s *service) sliceObject(part *slice) *object.EndpointSlice {
	namespace, name := cutKey(s.key)
	o := &object.EndpointSlice{
		TypeMeta:    object.TypeMeta{Kind: object.KindEndpointSlice, APIVersion: object.APIVersionDiscovery},
		Metadata:    object.ObjectMeta{Name: part.name, Namespace: namespace},
		AddressType: part.group.family,
		Endpoints:   part.endpoints,
		Ports:       part.ports,
	}
	if o.Endpoints == nil {
		o.Endpoints = []object.Endpoint{}
	}
	if o.Ports == nil {
		o.Ports = []object.EndpointPort{}
	}
	var out map[string]string
	if part.group.weight != "" {
		put(&out, object.AnnotationWeight, part.group.weight)
	}
	if part.group.priority != "" {
		put(&out, object.AnnotationPriority, part.group.priority)
	}
	o.Metadata.Annotations = out
	meta := &s.object.Metadata
	owner := object.OwnerReference{APIVersion: object.APIVersionCore, Kind: object.KindService, Name: name, UID: meta.UID}
	if s.managedBy == managedByMirror {
		meta = &s.foreign.Metadata
		owner.Kind, owner.UID = object.KindEndpoints, meta.UID
		o.Metadata.Annotations = mirroredAnnotations(meta.Annotations)
	}
	owner.Controller, owner.BlockOwnerDeletion = new(true), new(true)
	o.Metadata.OwnerReferences = []object.OwnerReference{owner}
	o.Metadata.Labels = s.labels(meta.Labels)
	o.Metadata.Labels[object.LabelServiceName] = name
	o.Metadata.Labels[object.LabelManagedBy] = s.managedBy
	return o
}

// labels returns the labels of a generated object. They are a copy of the labels of its source object, which are passed as of, without the labels
// reserved to the controllers. For a headless Service, labelHeadless is added.
func (s *service) labels(of map[string]string) map[string]string {
	labels := make(map[string]string, len(of)+3)
	maps.Copy(labels, of)
	for _, reserved := range []string{object.LabelServiceName, object.LabelManagedBy, labelManagedEndpoints, labelHeadless} {
		delete(labels, reserved)
	}
	if s.object.Headless() {
		labels[labelHeadless] = ""
	}
	return labels
}

// sameSlice reports whether two versions of an EndpointSlice have the same content.
func sameSlice(a, b *object.EndpointSlice) bool {
	if a == b {
		return true
	}
	if !sameMeta(&a.Metadata, &b.Metadata) || a.AddressType != b.AddressType || len(a.Endpoints) != len(b.Endpoints) || !reflect.DeepEqual(a.Ports, b.Ports) {
		return false
	}
	if len(a.Endpoints) == 0 || &a.Endpoints[0] == &b.Endpoints[0] {
		return true
	}
	return slices.EqualFunc(a.Endpoints, b.Endpoints, func(x, y object.Endpoint) bool { return equalEndpoints(&x, &y) })
}

// sameMeta reports whether the metadata that a controller writes are equal: labels, annotations and owner references.
func sameMeta(a, b *object.ObjectMeta) bool {
	return maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) && reflect.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}

func equalEndpoints(a, b *object.Endpoint) bool { return reflect.DeepEqual(a, b) }
