package rest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// viewKey is the namespace and name of a computed object; views are sorted by it.
type viewKey struct{ namespace, name string }

func compareKeys(a, b viewKey) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}

// A derivation computes objects from stored objects, and keeps the stored objects that it needs.
type derivation interface {
	// sources returns the kinds of stored objects that it reads.
	sources() []string
	// affected returns the keys of the computed objects that depend on a stored one, sorted.
	affected(o object.Object) []viewKey
	// apply replaces a stored object. old is nil if it was created, new if it was deleted.
	apply(old, new object.Object)
	// show returns a computed object, or nil if it does not exist. The result has a resourceVersion only if it is itself a stored object.
	show(viewKey) object.Object
}

// view is a collection of computed objects. The resourceVersion of an object is the revision at which it was read, because the revision of its last
// change is not recorded, and a resourceVersion must not decrease.
type view struct {
	store  *store.Store
	derive func() derivation
	// load reads the stored objects that one computed object depends on; nil means to read all sources.
	load func(d derivation, key viewKey)
}

func (v view) get(namespace, name string) object.Object {
	d, key, revision := v.derive(), viewKey{namespace, name}, v.store.Revision()
	if v.load != nil {
		v.load(d, key)
	} else {
		var err error
		if d, _, revision, err = v.at(namespace, 0); err != nil {
			return nil
		}
	}
	o := d.show(key)
	if o == nil {
		return nil
	}
	return stamped(o, revision)
}

func (v view) list(namespace string, at uint64) ([]object.Object, uint64, error) {
	d, keys, revision, err := v.at(namespace, at)
	if err != nil {
		return nil, 0, err
	}
	var objects []object.Object
	for _, key := range slices.SortedFunc(maps.Keys(keys), compareKeys) {
		if o := d.show(key); o != nil {
			objects = append(objects, stamped(o, revision))
		}
	}
	return objects, revision, nil
}

// loads bounds the attempts to read all sources at the same revision. An attempt fails only if the revision expires while sources are read.
const loads = 3

// at reads a derivation at a revision; 0 means the newest. It returns the derivation, the keys of all objects that it may show, and the revision that
// was read.
func (v view) at(namespace string, at uint64) (d derivation, keys map[viewKey]struct{}, revision uint64, err error) {
	for range loads {
		d, keys, revision = v.derive(), map[viewKey]struct{}{}, at
		for _, kind := range d.sources() {
			var objects []object.Object
			if objects, revision, err = v.store.List(kind, namespace, revision); err != nil {
				break
			}
			for _, o := range objects {
				d.apply(nil, o)
				for _, key := range d.affected(o) {
					keys[key] = struct{}{}
				}
			}
		}
		if err == nil || at != 0 || !errors.Is(err, store.ErrExpired) {
			break
		}
	}
	return d, keys, revision, err
}

func (v view) follow(namespace string, after uint64) (follower, error) {
	d, _, _, err := v.at(namespace, after)
	if err != nil {
		return follower{}, err
	}
	sources := d.sources()
	about := func(ref object.Ref) bool { return slices.Contains(sources, ref.Kind) && isIn(ref, namespace) }
	return follower{about, func(e store.Event) []change {
		keys := affectedBy(d, e)
		before := make([]object.Object, len(keys))
		for i, key := range keys {
			before[i] = d.show(key)
		}
		d.apply(e.Old, e.New)
		var changes, last []change // modifications are the last ones
		for i, key := range keys {
			for _, c := range changesOf(e.Revision, before[i], d.show(key)) {
				if c.old != nil && c.new != nil {
					last = append(last, c)
				} else {
					changes = append(changes, c)
				}
			}
		}
		// A client that got only some of them goes on behind the revision before, and gets them all. A modification has this revision nevertheless:
		// clients take an object with the same resourceVersion for the same object. So of two modifications, which are of Endpoints alone and when
		// an EndpointSlice gets the label of another Service, the second one can be missed: they are sent in one write, which may be cut.
		for i := range changes {
			if c := &changes[i]; i < len(changes)-1 || len(last) > 0 {
				if c.resume--; c.new != nil {
					c.new = withVersion(c.new, c.resume)
				}
			}
		}
		return append(changes, last...)
	}}, nil
}

