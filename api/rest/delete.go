package rest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"svcctl.io/svcctl/api/kube/protobuf"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// delete answers a DELETE of an object.
func (s *Server) delete(w http.ResponseWriter, r *request) error {
	d, err := s.deletionOf(w, r)
	if err != nil {
		return err
	}
	if r.kind.Name == object.KindNamespace {
		return s.deleteNamespace(w, r, d)
	}
	last, removed, err := s.remove(r, d)
	if err != nil {
		return err
	}
	switch {
	case !removed:
		code := http.StatusOK
		if d.foreground {
			code = http.StatusAccepted
		}
		return s.respond(w, r, code, last)
	case r.kind.Name == object.KindService || r.kind.Name == object.KindPod: // ReturnDeletedObject of their registries in Kubernetes
		return s.respond(w, r, http.StatusOK, last)
	}
	return respondJSON(w, r.http, http.StatusOK, r.form.pretty, success(r.kind, r.name, last.GetMeta().UID))
}

// remove removes an object, or sets its deletionTimestamp if finalizers keep it, and returns its last version.
func (s *Server) remove(r *request, d deletion) (last object.Object, removed bool, err error) {
	for try := 1; ; try++ {
		write, err := s.removal(r, d)
		if err != nil {
			return nil, false, answerTo(err, r)
		}
		results, err := s.commit(write)
		if err != nil {
			return nil, false, answerTo(err, r)
		}
		if err := results[0].Err; !errors.Is(err, store.ErrStale) || try == maxTries {
			return shown(lastVersion(results[0]), r), results[0].Removed, answerTo(err, r)
		}
	}
}

// lastVersion returns the object in the response to a removal: the last stored version with the resourceVersion of the removal, like the DELETED
// event. A watch that starts there does not send that event again.
func lastVersion(w store.Written) object.Object {
	if w.Revision == 0 {
		return w.Object
	}
	return withVersion(w.Object, w.Revision)
}

// removal plans the removal of an object.
func (s *Server) removal(r *request, d deletion) (store.Write, error) {
	live, owner := s.store.Get(r.ref())
	if live == nil {
		return store.Write{}, s.absent(r)
	}
	if err := mayWrite(r, owner, live); err != nil {
		return store.Write{}, err
	}
	if err := s.owns(r, live, nil); err != nil {
		return store.Write{}, err
	}
	if owner.File != "" {
		path, line := s.store.Location(r.ref())
		return store.Write{}, conflict(r.kind, r.name, fmt.Sprintf("it belongs to the file %s: remove it there", place(path, line)))
	}
	if err := preconditions(r, live, d.version, d.uid); err != nil {
		return store.Write{}, err
	}
	if d.orphan && !d.options.dryRun {
		if err := s.orphan(r, live.GetMeta().UID, d.options.caller(r, "update")); err != nil {
			return store.Write{}, err
		}
	}
	return store.Write{
		Ref: r.ref(), Delete: true, Version: live.GetMeta().ResourceVersion, DryRun: d.options.dryRun, By: d.options.caller(r, "delete"),
	}, nil
}

// deleteCollection answers a DELETE of the objects that a list with the same query, including its limit, would return. The answer lists
// them. If one of them may not be removed, none is.
func (s *Server) deleteCollection(w http.ResponseWriter, r *request) error {
	d, err := s.deletionOf(w, r)
	if err != nil {
		return err
	}
	o, err := listOptionsOf(r)
	if err != nil {
		return err
	}
	at, start, err := s.startOf(&o)
	if err != nil {
		return err
	}
	objects, revision, err := s.store.List(r.kind.Name, r.namespace, at)
	if objects, err = o.behind(objects, start, err); err != nil {
		return err
	}
	page := pageOf(objects, &o)
	var writes []store.Write
	for _, one := range page.objects {
		if !o.selects(one) {
			continue
		}
		write, err := s.removal(r.of(object.RefOf(one)), d)
		var e *statusError
		switch {
		case err == nil:
			writes = append(writes, write)
		case errors.As(err, &e) && e.Code == http.StatusNotFound: // another request was faster
		default:
			return statusOf(err, r.of(object.RefOf(one)))
		}
	}
	removed, err := s.removeAll(r, d, writes)
	if err != nil {
		return err
	}
	return s.respondList(w, r, page.meta(objects, revision, &o), slices.Values(removed))
}

