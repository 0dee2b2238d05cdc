package rest

import (
	"errors"
	"net/http"

	"svcctl.io/svcctl/api/kube/patch"
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
			return o.patched(patch.Merge(live, content), duplicates, body, t, nil)
		}
		patched, err := patch.Strategic(live, content, t)
		return o.patched(patched, duplicates, body, t, err)
	}, nil
}

// patched returns the result of a patch, if it is an object of the type.
func (o *options) patched(content map[string]any, fieldWarnings []string, body []byte, t *schema.Type, err error) (map[string]any, error) {
	switch {
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

// badPatch refuses what a patch makes of an object.
func badPatch(body []byte, why error) *statusError {
	const shown = 256
	text := string(body)
	if len(text) > shown {
		text = text[:shown] + "..."
	}
	return invalid("", "", "", object.Errors{{Type: object.FieldValueInvalid, Field: "patch", Value: text, Detail: why.Error()}})
}