// affectedBy returns the keys of the computed objects that a change of a stored object may change, each once.
func affectedBy(d derivation, e store.Event) []viewKey {
	var keys []viewKey
	for _, o := range []object.Object{e.Old, e.New} {
		if o != nil {
			keys = append(keys, d.affected(o)...)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return slices.Compact(keys)
}

// changesOf returns the changes between two versions of a computed object; nil means that it does not exist. If the UIDs differ, they are a deletion
// and a creation.
func changesOf(revision uint64, old, now object.Object) []change {
	switch {
	case old == nil && now == nil:
		return nil
	case old == nil:
		return []change{{revision, revision, nil, stamped(now, revision)}}
	case now == nil:
		return []change{{revision, revision, old, nil}}
	case reflect.DeepEqual(old, now):
		return nil
	case old.GetMeta().UID != now.GetMeta().UID:
		return []change{{revision, revision, old, nil}, {revision, revision, nil, stamped(now, revision)}}
	}
	return []change{{revision, revision, old, stamped(now, revision)}}
}

// stamped returns an object that has a resourceVersion: its own, or else the given revision.
func stamped(o object.Object, revision uint64) object.Object {
	if o.GetMeta().ResourceVersion != "" {
		return o
	}
	return withVersion(o, revision)
}

// withVersion returns a copy of an object with a revision as its resourceVersion.
func withVersion(o object.Object, revision uint64) object.Object {
	c := object.DeepCopy(o)
	c.GetMeta().ResourceVersion = strconv.FormatUint(revision, 10)
	return c
}

// DerivedUID returns the UID of an object that is computed from another one: a UUID of version 8 (RFC 9562 section 5.8) that is the same
// for the same input.
func DerivedUID(uid, what string) string {
	sum := sha256.Sum256([]byte(uid + "/" + what))
	id := sum[:16]
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// The labels of IPAddress objects (networking/v1).
const (
	labelIPFamily       = "ipaddress.kubernetes.io/ip-family"
	labelAddressManaged = "ipaddress.kubernetes.io/managed-by"
	addressesAreManaged = "ipallocator.k8s.io"
	parentResource      = "services"
)

// holders derives IPAddresses: one for each cluster IP and load balancer IP of the Services, with the Service that holds it. It maps an address to
// the Services that have it. If several Services share a load balancer IP, its IPAddress names the oldest.
type holders map[string][]*object.Service

func (h holders) sources() []string { return []string{object.KindService} }

func (h holders) affected(o object.Object) []viewKey {
	var keys []viewKey
	for _, address := range addressesIn(o.(*object.Service)) {
		keys = append(keys, viewKey{name: address})
	}
	return keys
}

func (h holders) apply(old, new object.Object) {
	if service, ok := old.(*object.Service); ok {
		for _, address := range addressesIn(service) {
			left := slices.DeleteFunc(slices.Clone(h[address]), func(other *object.Service) bool {
				return object.RefOf(other) == object.RefOf(service)
			})
			if h[address] = left; len(left) == 0 {
				delete(h, address)
			}
		}
	}
	if service, ok := new.(*object.Service); ok {
		for _, address := range addressesIn(service) {
			h[address] = append(h[address], service)
		}
	}
}

func (h holders) show(key viewKey) object.Object {
	services := h[key.name]
	if len(services) == 0 {
		return nil
	}
	holder := slices.MinFunc(services, func(a, b *object.Service) int { return object.ByAge(&a.Metadata, &b.Metadata) })
	meta := &holder.Metadata
	family := object.IPv4
	if addr, err := netip.ParseAddr(key.name); err == nil && addr.Is6() {
		family = object.IPv6
	}
	return &object.IPAddress{
		TypeMeta: object.TypeMeta{Kind: object.KindIPAddress, APIVersion: object.APIVersionNetworking},
		Metadata: object.ObjectMeta{
			Name: key.name, UID: DerivedUID(meta.UID, key.name), CreationTimestamp: meta.CreationTimestamp,
			Labels: map[string]string{labelIPFamily: family, labelAddressManaged: addressesAreManaged},
		},
		Spec: object.IPAddressSpec{ParentRef: &object.ParentReference{
			Resource: parentResource, Namespace: meta.Namespace, Name: meta.Name,
		}},
	}
}

// addressesIn returns the addresses that are allocated to a Service, each once and in its canonical form.
func addressesIn(service *object.Service) []string {
	var all []string
	for _, addr := range object.Addrs(slices.Concat(service.Spec.ClusterIPs, service.IngressIPs())) { // of a headless Service they are "None"
		if text := addr.String(); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// Labels of Endpoints and EndpointSlices.
const (
	labelHeadless         = "service.kubernetes.io/headless"
	labelEndpointsManaged = "endpoints.kubernetes.io/managed-by"
	endpointsAreManaged   = "endpoints-view.svcctl.io"
	slicesAreMirrors      = "endpointslicemirroring-controller.k8s.io"
)

// endpointsOf returns the view of Endpoints: the stored ones and, for other Services, ones that are made from their EndpointSlices. It is for clients
// that do not read EndpointSlices.
func endpointsOf(s *store.Store) view {
	return view{store: s, derive: func() derivation { return endpointsParts{} }, load: func(d derivation, key viewKey) {
		for _, kind := range []string{object.KindService, object.KindEndpoints} {
			o, _ := s.Get(object.Ref{Kind: kind, Namespace: key.namespace, Name: key.name})
			d.apply(nil, o)
		}
		_, endpointSlices, _ := s.Service(key.namespace + "/" + key.name)
		for _, slice := range endpointSlices {
			d.apply(nil, slice)
		}
	}}
}

// endpointsParts maps the key of an Endpoints object to the stored objects that it is derived from.
type endpointsParts map[viewKey]*endpointsPart

// endpointsPart has the stored objects that one Endpoints object is derived from.
type endpointsPart struct {
	service *object.Service
	stored  *object.Endpoints
	slices  []*object.EndpointSlice
}

func (e endpointsParts) sources() []string {
	return []string{object.KindService, object.KindEndpoints, object.KindEndpointSlice}
}

func (e endpointsParts) affected(o object.Object) []viewKey {
	if key, ok := endpointsKey(o); ok {
		return []viewKey{key}
	}
	return nil
}

func (e endpointsParts) apply(old, new object.Object) {
	for _, o := range []object.Object{old, new} {
		if o == nil {
			continue
		}
		key, ok := endpointsKey(o)
		if !ok {
			continue
		}
		part := e[key]
		if part == nil {
			part = &endpointsPart{}
			e[key] = part
		}
		part.apply(o, o == new)
		if part.service == nil && part.stored == nil && len(part.slices) == 0 {
			delete(e, key)
		}
	}
}

// endpointsKey returns the key of the Endpoints object that a stored object contributes to; false for none.
func endpointsKey(o object.Object) (viewKey, bool) {
	meta := o.GetMeta()
	slice, ok := o.(*object.EndpointSlice)
	if !ok {
		return viewKey{meta.Namespace, meta.Name}, true
	}
	service := meta.Labels[object.LabelServiceName]
	// A mirror shows what Endpoints say, and is about to go when they are gone.
	return viewKey{meta.Namespace, service}, service != "" && slice.Metadata.Labels[object.LabelManagedBy] != slicesAreMirrors
}

// apply adds or replaces the stored object o in the part if there is set. Otherwise it removes o.
func (p *endpointsPart) apply(o object.Object, there bool) {
	switch o := o.(type) {
	case *object.Service:
		if p.service = nil; there {
			p.service = o
		}
	case *object.Endpoints:
		if p.stored = nil; there {
			p.stored = o
		}
	case *object.EndpointSlice:
		p.slices = slices.DeleteFunc(slices.Clone(p.slices), func(s *object.EndpointSlice) bool { return s.Metadata.Name == o.Metadata.Name })
		if there {
			p.slices = append(p.slices, o)
		}
	}
}

func (e endpointsParts) show(key viewKey) object.Object {
	part := e[key]
	switch {
	case part == nil:
		return nil
	case part.stored != nil:
		return part.stored
	case part.service == nil:
		return nil
	}
	shown := part.shown()
	if len(shown) == 0 {
		return nil
	}
	meta := &part.service.Metadata
	o := &object.Endpoints{
		TypeMeta: object.TypeMeta{Kind: object.KindEndpoints, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{
			Name: key.name, Namespace: key.namespace, UID: DerivedUID(meta.UID, parentResource+"/endpoints"),
			CreationTimestamp: meta.CreationTimestamp, Labels: map[string]string{},
		},
	}
	maps.Copy(o.Metadata.Labels, meta.Labels)
	o.Metadata.Labels[labelEndpointsManaged] = endpointsAreManaged
	if part.service.Spec.ClusterIP == object.ClusterIPNone {
		o.Metadata.Labels[labelHeadless] = ""
	}
	o.Fill(shown, true)
	slices.SortFunc(o.Subsets, func(a, b object.EndpointSubset) int {
		x, _ := json.Marshal(a.Ports) // text and numbers: it cannot fail
		y, _ := json.Marshal(b.Ports)
		return bytes.Compare(x, y)
	})
	return o
}

// shown returns the EndpointSlices that Endpoints can represent, which are those of the Service's first IP family, sorted by name.
func (p *endpointsPart) shown() []*object.EndpointSlice {
	var shown []*object.EndpointSlice
	for _, slice := range p.slices {
		if families := p.service.Spec.IPFamilies; slice.AddressType == object.FQDN || len(families) > 0 && families[0] != slice.AddressType {
			continue
		}
		shown = append(shown, slice)
	}
	slices.SortFunc(shown, func(a, b *object.EndpointSlice) int { return cmp.Compare(a.Metadata.Name, b.Metadata.Name) })
	return shown
}
