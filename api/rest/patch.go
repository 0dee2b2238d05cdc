package rest

import (
	"errors"
	"fmt"
	"net/http"

	"svcctl.io/svcctl/api/kube/patch"
	"svcctl.io/svcctl/store/kind"
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
		return nil, &statusError{code: http.StatusUnprocessableEntity, reason: reasonInvalid, message: "the server rejected our request due to an error in our request: " + err.Error()}
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

// keepsKind refuses what a JSON patch or merge patch makes of an object when that says it is of another
// kind: it would be answered as done, and nothing of it would be. In a strategic merge patch, which
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
