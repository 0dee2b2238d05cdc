package rest

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"svcctl.io/svcctl/api/kube/patch"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/kind"
	fields "svcctl.io/svcctl/store/managedfields"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// answer performs a write, and answers with the object as it is afterwards.
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
	return s.respond(w, wr.request, code, s.written(wr, o))
}

// written returns a Service with the conditions that a GET would show after the write. After a dry run it has the conditions of the stored Service,
// if there is one. Other objects are returned as they are.
func (s *Server) written(wr *writing, o object.Object) object.Object {
	svc, is := o.(*object.Service)
	if !is || s.conditions == nil {
		return o
	}
	of := svc
	if wr.options.dryRun {
		live, _ := s.store.Get(wr.request.ref())
		if of, is = live.(*object.Service); !is {
			return o
		}
	}
	conditions, _ := s.conditions.Of(of)
	return withConditions(svc, conditions)
}

// write performs a write, and returns the object as it is afterwards.
func (s *Server) write(wr *writing) (o object.Object, created bool, err error) {
	for try := 1; ; try++ {
		o, created, err = s.try(wr)
		retry := errors.Is(err, store.ErrStale) || errors.Is(err, store.ErrExists) && !wr.mustCreate
		if !retry || try == maxTries {
			return o, created, answerTo(err, wr.request)
		}
	}
}

// answerTo is like statusOf, but returns nil if err is nil.
func answerTo(err error, r *request) error {
	if err == nil {
		return nil
	}
	return statusOf(err, r)
}

// try performs a write once, without retries after conflicts.
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

// plan plans a writing on the stored version, if its user may make it. The caller holds guards.namespaces for reading.
func (s *Server) plan(wr *writing) (plan, error) {
	p, err := s.planned(wr)
	if err != nil {
		return p, err
	}
	return p, s.owns(wr.request, cmp.Or(p.before, p.unchanged), p.write.Object)
}

func (s *Server) planned(wr *writing) (plan, error) {
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
			gone.Message = "object is being deleted: " + gone.Message
			return plan{}, gone
		}
		// It may be refused for better reasons than that it is there.
		return s.planCreation(wr)
	}
	if err := mayWrite(wr.request, owner, live); err != nil {
		return plan{}, err
	}
	return s.planUpdate(wr, shown(live, wr.request), owner)
}

// absent returns the error for the change of an object that does not exist.
func (s *Server) absent(r *request) error {
	if r.kind.Name == object.KindEndpoints && s.collectionOf(r.kind, r.form).get(r.namespace, r.name) != nil {
		return conflict(r.kind, r.name, "it shows the EndpointSlices of the Service: change those")
	}
	return notFound(r.kind, r.name)
}

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
		if prefix == "" || exists == nil || exists.Reason != wire.ReasonAlreadyExists {
			return err
		}
		if try == maxNameTries {
			exists.Message += ", the server was not able to generate a unique name for the object"
			return exists.retryAfter(busyRetry)
		}
	}
}

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

const (
	// nameLetters are the characters of generated names, without vowels so that they form no words (alphanums of apimachinery's util/rand).
	nameLetters = "bcdfghjklmnpqrstvwxz2456789"
	// nameSuffix is the number of characters that follow a prefix. maxPrefix bounds the prefix, so that the name is a DNS label.
	nameSuffix = 5
	maxPrefix  = 63 - nameSuffix
)

// generateName returns a new name that begins with a prefix.
func generateName(prefix string) string {
	var random [nameSuffix]byte
	rand.Read(random[:]) // never fails
	for i, b := range random {
		random[i] = nameLetters[int(b)%len(nameLetters)]
	}
	return prefix[:min(len(prefix), maxPrefix)] + string(random[:])
}

// commitObjects bounds the objects of one commit.
const commitObjects = 1000

// commit writes to the store, and then removes the dependents of removed objects. After an error nothing has changed, except that engine.ErrUnsettled
// means that the outcome is unknown.
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

// checkPatch checks the query parameters fieldManager and force, which not all kinds of patches permit or require.
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

// patchOf returns a function that applies a patch to the live object. The error of patchOf means that the patch is malformed.
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

// patched returns the result of a patch if it is a valid object of the type. err is the error of applying the patch.
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

// keepsKind returns an error if a JSON patch or merge patch changes the kind or apiVersion of an object, which would have no effect. Kubernetes
// ignores both fields in a strategic merge patch, which kubectl makes from whole files.
func keepsKind(patched map[string]any, body []byte, k kind.Kind) error {
	for _, field := range [][2]string{{"kind", k.Name}, {"apiVersion", k.APIVersion()}} {
		if value := patched[field[0]]; value != nil && value != "" && value != field[1] {
			return badPatch(body, fmt.Errorf("%s: %v: it cannot be changed, this is a %s of %s", field[0], value, k.Name, k.APIVersion()))
		}
	}
	return nil
}

// badPatch returns the error for a patch whose result is not a valid object.
func badPatch(body []byte, why error) *statusError {
	const shown = 256
	text := string(body)
	if len(text) > shown {
		text = text[:shown] + "..."
	}
	return invalid("", "", "", object.Errors{object.Invalid("patch", text, why.Error())})
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

// applying returns the write for a server-side apply. It may modify applied.
func (s *Server) applying(r *request, o *options, applied map[string]any, fieldWarnings []string) (*writing, error) {
	if err := checkApplied(applied, r); err != nil {
		return nil, err
	}
	unknown, err := schema.Of(r.kind).Prune(applied)
	if err != nil {
		return nil, badRequest("failed to create typed patch object (%s/%s; %s, Kind=%s): %v", r.namespace, r.name, r.kind.APIVersion(), r.kind.Name, err).at(r.kind, r.name, err)
	}
	if len(unknown) > 0 || len(fieldWarnings) > 0 && o.validation == strict { // an apply is typed: each field needs a type
		return nil, badRequest("error strict decoding patch: %v", schema.StrictError(append(fieldWarnings, unknown...)))
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

// checkApplied returns an error unless an applied document has the apiVersion and kind of the request.
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

// unmerged returns the answer to an error of merging an applied document; nil for nil.
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

// editFile returns the live object as it would be if the file that declares it had the applied document in place of its present one. If live is nil,
// the file is new.
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
