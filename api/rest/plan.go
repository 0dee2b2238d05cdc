package rest

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/kind"
	fields "svcctl.io/svcctl/store/managedfields"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// A writing is a client's change of one object. It is planned on the stored version, and planned again if that version changes in the meantime.
type writing struct {
	request *request // names the object
	options *options
	verb    string // verb for the journal
	// edit returns the new version of the live object, which it must not modify; live is nil for a creation.
	edit func(live map[string]any) (map[string]any, error)
	// applied is the applied configuration of a server-side apply; nil for other writes. For an apply, edit also sets managedFields.
	applied map[string]any
	// mustCreate makes the write fail if the object exists. mayCreate creates the object if it does not exist.
	mustCreate, mayCreate bool
	// replaces is set when the client sent the whole new version: a uid in it is a precondition,
	// not a change.
	replaces bool
}

// A plan is the result of planning a writing (a client's change of one object): the write to the store, or the unchanged object if there is nothing
// to write.
type plan struct {
	write store.Write
	// before is the live object as clients see it; nil if there is none. If the write changes nothing, unchanged is set instead, and write is empty.
	before, unchanged object.Object
}

// by returns the Writer that records the change of a live object in managedFields. live is nil if the object is created.
func (w *writing) by(now time.Time, live map[string]any) fields.Writer {
	k := w.request.kind
	by := fields.Writer{
		Manager: w.options.managerOf(w.request.http.UserAgent()), APIVersion: k.APIVersion(),
		Subresource: w.request.subresource, Type: schema.Of(k), Now: now,
	}
	if by.Subresource == "" {
		if live != nil || !k.Strategy().StatusOnCreate {
			by.Ignored = serverFields(k)
		}
		return by
	}
	for _, f := range by.Type.Fields {
		if f.Name != by.Subresource {
			by.Ignored = append(by.Ignored, f.Name)
		}
	}
	return by
}

// shown returns a stored object in the version of the API group in the request's path.
func shown(o object.Object, r *request) object.Object {
	if r.kind.APIVersion() == object.APIVersionEvents {
		return eventView(o)
	}
	return o
}

// planUpdate plans the change of an existing object.
func (s *Server) planUpdate(wr *writing, live object.Object, owner store.Owner) (plan, error) {
	r := wr.request
	before, err := s.before(r, live, owner)
	if err != nil {
		return plan{}, err
	}
	by := wr.by(s.now(), before.content)
	if wr.applied != nil && !wr.options.asFile && !isTerminating(live) && fields.Settled(before.content, wr.applied, by) {
		return plan{unchanged: before.object}, nil
	}
	written, err := wr.edit(before.content)
	if err != nil {
		return plan{}, err
	}
	if err := fits(written, live, wr); err != nil {
		return plan{}, err
	}
	o, err := s.newVersion(wr, before.content, written, by)
	if err != nil {
		return plan{}, err
	}
	meta, had := o.GetMeta(), live.GetMeta()
	meta.UID, meta.ResourceVersion, meta.Generation = had.UID, had.ResourceVersion, had.Generation
	meta.CreationTimestamp, meta.DeletionTimestamp = had.CreationTimestamp, had.DeletionTimestamp
	if !wr.options.asFile {
		before.file.keep(o.GetMeta(), before.object.GetMeta())
	}
	if service, ok := o.(*object.Service); ok && wr.options.asFile {
		if old := live.(*object.Service); service.NeedsNodePort() && old.NeedsNodePort() {
			object.KeepNodePorts(service, old) // as the store does for a file
		}
	}
	if service, ok := o.(*object.Service); ok && r.subresource == "" {
		object.PatchFromOld(service, live.(*object.Service))
	}
	if !wr.options.asFile {
		if err := before.file.check(r, before.content, o, by); err != nil {
			return plan{}, err
		}
	}
	if !isTerminating(live) && fields.Unchanged(before.object, o) {
		return plan{unchanged: before.object}, nil
	}
	if err := storable(o, r.kind); err != nil {
		return plan{}, err
	}
	return plan{before: before.object, write: store.Write{
		Ref: r.ref(), Object: toStored(o), Status: r.subresource != "", Version: live.GetMeta().ResourceVersion,
		DryRun: wr.options.dryRun, By: wr.options.caller(r, wr.verb),
	}}, nil
}

// isTerminating reports whether an object is being deleted and has no finalizers left, so that it has to
// be written although it does not change.
func isTerminating(live object.Object) bool {
	meta := live.GetMeta()
	return meta.DeletionTimestamp != nil && len(meta.Finalizers) == 0
}

// newVersion returns the object that follows from the written content: without fields that this
// kind of write has no effect on, with defaults and managedFields.
func (s *Server) newVersion(wr *writing, live, written map[string]any, by fields.Writer) (object.Object, error) {
	k := wr.request.kind
	if wr.request.subresource != "" {
		entries := metadataIn(written)["managedFields"]
		status := written["status"]
		written, _ = schema.Clone(live).(map[string]any)
		replace(metadataIn(written), "managedFields", entries)
		replace(written, "status", status)
	} else {
		if k.Name == object.KindService && !wr.replaces && written["status"] != nil && !reflect.DeepEqual(written["status"], live["status"]) {
			wr.options.warnings.add("status: nothing of it is changed here, as in Kubernetes: what a controller writes goes to the subresource status; " +
				"the addresses are given by the appliance, ask for others with spec.loadBalancerIP")
		}
		for _, name := range serverFields(k) {
			replace(written, name, live[name])
		}
	}
	o, err := typed(written, k)
	if err != nil {
		return nil, err
	}
	wr.options.dedupOwners(o.GetMeta())
	object.Default(o)
	if wr.applied != nil {
		return o, nil
	}
	return o, manage(o, live, wr.request, by)
}

