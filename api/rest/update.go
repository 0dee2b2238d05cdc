package rest

import (
	"net/http"
)

// update answers a PUT of an object, or of its status.
func (s *Server) update(w http.ResponseWriter, r *request) error {
	o, err := optionsOf(r, "UpdateOptions")
	if err != nil {
		return err
	}
	content, err := s.decodeBody(r, o)
	if err != nil {
		return err
	}
	if err := checkName(content, r); err != nil {
		return err
	}
	creates := r.subresource == "" && r.kind.Strategy().CreateOnUpdate
	return s.answer(w, &writing{
		request: r, options: o, verb: "update", replaces: true, mayCreate: creates,
		edit: func(map[string]any) (map[string]any, error) { return copied(content), nil },
	})
}
