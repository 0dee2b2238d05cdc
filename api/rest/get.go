package rest

import "net/http"

// get answers with one object.
func (s *Server) get(w http.ResponseWriter, r *request) error {
	revision, err := revisionOf(r.query.Get("resourceVersion"))
	if err != nil {
		return err
	}
	if err := s.fresh(w, r, r.query.Get("resourceVersion"), revision); err != nil {
		return err
	}
	if current := s.store.Revision(); revision > current {
		return fromTheFuture(revision, current)
	}
	o := s.collectionOf(r.kind).get(r.namespace, r.name)
	if o == nil {
		return notFound(r.kind, r.name)
	}
	return s.respond(w, r, http.StatusOK, s.managed(r, o))
}