// removeAll makes many removals, and returns the last versions of the removed objects.
func (s *Server) removeAll(r *request, d deletion, writes []store.Write) ([]object.Object, error) {
	var removed []object.Object
	for chunk := range slices.Chunk(writes, commitObjects) {
		results, err := s.commit(chunk...)
		if err != nil {
			return nil, err
		}
		for i := range results {
			last, err := shown(results[i].Object, r), results[i].Err
			one := r.of(chunk[i].Ref)
			if errors.Is(err, store.ErrStale) {
				last, _, err = s.remove(one, d)
			}
			var e *statusError
			switch {
			case err == nil:
				removed = append(removed, last)
			case errors.Is(err, store.ErrNotFound), errors.As(err, &e) && e.Code == http.StatusNotFound:
			default:
				return nil, statusOf(err, one)
			}
		}
	}
	return removed, nil
}

// of returns a copy of the request that is about one object.
func (r *request) of(ref object.Ref) *request {
	one := *r
	one.namespace, one.name = ref.Namespace, ref.Name
	return &one
}

// preconditions returns an error unless the object has the UID and resourceVersion that the request names.
func preconditions(r *request, live object.Object, version, uid string) error {
	switch meta := live.GetMeta(); {
	case uid != "" && uid != meta.UID:
		return conflict(r.kind, r.name, (&store.PreconditionError{Field: "UID", Wanted: uid, Have: meta.UID}).Error())
	case version != "" && version != meta.ResourceVersion:
		return conflict(r.kind, r.name, (&store.PreconditionError{Field: "ResourceVersion", Wanted: version, Have: meta.ResourceVersion}).Error())
	}
	return nil
}

// A deletion has the options and preconditions of a removal.
type deletion struct {
	options      *options
	version, uid string // preconditions; "" for none
	// orphan keeps the dependents of the objects (propagationPolicy Orphan).
	orphan bool
	// foreground is set if the response must show whether the object is already gone (propagationPolicy Foreground).
	foreground bool
}

// deletionOf reads the DeleteOptions in the body of a request, or in its query if it has no body. The propagation policies Background and
// Foreground do the same: dependents are removed right after the object, before the answer (removeDependents).
func (s *Server) deletionOf(w http.ResponseWriter, r *request) (deletion, error) {
	body, err := s.bodies.readSmall(w, r)
	if err != nil {
		return deletion{}, err
	}
	var asked object.DeleteOptions
	if len(body) > 0 {
		err = readDeleteOptions(r, body, &asked)
	} else {
		err = queryDeleteOptions(r, &asked)
	}
	if err != nil {
		return deletion{}, err
	}
	if errs := deleteErrors(asked); len(errs) > 0 {
		return deletion{}, invalid("meta.k8s.io", "DeleteOptions", "", errs)
	}
	d := deletion{options: &options{dryRun: len(asked.DryRun) > 0, validation: warn}}
	d.foreground = asked.OrphanDependents != nil && !*asked.OrphanDependents
	d.orphan = object.Deref(asked.OrphanDependents) || asked.PropagationPolicy != nil && *asked.PropagationPolicy == "Orphan"
	if p := asked.Preconditions; p != nil {
		d.uid, d.version = object.Deref(p.UID), object.Deref(p.ResourceVersion)
	}
	return d, nil
}

// queryDeleteOptions reads the DeleteOptions that a query can hold: all but preconditions.
func queryDeleteOptions(r *request, into *object.DeleteOptions) error {
	into.DryRun = r.query["dryRun"]
	if policy := r.query.Get("propagationPolicy"); policy != "" {
		into.PropagationPolicy = &policy
	}
	if r.query.Has("orphanDependents") {
		into.OrphanDependents = new(boolIn(r, "orphanDependents"))
	}
	seconds, err := intIn(r, "gracePeriodSeconds")
	into.GracePeriodSeconds = &seconds
	return err
}

