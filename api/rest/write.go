package rest

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
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

// written shows a Service with its conditions after a write: those that a GET shows now. A dry run shows those of
// the stored object, if there is one.
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

// answerTo is statusOf for what may be no error.
func answerTo(err error, r *request) error {
	if err == nil {
		return nil
	}
	return statusOf(err, r)
}

// try performs a write once.
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

// plan plans a writing on the stored version, if its user may make it. Namespaces must not be removed meanwhile.
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

// absent is the answer when an object that is to be changed is not there.
func (s *Server) absent(r *request) error {
	if r.kind.Name == object.KindEndpoints && s.collectionOf(r.kind).get(r.namespace, r.name) != nil {
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
	// nameLetters make no words (alphanums of apimachinery's util/rand).
	nameLetters = "bcdfghjklmnpqrstvwxz2456789"
	// nameSuffix is the number of letters behind a prefix, and maxPrefix bounds the prefix, so that
	// the name is a label.
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

// commit makes changes, with what goes with them. When the engine fails, nothing has changed.
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
