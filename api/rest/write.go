package rest

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	fields "svcctl.io/svcctl/store/managedfields"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// maxTries bounds the attempts of a change without resourceVersion that conflicts with concurrent
// ones (MaxRetryWhenPatchConflicts of the API server of Kubernetes).
const maxTries = 5

// A writing is one change of one object that a client asks for. It is planned on what is
// stored, and planned again when that has changed meanwhile.
type writing struct {
	request *request // names the object
	options *options
	verb    string // for the journal
	// edit makes the new version of the live object, which it must not change, or ("create")
	// of nothing, when live is nil.
	edit func(live map[string]any) (map[string]any, error)
	// applied is the applied configuration of a server-side apply, whose edit settles the managers
	// of fields; else nil.
	applied map[string]any
	// mustCreate says that the object may not be there, mayCreate that it need not.
	mustCreate, mayCreate bool
	// replaces says that the new version is a whole one that the client sent: a uid in it is
	// a precondition, not a change.
	replaces bool
}

// A plan is the write to the store that follows from a writing.
type plan struct {
	write store.Write
	// before is the live object as clients see it; nil when there is none. Unchanged is the
	// same when nothing is to be done.
	before, unchanged object.Object
}

// by returns the Writer of a change to a live object, which is nil when there is none.
func (w *writing) by(now time.Time, live map[string]any) fields.Writer {
	k := w.request.kind
	by := fields.Writer{
		Manager: w.options.managerOf(w.request.http.UserAgent()), APIVersion: k.APIVersion(),
		Subresource: w.request.subresource, Type: schema.Of(k), Now: now,
	}
	if by.Subresource == "" {
		if live != nil || !k.Strategy().StatusOnCreate {
			by.Ignored = kept(k)
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

// answer makes a writing, and answers with the object as it is afterwards.
func (s *Server) answer(w http.ResponseWriter, wr *writing) error {
	o, created, err := s.write(wr)
	if err != nil {
		return err
	}
	wr.options.warnings.send(w)
	code := http.StatusOK
	if created {
		code = http.StatusCreated
	}
	return s.respond(w, wr.request, code, o)
}

// write makes a writing, and gives the object as it is afterwards.
func (s *Server) write(wr *writing) (o object.Object, created bool, err error) {
	for try := 1; ; try++ {
		o, created, err = s.try(wr)
		again := errors.Is(err, store.ErrStale) || errors.Is(err, store.ErrExists) && !wr.mustCreate
		if !again || try == maxTries {
			return o, created, answerTo(err, wr.request)
		}
	}
}

// answerTo is statusOf for what may be no error.
func answerTo(err error, r *request) error {
	if err == nil {
		return nil
	}
	return statusOf(err, r)
}

// try makes a writing once.
func (s *Server) try(wr *writing) (o object.Object, created bool, err error) {
	s.guards.namespaces.RLock()
	defer s.guards.namespaces.RUnlock()
	p, err := s.plan(wr)
	if err != nil || p.unchanged != nil {
		return p.unchanged, false, err
	}
	results, err := s.commit(p.write)
	if err != nil {
		return nil, false, err
	}
	wr.options.warnings.add(results[0].Warnings...)
	last := results[0].Object
	if results[0].Removed {
		last = p.write.Object // it took the last finalizer away
	}
	return shown(last, wr.request), p.write.Create, results[0].Err
}

// commit makes changes, with what goes with them. When the engine fails, nothing has changed.
func (s *Server) commit(writes ...store.Write) ([]store.Written, error) {
	for i := range writes {
		if svc, isService := writes[i].Object.(*object.Service); isService && !writes[i].Status {
			s.look(svc)
		}
	}
	results, err := s.store.Write(writes...)
	switch {
	case errors.Is(err, engine.ErrNoSpace), errors.Is(err, engine.ErrUnsettled), isAway(err):
		return nil, err
	case err != nil:
		s.log.Error("write failed", "err", err)
		return nil, unavailable(fmt.Sprintf("the change could not be stored, and nothing was changed: %v", err), busyRetry)
	}
	s.removeDependents(writes, results)
	return results, nil
}

// shown is a stored object as a client sees it at the path of a request.
func shown(o object.Object, r *request) object.Object {
	if r.kind.APIVersion() == object.APIVersionEvents {
		return eventView(o)
	}
	return o
}

// plan plans a writing on what is stored now. Namespaces must not go meanwhile.
func (s *Server) plan(wr *writing) (plan, error) {
	live, owner := s.store.Get(wr.request.ref())
	if live == nil {
		if !wr.mustCreate && !wr.mayCreate {
			return plan{}, s.absent(wr.request)
		}
		return s.planCreation(wr)
	}
	if wr.mustCreate {
		if live.GetMeta().DeletionTimestamp != nil {
			gone := alreadyExists(wr.request.kind, wr.request.name)
			gone.message = "object is being deleted: " + gone.message
			return plan{}, gone
		}
		// It may be refused for better reasons than that it is there.
		return s.planCreation(wr)
	}
	if err := mayWrite(wr.request, owner); err != nil {
		return plan{}, err
	}
	return s.planUpdate(wr, shown(live, wr.request), owner)
}

// absent is the answer when an object that is to be changed is not there.
func (s *Server) absent(r *request) error {
	if r.kind.Name == object.KindEndpoints && s.collectionOf(r.kind).get(r.namespace, r.name) != nil {
		return conflict(r.kind, r.name, "it shows the EndpointSlices of the Service: change those")
	}
	return notFound(r.kind, r.name)
}

// planUpdate plans the change of an object that is there.
func (s *Server) planUpdate(wr *writing, live object.Object, owner store.Owner) (plan, error) {
	r := wr.request
	before, err := s.before(r, live, owner)
	if err != nil {
		return plan{}, err
	}
	by := wr.by(s.now(), before.content)
	if wr.applied != nil && !wr.options.asFile && !going(live) && fields.Settled(before.content, wr.applied, by) {
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
	keepSystemFields(o.GetMeta(), live.GetMeta())
	if !wr.options.asFile {
		before.file.keep(o.GetMeta(), before.object.GetMeta())
	}
	if service, ok := o.(*object.Service); ok && wr.options.asFile {
		old := live.(*object.Service)
		if service.NeedsNodePort() && old.NeedsNodePort() {
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
	if !going(live) && fields.Unchanged(before.object, o) {
		return plan{unchanged: before.object}, nil
	}
	if err := storable(o, r.kind); err != nil {
		return plan{}, err
	}
	return plan{before: before.object, write: store.Write{
		Ref: r.ref(), Object: stowed(o), Status: r.subresource != "", Version: live.GetMeta().ResourceVersion,
		DryRun: wr.options.dryRun, By: wr.options.caller(r, wr.verb),
	}}, nil
}

// going reports whether an object has to be written although nothing about it changes: it
// goes when its last finalizer is gone.
func going(live object.Object) bool {
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
		for _, name := range kept(k) {
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

// manage notes who manages which fields of an object that is written in any way but
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

// fits reports whether what is written is the object of the path, and the version of it that
// is there.
func fits(written map[string]any, live object.Object, wr *writing) error {
	r, meta := wr.request, live.GetMeta()
	if err := inNamespace(written, r); err != nil {
		return err
	}
	if err := checkName(written, r); err != nil {
		return err
	}
	uid := textIn(written, "uid")
	switch {
	case uid == "" || uid == meta.UID:
	case wr.replaces:
		return conflict(r.kind, r.name, fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, meta.UID))
	default:
		return object.Errors{{Type: object.FieldValueInvalid, Field: "metadata.uid", Value: uid, Detail: "field is immutable"}}
	}
	if goes := textIn(written, "deletionTimestamp"); goes != "" && meta.DeletionTimestamp == nil {
		return object.Errors{{Type: object.FieldValueInvalid, Field: "metadata.deletionTimestamp", Value: goes, Detail: "field is immutable: send a DELETE"}}
	}
	switch version := textIn(written, "resourceVersion"); {
	case version == "" && r.kind.Strategy().VersionRequired:
		return invalid(r.kind.Group, r.kind.Plural, r.name, object.Errors{{
			Type: object.FieldValueInvalid, Field: "metadata.resourceVersion", Value: 0, Detail: "must be specified for an update",
		}})
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

// keepSystemFields sets what only the server says about an object.
func keepSystemFields(meta, live *object.ObjectMeta) {
	meta.UID, meta.ResourceVersion, meta.Generation = live.UID, live.ResourceVersion, live.Generation
	meta.CreationTimestamp, meta.DeletionTimestamp = live.CreationTimestamp, live.DeletionTimestamp
}

// dedupOwners leaves each owner reference once.
func (o *options) dedupOwners(meta *object.ObjectMeta) {
	var left []object.OwnerReference
	for _, owner := range meta.OwnerReferences {
		same := func(other object.OwnerReference) bool {
			return other.UID == owner.UID && other.Kind == owner.Kind && other.Name == owner.Name && other.APIVersion == owner.APIVersion &&
				isTrue(other.Controller) == isTrue(owner.Controller) && isTrue(other.BlockOwnerDeletion) == isTrue(owner.BlockOwnerDeletion)
		}
		if slices.ContainsFunc(left, same) {
			o.warnings.add(".metadata.ownerReferences contains duplicate entries; duplicate UID(s) observed: " + owner.UID)
			continue
		}
		left = append(left, owner)
	}
	meta.OwnerReferences = left
}

func isTrue(b *bool) bool { return b != nil && *b }
