package rest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	fields "svcctl.io/svcctl/store/managedfields"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// apply answers a server-side apply (PATCH with application/apply-patch+yaml) of an
// object, or of its status.
func (s *Server) apply(w http.ResponseWriter, r *request, o *options, body []byte) error {
	value, duplicates, err := parse(body, typeYAML)
	applied, isObject := value.(map[string]any)
	if err == nil && !isObject {
		err = errors.New("it is no object with fields")
	}
	if err != nil {
		return badRequest("error decoding patch: %v", err)
	}
	wr, err := s.applying(r, o, applied, duplicates)
	if err != nil {
		return err
	}
	return s.answer(w, wr)
}

// applying is the writing of an object that is applied. The object is its own to change.
func (s *Server) applying(r *request, o *options, applied map[string]any, fieldWarnings []string) (*writing, error) {
	if err := checkApplied(applied, r); err != nil {
		return nil, err
	}
	unknown, err := schema.Of(r.kind).Prune(applied)
	if err != nil {
		return nil, notTyped(r, err)
	}
	if fieldWarnings = append(fieldWarnings, unknown...); len(fieldWarnings) > 0 && o.validation == strict {
		return nil, badRequest("error strict decoding patch: %v", schema.StrictError(fieldWarnings))
	}
	o.warnOfFields(fieldWarnings)
	if err := inNamespace(applied, r); err != nil {
		return nil, err
	}
	if textIn(applied, "name") == "" {
		metadataIn(applied)["name"] = r.name
	}
	if err := checkName(applied, r); err != nil {
		return nil, err
	}
	wr := &writing{request: r, options: o, verb: "apply", applied: applied, mayCreate: r.subresource == ""}
	if o.asFile {
		wr.edit = func(live map[string]any) (map[string]any, error) { return s.editFile(wr, live) }
		return wr, nil
	}
	wr.edit = func(live map[string]any) (map[string]any, error) {
		by := wr.by(s.now(), live)
		if live == nil {
			live = map[string]any{}
		}
		merged, err := fields.Apply(live, applied, by, o.force != nil && *o.force)
		return merged, s.unmerged(err, r)
	}
	return wr, nil
}

// checkApplied refuses what does not say which kind it is of.
func checkApplied(applied map[string]any, r *request) error {
	version, _ := applied["apiVersion"].(string)
	named, _ := applied["kind"].(string)
	switch {
	case version == "":
		return badRequest("apiVersion must be set in an apply patch")
	case named == "":
		return badRequest("kind must be set in an apply patch")
	case version != r.kind.APIVersion():
		return badRequest("Incorrect version specified in apply patch. Specified patch version: %s, expected: %s", version, r.kind.APIVersion())
	case named != r.kind.Name:
		return badRequest("invalid object type: %s, Kind=%s, expected: Kind=%s", version, named, r.kind.Name)
	}
	return nil
}

// notTyped refuses what is no object of its kind.
func notTyped(r *request, why error) *statusError {
	return badRequest("failed to create typed patch object (%s/%s; %s, Kind=%s): %v", r.namespace, r.name, r.kind.APIVersion(), r.kind.Name, why).at(r.kind, r.name, why)
}

// unmerged is the answer to why an object could not be applied; nil stays nil.
func (s *Server) unmerged(err error, r *request) error {
	var contested *fields.ConflictError
	var invalid *fields.InvalidError
	switch {
	case errors.As(err, &contested):
		e := &statusError{code: http.StatusConflict, reason: reasonConflict, message: contested.Error(), details: &statusDetails{}}
		for _, c := range contested.Conflicts {
			e.details.Causes = append(e.details.Causes, statusCause{Reason: fieldManagerConflict, Message: c.Message(), Field: c.Field})
		}
		if slices.ContainsFunc(contested.Conflicts, func(c fields.Conflict) bool { return c.Name == fields.FileManager }) {
			if path, line := s.store.Location(r.ref()); path != "" {
				e.message += fmt.Sprintf("\nThe manager %q is the file %s: change it there, force does not help", fields.FileManager, place(path, line))
			}
		}
		return e
	case errors.As(err, &invalid):
		return badRequest("%v", invalid)
	}
	return err
}

// editFile returns what an object becomes when the file that declares it says what is applied
// instead. Without an object it returns what a new file makes.
func (s *Server) editFile(wr *writing, live map[string]any) (map[string]any, error) {
	r := wr.request
	document, err := typed(wr.applied, r.kind)
	if err != nil {
		return nil, err
	}
	object.Default(document)
	at := s.now()
	if live != nil {
		o, owner := s.store.Get(r.ref())
		if owner.File == "" && owner.Controller == "" {
			return nil, conflict(r.kind, r.name, "it was made by a client, and a file does not take it over: delete it first")
		}
		at = createdAt(o, at)
	} else {
		live = map[string]any{}
	}
	return fields.ApplyFile(live, document, r.kind, at)
}
