package rest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
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
	case answersWithObject(r.kind.Name):
		return s.respond(w, r, http.StatusOK, last)
	}
	return s.respondStatus(w, r, success(r.kind, r.name, last.GetMeta().UID))
}

// answersWithObject are the kinds whose last version is the answer to their removal
// (ReturnDeletedObject of their registries in Kubernetes); the others have a Status.
func answersWithObject(kind string) bool {
	return kind == object.KindService || kind == object.KindPod || kind == object.KindNamespace
}

// remove removes an object, or marks it as going, and gives its last version.
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

// lastVersion returns the answer to a removal: the object as stored last, with the resourceVersion
// of the removal, as in its event. A watch from there does not send the event again.
func lastVersion(w store.Written) object.Object {
	if w.Revision == 0 {
		return w.Object
	}
	last := w.Object.DeepCopy()
	last.GetMeta().ResourceVersion = strconv.FormatUint(w.Revision, 10)
	return last
}

// removal plans the removal of an object.
func (s *Server) removal(r *request, d deletion) (store.Write, error) {
	live, owner := s.store.Get(r.ref())
	if live == nil {
		return store.Write{}, s.absent(r)
	}
	if err := mayWrite(r, owner); err != nil {
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

// deleteCollection answers a DELETE of the objects of a kind that a list with the same query would
// have, and tells which these were: with a limit, no more than that. When one of them may not be
// removed, none is.
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
	switch {
	case errors.Is(err, store.ErrExpired):
		return o.expired(start)
	case err != nil:
		return err
	}
	asShown := make([]object.Object, len(objects))
	for i, stored := range objects {
		asShown[i] = shown(stored, r)
	}
	if o.continueToken != "" {
		asShown = behind(asShown, start)
	}
	page := pageOf(asShown, &o)
	var writes []store.Write
	for one := range o.selected(asShown[:page.length]) {
		write, err := s.removal(r.of(object.RefOf(one)), d)
		var e *statusError
		switch {
		case err == nil:
			writes = append(writes, write)
		case errors.As(err, &e) && e.code == http.StatusNotFound: // another request was faster
		default:
			return statusOf(err, r.of(object.RefOf(one)))
		}
	}
	removed, err := s.removeAll(r, d, writes)
	if err != nil {
		return err
	}
	return s.respondList(w, r, page.meta(asShown, revision, &o), slices.Values(removed))
}

// removeAll makes many removals, and gives the last versions of what was removed.
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
			case errors.Is(err, store.ErrNotFound), errors.As(err, &e) && e.code == http.StatusNotFound:
			default:
				return nil, statusOf(err, one)
			}
		}
	}
	return removed, nil
}

// of is the same request for one of the objects that it is about.
func (r *request) of(ref object.Ref) *request {
	one := *r
	one.namespace, one.name = ref.Namespace, ref.Name
	return &one
}
