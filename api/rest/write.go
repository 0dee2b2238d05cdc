package rest

import (
	"errors"
	"net/http"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// answer makes a writing, and answers with the object as it is afterwards.
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

// write makes a writing, and gives the object as it is afterwards.
func (s *Server) write(wr *writing) (o object.Object, created bool, err error) {
	for try := 1; ; try++ {
		o, created, err = s.try(wr)
		again := errors.Is(err, store.ErrStale) || errors.Is(err, store.ErrExists) && !wr.mustCreate
		if !again || try == maxTries {
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

// try makes a writing once.
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

// plan plans a writing on what is stored now. Namespaces must not go meanwhile.
func (s *Server) plan(wr *writing) (plan, error) {
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
			gone.message = "object is being deleted: " + gone.message
			return plan{}, gone
		}
		// It may be refused for better reasons than that it is there.
		return s.planCreation(wr)
	}
	if err := mayWrite(wr.request, owner); err != nil {
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