// manage sets the managedFields of an object that is written in any way but
// server-side apply.
func manage(o object.Object, live map[string]any, r *request, by fields.Writer) error {
	entries, err := entriesOf(fields.Update(live, untyped(o, r.kind), by))
	o.GetMeta().ManagedFields = entries
	return err
}

// replace sets a field, or removes it for a nil value.
func replace(content map[string]any, name string, value any) {
	if value == nil {
		delete(content, name)
	} else {
		content[name] = value
	}
}

// fits returns an error unless the written content has the name and namespace of the path and, if given, the UID and resourceVersion of the live
// object.
func fits(written map[string]any, live object.Object, wr *writing) error {
	r, meta := wr.request, live.GetMeta()
	if err := inNamespace(written, r); err != nil {
		return err
	}
	if err := checkName(written, r); err != nil {
		return err
	}
	switch uid := textIn(written, "uid"); {
	case uid == "" || uid == meta.UID:
	case wr.replaces:
		return preconditions(r, live, "", uid)
	default:
		return object.Errors{object.Invalid("metadata.uid", uid, "field is immutable")}
	}
	if goes := textIn(written, "deletionTimestamp"); goes != "" && meta.DeletionTimestamp == nil {
		return object.Errors{object.Invalid("metadata.deletionTimestamp", goes, "field is immutable: send a DELETE")}
	}
	switch version := textIn(written, "resourceVersion"); {
	case version == "" && r.kind.Strategy().VersionRequired:
		return invalid(r.kind.Group, r.kind.Plural, r.name, object.Errors{object.Invalid("metadata.resourceVersion", 0, "must be specified for an update")})
	case version != "" && version != meta.ResourceVersion:
		return conflict(r.kind, r.name, store.ErrStale.Error())
	}
	return nil
}

func checkName(written map[string]any, r *request) error {
	switch name := textIn(written, "name"); {
	case name == "":
		return badRequest("the name of the object (%s based on URL) was undeterminable: name must be provided", r.name)
	case name != r.name:
		return badRequest("the name of the object (%s) does not match the name on the URL (%s)", name, r.name)
	}
	return nil
}

// dedupOwners removes duplicate owner references, and adds a warning for each.
func (o *options) dedupOwners(meta *object.ObjectMeta) {
	var left []object.OwnerReference
	for _, owner := range meta.OwnerReferences {
		same := func(other object.OwnerReference) bool {
			return other.UID == owner.UID && other.Kind == owner.Kind && other.Name == owner.Name && other.APIVersion == owner.APIVersion &&
				object.Deref(other.Controller) == object.Deref(owner.Controller) && object.Deref(other.BlockOwnerDeletion) == object.Deref(owner.BlockOwnerDeletion)
		}
		if slices.ContainsFunc(left, same) {
			o.warnings.add(".metadata.ownerReferences contains duplicate entries; duplicate UID(s) observed: " + owner.UID)
			continue
		}
		left = append(left, owner)
	}
	meta.OwnerReferences = left
}

// planCreation plans the creation of an object.
func (s *Server) planCreation(wr *writing) (plan, error) {
	r := wr.request
	if err := mayCreate(r); err != nil {
		return plan{}, err
	}
	if !wr.options.createsNamespace && !wr.options.asFile {
		if err := s.hasNamespace(r); err != nil {
			return plan{}, err
		}
	}
	if err := s.countEvent(r.kind.Name, wr.options.dryRun); err != nil {
		return plan{}, err
	}
	content, err := wr.edit(nil)
	if err != nil {
		return plan{}, err
	}
	if uid := textIn(content, "uid"); uid != "" && !wr.mustCreate {
		return plan{}, conflict(r.kind, r.name, fmt.Sprintf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
	}
	if err := inNamespace(content, r); err != nil {
		return plan{}, err
	}
	if err := checkName(content, r); err != nil && !wr.mustCreate {
		return plan{}, err
	}
	if r.kind.HasStatus && !r.kind.Strategy().StatusOnCreate {
		delete(content, "status")
	}
	o, err := typed(content, r.kind)
	if err != nil {
		return plan{}, err
	}
	meta := o.GetMeta()
	meta.UID, meta.ResourceVersion, meta.Generation = "", "", 0
	meta.CreationTimestamp, meta.DeletionTimestamp = nil, nil
	wr.options.dedupOwners(meta)
	object.Default(o)
	if wr.applied == nil {
		if err := manage(o, nil, r, wr.by(s.now(), nil)); err != nil {
			return plan{}, err
		}
	}
	if err := storable(o, r.kind); err != nil {
		return plan{}, err
	}
	return plan{write: store.Write{
		Ref: r.ref(), Object: toStored(o), Create: true, DryRun: wr.options.dryRun, By: wr.options.caller(r, wr.verb),
	}}, nil
}

// serverFields returns the top-level fields that a write of the object cannot change. They include the spec of a Namespace, which has only
// finalizers.
func serverFields(k kind.Kind) []string {
	switch {
	case k.Strategy().SpecOfServer:
		return []string{"spec", "status"}
	case k.HasStatus:
		return []string{"status"}
	}
	return nil
}

// mayCreate refuses to create objects of kinds that the appliance creates itself.
func mayCreate(r *request) error {
	if r.kind.Name != object.KindServiceCIDR {
		return nil
	}
	return refused(r.kind, r.name, "the ranges of cluster IPs are settings of the box: give --service-cluster-ip-range, or serviceClusterIPRange in /etc/svcctl/svcctl.yaml")
}

// toStored converts an object from the version of a request to the version that the store has.
func toStored(o object.Object) object.Object {
	if e, ok := o.(*object.EventView); ok {
		return e.Event()
	}
	return o
}
