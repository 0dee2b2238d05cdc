package rest

import (
	"fmt"
	"net/http"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
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

// planCreation plans the creation of an object that is not there.
func (s *Server) planCreation(wr *writing) (plan, error) {
	r := wr.request
	if err := mayCreate(r); err != nil {
		return plan{}, err
	}
	if !wr.options.founded && !wr.options.asFile {
		if err := s.hasNamespace(r); err != nil {
			return plan{}, err
		}
	}
	if err := s.countEvent(wr); err != nil {
		return plan{}, err
	}
	content, err := wr.edit(nil)
	if err != nil {
		return plan{}, err
	}
	if uid := textIn(content, "uid"); uid != "" && !wr.mustCreate {
		return plan{}, conflict(r.kind, r.name, fmt.Sprintf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
	}
	if err := inNamespace(content, r); err != nil {
		return plan{}, err
	}
	if err := checkName(content, r); err != nil && !wr.mustCreate {
		return plan{}, err
	}
	if r.kind.HasStatus && !r.kind.Strategy().StatusOnCreate {
		delete(content, "status")
	}
	o, err := typed(content, r.kind)
	if err != nil {
		return plan{}, err
	}
	meta := o.GetMeta()
	meta.UID, meta.ResourceVersion, meta.Generation = "", "", 0
	meta.CreationTimestamp, meta.DeletionTimestamp = nil, nil
	wr.options.dedupOwners(meta)
	object.Default(o)
	if wr.applied == nil {
		if err := manage(o, nil, r, wr.by(s.now(), nil)); err != nil {
			return plan{}, err
		}
	}
	if err := storable(o, r.kind); err != nil {
		return plan{}, err
	}
	return plan{write: store.Write{
		Ref: r.ref(), Object: stowed(o), Create: true, DryRun: wr.options.dryRun, By: wr.options.caller(r, wr.verb),
	}}, nil
}

// kept are the top-level fields that no change of an object itself changes. What a Namespace
// waits for before it goes is not for its clients to say.
func kept(k kind.Kind) []string {
	switch {
	case k.Strategy().SpecOfServer:
		return []string{"spec", "status"}
	case k.HasStatus:
		return []string{"status"}
	}
	return nil
}

// mayCreate refuses objects of kinds that are made elsewhere.
func mayCreate(r *request) error {
	if r.kind.Name != object.KindServiceCIDR {
		return nil
	}
	return refused(r.kind, r.name, "the ranges of cluster IPs are part of the configuration of the appliance: change them there")
}

// mayWriteKind refuses to write what is only a view of other objects.
func mayWriteKind(r *request) error {
	var why string
	switch {
	case r.kind.Name == object.KindIPAddress:
		why = "show which Services hold which addresses, and cannot be written: change the Service"
	case isComputed(r.kind):
		why = "are computed on request, and can be neither written nor watched: svcctl announcements and /svcctl/v1/announcements?watch=true tell more"
	default:
		return nil
	}
	e := notSupported(r.kind, r.verb)
	e.message = r.kind.GroupResource() + " " + why
	return e
}

// refused returns the answer to a request that no user may make.
func refused(k kind.Kind, name, why string) *statusError {
	return &statusError{
		code: http.StatusForbidden, reason: reasonForbidden, details: detailsOf(k, name),
		message: fmt.Sprintf("%s %q is forbidden: %s", k.GroupResource(), name, why),
	}
}

// stowed is an object as it is stored.
func stowed(o object.Object) object.Object {
	if e, ok := o.(*object.EventView); ok {
		return e.Event()
	}
	return o
}

// entriesOf are the managedFields of an object.
func entriesOf(content map[string]any) ([]object.ManagedFieldsEntry, error) {
	list, _ := metadataIn(content)["managedFields"].([]any)
	entries, err := schema.ToEntries(list)
	if err != nil {
		return nil, fmt.Errorf("decode managedFields: %w", err)
	}
	return entries, nil
}
