package rest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"svcctl.io/svcctl/api/kube/protobuf"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// preconditions refuses the removal of another object, or version of it, than was meant.
func preconditions(r *request, live object.Object, version, uid string) error {
	meta := live.GetMeta()
	if uid != "" && uid != meta.UID {
		return conflict(r.kind, r.name, fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, meta.UID))
	}
	if version != "" && version != meta.ResourceVersion {
		return conflict(r.kind, r.name, fmt.Sprintf("Precondition failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s", version, meta.ResourceVersion))
	}
	return nil
}

// A deletion has the options and preconditions of a removal.
type deletion struct {
	options      *options
	version, uid string // preconditions; "" is any
	// orphan keeps the dependents of the objects (propagationPolicy Orphan).
	orphan bool
	// foreground is set when the answer must say whether the object is gone already
	// (propagationPolicy Foreground).
	foreground bool
}

// deletionOf reads the DeleteOptions in the body of a request, or in its query when it has no
// body. In the background and in the foreground are the same: what depends on an object goes
// right after it, before the answer (removeDependents).
func (s *Server) deletionOf(w http.ResponseWriter, r *request) (deletion, error) {
	body, err := s.bodies.readSmall(w, r)
	if err != nil {
		return deletion{}, err
	}
	var asked object.DeleteOptions
	if len(body) > 0 {
		err = readDeleteOptions(r, body, &asked)
	} else {
		asked.DryRun = r.query["dryRun"]
		if policy := r.query.Get("propagationPolicy"); policy != "" {
			asked.PropagationPolicy = &policy
		}
	}
	if err != nil {
		return deletion{}, err
	}
	if errs := deleteErrors(asked); len(errs) > 0 {
		return deletion{}, invalid("meta.k8s.io", "DeleteOptions", "", errs)
	}
	d := deletion{options: &options{dryRun: len(asked.DryRun) > 0, validation: warn}}
	d.foreground = asked.OrphanDependents != nil && !*asked.OrphanDependents
	d.orphan = isTrue(asked.OrphanDependents) || asked.PropagationPolicy != nil && *asked.PropagationPolicy == "Orphan"
	if p := asked.Preconditions; p != nil {
		if p.UID != nil {
			d.uid = *p.UID
		}
		if p.ResourceVersion != nil {
			d.version = *p.ResourceVersion
		}
	}
	return d, nil
}

func readDeleteOptions(r *request, body []byte, into *object.DeleteOptions) error {
	mediaType, err := mediaTypeOf(r.http, bodyTypes)
	if err != nil {
		return err
	}
	var content map[string]any
	if mediaType == protobuf.MediaType {
		envelope, err := protobuf.Open(body)
		if err == nil {
			content, err = envelope.Object(schema.DeleteOptions())
		}
		if err != nil {
			return badRequest("%v", err)
		}
	} else {
		value, _, err := parse(body, mediaType)
		if err != nil {
			return badRequest("%v", err)
		}
		content, _ = value.(map[string]any)
		if content == nil {
			return badRequest("the body is no DeleteOptions: it is no object with fields")
		}
	}
	if named, ok := content["kind"]; ok && named != "DeleteOptions" && named != "" {
		return badRequest("decoded object cannot be converted to DeleteOptions")
	}
	if _, err := schema.DeleteOptions().Prune(content); err != nil {
		return badRequest("%v", err)
	}
	text, err := json.Marshal(content)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return badRequest("%v", err)
	}
	return nil
}

func deleteErrors(asked object.DeleteOptions) object.Errors {
	var errs object.Errors
	policy := asked.PropagationPolicy
	if policy != nil && asked.OrphanDependents != nil {
		errs = append(errs, object.Error{
			Type: object.FieldValueInvalid, Field: "propagationPolicy", Value: *policy, Detail: "orphanDependents and deletionPropagation cannot be both set",
		})
	}
	if policy != nil && !slices.Contains([]string{"Foreground", "Background", "Orphan"}, *policy) {
		errs = append(errs, unsupported("propagationPolicy", *policy, "Foreground", "Background", "Orphan", "nil"))
	}
	return append(errs, dryRunErrors(asked.DryRun)...)
}
