package rest

import (
	"net/http"
)

// maxNameTries bounds the names that are tried for an object with generateName
// (maxNameGenerationCreateAttempts of the API server of Kubernetes).
const maxNameTries = 8

// create answers a POST of an object.
func (s *Server) create(w http.ResponseWriter, r *request) error {
	o, err := optionsOf(r, "CreateOptions")
	if err != nil {
		return err
	}
	content, err := s.decodeBody(r, o)
	if err != nil {
		return err
	}
	if r.subresource != "" {
		return methodNotAllowed("create")
	}
	if textIn(content, "resourceVersion") != "" {
		return badRequest("resourceVersion should not be set on objects to be created")
	}
	prefix := ""
	if textIn(content, "name") == "" {
		prefix = textIn(content, "generateName")
	}
	for try := 1; ; try++ {
		if prefix != "" {
			metadataIn(content)["name"] = generateName(prefix)
		}
		target := *r
		target.name = textIn(content, "name")
		err := s.answer(w, &writing{
			request: &target, options: o, verb: "create", mustCreate: true,
			edit: func(map[string]any) (map[string]any, error) { return content, nil },
		})
		exists, _ := err.(*statusError)
		if prefix == "" || exists == nil || exists.reason != reasonAlreadyExists {
			return err
		}
		if try == maxNameTries {
			exists.message += ", the server was not able to generate a unique name for the object"
			exists.retryAfter = busyRetry
			return err
		}
	}
}