func readDeleteOptions(r *request, body []byte, into *object.DeleteOptions) error {
	mediaType, err := mediaTypeOf(r.http, bodyTypes)
	if err != nil {
		return err
	}
	var content map[string]any
	if mediaType == protobuf.MediaType {
		envelope, err := protobuf.Open(body)
		if err == nil {
			content, err = envelope.Object(schema.DeleteOptions())
		}
		if err != nil {
			return badRequest("%v", err)
		}
	} else {
		value, _, err := parse(body, mediaType)
		if err != nil {
			return badRequest("%v", err)
		}
		content, _ = value.(map[string]any)
		if content == nil {
			return badRequest("the body is no DeleteOptions: it is no object with fields")
		}
	}
	if named, ok := content["kind"]; ok && named != "DeleteOptions" && named != "" {
		return badRequest("decoded object cannot be converted to DeleteOptions")
	}
	if _, err := schema.DeleteOptions().Prune(content); err != nil {
		return badRequest("%v", err)
	}
	text, err := json.Marshal(content)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return badRequest("%v", err)
	}
	return nil
}

func deleteErrors(asked object.DeleteOptions) object.Errors {
	var errs object.Errors
	policy := asked.PropagationPolicy
	if policy != nil && asked.OrphanDependents != nil {
		errs = append(errs, object.Invalid("propagationPolicy", *policy, "orphanDependents and deletionPropagation cannot be both set"))
	}
	if policy != nil && !slices.Contains([]string{"Foreground", "Background", "Orphan"}, *policy) {
		errs = append(errs, unsupported("propagationPolicy", *policy, "Foreground", "Background", "Orphan", "nil"))
	}
	return append(errs, dryRunErrors(asked.DryRun)...)
}

// removeDependents removes what depends on the objects that writes have removed: objects whose owners are all gone, and the Endpoints of a
// Service, as in Kubernetes, so that a later Service of that name does not start with them. Dependents that belong to files or controllers
// stay.
func (s *Server) removeDependents(writes []store.Write, results []store.Written) {
	var removals []store.Write
	removed := false
	for i, w := range writes {
		if w.DryRun || results[i].Err != nil || !results[i].Removed {
			continue
		}
		removed = true
		if w.Ref.Kind != object.KindService {
			continue
		}
		if there, _ := s.store.Get(w.Ref); there != nil {
			continue // a file has declared it all along
		}
		_, _, endpoints := s.store.Service(w.Ref.Key())
		if endpoints == nil {
			continue
		}
		if _, owner := s.store.Get(object.RefOf(endpoints)); owner == (store.Owner{}) {
			removals = append(removals, store.Write{Ref: object.RefOf(endpoints), Delete: true, UID: endpoints.GetMeta().UID, By: w.By})
		}
	}
	if !removed {
		return
	}
	var err error
	if len(removals) > 0 {
		var gone []store.Written
		gone, err = s.store.Write(removals...)
		for i := range gone {
			if e := gone[i].Err; e != nil && !errors.Is(e, store.ErrNotFound) && !errors.Is(e, store.ErrStale) {
				err = errors.Join(err, e)
			}
		}
	}
	if err = errors.Join(err, s.store.CollectGarbage()); err != nil {
		s.log.Warn("what belonged to an object that was removed is still there", "err", err)
	}
}

// orphan removes the owner references to uid from all objects, so that they are kept when the owner is removed.
func (s *Server) orphan(r *request, uid string, by store.Caller) error {
	by.Verb = "update"
	for try := 1; ; try++ {
		var writes []store.Write
		for _, o := range s.store.Dependents(uid) {
			free := object.DeepCopy(o)
			meta := free.GetMeta()
			meta.OwnerReferences = slices.DeleteFunc(meta.OwnerReferences, func(owner object.OwnerReference) bool { return owner.UID == uid })
			writes = append(writes, store.Write{Ref: object.RefOf(o), Object: free, Version: o.GetMeta().ResourceVersion, By: by})
		}
		if len(writes) == 0 {
			return nil
		}
		results, err := s.store.Write(writes...)
		if err != nil {
			return unavailable(fmt.Sprintf("what depends on %s could not be kept, and nothing was removed: %v", r.ref(), err), busyRetry)
		}
		retry := false
		for _, result := range results {
			switch {
			case errors.Is(result.Err, store.ErrStale), errors.Is(result.Err, store.ErrNotFound):
				retry = true
			case result.Err != nil:
				return result.Err
			}
		}
		if retry && try == maxTries {
			return unavailable(fmt.Sprintf("what depends on %s changes all the time", r.ref()), busyRetry)
		}
	}
}
