package rest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"svcctl.io/svcctl/api/kube/patch"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/kind"
	fields "svcctl.io/svcctl/store/managedfields"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// The media types of patches.
const (
	typeJSONPatch      = "application/json-patch+json"
	typeMergePatch     = "application/merge-patch+json"
	typeStrategicPatch = "application/strategic-merge-patch+json"
	typeApplyPatch     = "application/apply-patch+yaml"
)

// patch answers a PATCH of an object, or of its status.
func (s *Server) patch(w http.ResponseWriter, r *request) error {
	if r.http.Header.Get("Content-Type") == "" {
		return unsupportedMedia(typeJSONPatch, typeMergePatch, typeStrategicPatch, typeApplyPatch)
	}
	mediaType, err := mediaTypeOf(r.http, []string{typeJSONPatch, typeMergePatch, typeStrategicPatch, typeApplyPatch})
	if err != nil {
		return err
	}
	o, err := optionsOf(r, "PatchOptions")
	if err != nil {
		return err
	}
	if err := o.checkPatch(mediaType); err != nil {
		return err
	}
	body, err := s.bodies.read(r, schema.MaxBytes)
	if err != nil {
		return err
	}
	if mediaType == typeApplyPatch {
		return s.apply(w, r, o, body)
	}
	edit, err := patchOf(mediaType, body, r, o)
	if err != nil {
		return err
	}
	return s.answer(w, &writing{request: r, options: o, verb: "patch", edit: edit})
}

// checkPatch checks the query parameters that not all kinds of patches have.
func (o *options) checkPatch(mediaType string) error {
	var errs object.Errors
	switch {
	case mediaType == typeApplyPatch && o.manager == "":
		errs = object.Errors{{Type: object.FieldValueRequired, Field: "fieldManager", Detail: "is required for apply patch"}}
	case mediaType != typeApplyPatch && o.force != nil:
		errs = object.Errors{{Type: object.FieldValueForbidden, Field: "force", Detail: "may not be specified for non-apply patch"}}
	default:
		return nil
	}
	return invalid("meta.k8s.io", "PatchOptions", "", errs)
}

// patchOf is the change that a patch makes. An error is about the patch itself.
func patchOf(mediaType string, body []byte, r *request, o *options) (func(map[string]any) (map[string]any, error), error) {
	t := schema.Of(r.kind)
	if mediaType == typeJSONPatch {
		if _, _, err := schema.Parse(body); err != nil {
			return nil, badRequest("error decoding patch: %v", err)
		}
		return func(live map[string]any) (map[string]any, error) {
			patched, duplicates, err := patch.JSON(live, body)
			if err == nil {
				err = keepsKind(patched, body, r.kind)
			}
			for i := range duplicates {
				duplicates[i] = "json patch " + duplicates[i]
			}
			return o.patched(patched, duplicates, body, t, err)
		}, nil
	}
	content, duplicates, err := schema.ParseObject(body)
	if err != nil {
		return nil, badRequest("error decoding patch: %v", err)
	}
	return func(live map[string]any) (map[string]any, error) {
		if mediaType == typeMergePatch {
			patched := patch.Merge(live, content)
			return o.patched(patched, duplicates, body, t, keepsKind(patched, body, r.kind))
		}
		patched, err := patch.Strategic(live, content, t)
		return o.patched(patched, duplicates, body, t, err)
	}, nil
}

// patched returns the result of a patch, if it is an object of the type.
func (o *options) patched(content map[string]any, fieldWarnings []string, body []byte, t *schema.Type, err error) (map[string]any, error) {
	var refused *statusError
	switch {
	case errors.As(err, &refused):
		return nil, err
	case errors.Is(err, patch.ErrTooLarge):
		return nil, tooLarge(err.Error())
	case errors.Is(err, patch.ErrNotApplicable):
		return nil, refusal(wire.ReasonInvalid, nil, "the server rejected our request due to an error in our request: %v", err)
	case err != nil:
		return nil, badRequest("%v", err)
	}
	unknown, err := t.Prune(content)
	if err != nil {
		return nil, badPatch(body, err)
	}
	fieldWarnings = append(fieldWarnings, unknown...)
	if len(fieldWarnings) > 0 && o.validation == strict {
		return nil, badPatch(body, schema.StrictError(fieldWarnings))
	}
	o.warnOfFields(fieldWarnings)
	return content, nil
}

// keepsKind refuses a JSON patch or merge patch that changes the kind of an object: it would be
// answered as done, without effect. In a strategic merge patch, which
// kubectl makes of whole files, Kubernetes ignores both fields.
func keepsKind(patched map[string]any, body []byte, k kind.Kind) error {
	for _, field := range [][2]string{{"kind", k.Name}, {"apiVersion", k.APIVersion()}} {
		if value := patched[field[0]]; value != nil && value != "" && value != field[1] {
			return badPatch(body, fmt.Errorf("%s: %v: it cannot be changed, this is a %s of %s", field[0], value, k.Name, k.APIVersion()))
		}
	}
	return nil
}

// badPatch refuses what a patch makes of an object.
func badPatch(body []byte, why error) *statusError {
	const shown = 256
	text := string(body)
	if len(text) > shown {
		text = text[:shown] + "..."
	}
	return invalid("", "", "", object.Errors{{Type: object.FieldValueInvalid, Field: "patch", Value: text, Detail: why.Error()}})
}

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
		return nil, badRequest("failed to create typed patch object (%s/%s; %s, Kind=%s): %v", r.namespace, r.name, r.kind.APIVersion(), r.kind.Name, err).at(r.kind, r.name, err)
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
	switch named, _ := applied["kind"].(string); {
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

// unmerged is the answer to why an object could not be applied; nil stays nil.
func (s *Server) unmerged(err error, r *request) error {
	var contested *fields.ConflictError
	var invalid *fields.InvalidError
	switch {
	case errors.As(err, &contested):
		e := refusal(wire.ReasonConflict, &wire.FailureDetails{}, "%v", contested)
		for _, c := range contested.Conflicts {
			e.Details.Causes = append(e.Details.Causes, wire.FailureCause{Reason: fieldManagerConflict, Message: c.Message(), Field: c.Field})
		}
		if slices.ContainsFunc(contested.Conflicts, func(c fields.Conflict) bool { return c.Name == fields.FileManager }) {
			if path, line := s.store.Location(r.ref()); path != "" {
				e.Message += fmt.Sprintf("\nThe manager %q is the file %s: change it there, force does not help", fields.FileManager, place(path, line))
			}
		}
		return e
	case errors.As(err, &invalid):
		return badRequest("%v", invalid)
	}
	return err
}

// editFile returns the object that follows when the file that declares it has the applied document
// instead. Without an object it returns that of a new file.
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
