package rest

import (
	"fmt"
	"net/http"
	"slices"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

func namespaceRef(name string) object.Ref { return object.Ref{Kind: object.KindNamespace, Name: name} }

// hasNamespace refuses to create an object in a namespace that is not there, or that goes. The Namespace of MetalLB's
// objects follows the first one: a controller keeps those in which clients have some.
func (s *Server) hasNamespace(r *request) error {
	if !r.kind.Namespaced {
		return nil
	}
	o, _ := s.store.Get(namespaceRef(r.namespace))
	namespace, ok := o.(*object.Namespace)
	if !ok && r.namespace == object.MetalLBNamespace {
		return nil
	}
	if !ok {
		k, _ := kind.ByName(object.APIVersionCore, object.KindNamespace)
		return notFound(k, r.namespace)
	}
	if namespace.Metadata.DeletionTimestamp == nil && namespace.Status.Phase != object.NamespaceTerminating {
		return nil
	}
	e := refused(r.kind, r.name, fmt.Sprintf("unable to create new content in namespace %s because it is being terminated", r.namespace))
	e.Details.Causes = []wire.FailureCause{{
		Reason: "NamespaceTerminating", Message: fmt.Sprintf("namespace %s is being terminated", r.namespace), Field: "metadata.namespace",
	}}
	return e
}

// immortal are the namespaces that are always there.
var immortal = []string{"default", "kube-system"}

// contents are the objects in a namespace, kind by kind.
func (s *Server) contents(namespace string) ([]object.Object, error) {
	var all []object.Object
	for _, k := range kind.All() {
		if !k.Namespaced || k.APIVersion() == object.APIVersionEvents {
			continue
		}
		objects, _, err := s.store.List(k.Name, namespace, 0)
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
}

// deleteNamespace answers a DELETE of a namespace.
func (s *Server) deleteNamespace(w http.ResponseWriter, r *request, d deletion) error {
	last, err := s.removeNamespace(r, d)
	if err != nil {
		return err
	}
	namespace := object.DeepCopy(last).(*object.Namespace)
	namespace.Status.Phase = object.NamespaceTerminating
	return s.respond(w, r, http.StatusOK, namespace)
}

// removeNamespace removes a namespace with all that is in it, and gives its last version. What
// a file declares in it has to go first, and what controllers have made goes with what they
// made it of. The namespace stays, and can be filled no more, as long as something is in it.
func (s *Server) removeNamespace(r *request, d deletion) (last object.Object, err error) {
	s.guards.namespaces.Lock()
	defer s.guards.namespaces.Unlock()
	live, owner := s.store.Get(r.ref())
	if live == nil {
		return nil, notFound(r.kind, r.name)
	}
	if slices.Contains(immortal, r.name) {
		return nil, refused(r.kind, r.name, "this namespace may not be deleted")
	}
	if err := mayWrite(r, owner, live); err != nil {
		return nil, err
	}
	if err := preconditions(r, live, d.version, d.uid); err != nil {
		return nil, err
	}
	contents, ofFile, err := s.removable(r.name)
	if err != nil {
		return nil, err
	}
	if ofFile != nil {
		path, line := s.store.Location(*ofFile)
		return nil, conflict(r.kind, r.name, fmt.Sprintf("%s in it belongs to the file %s: remove it there first", ofFile, place(path, line)))
	}
	removal := store.Write{Ref: r.ref(), Delete: true, DryRun: d.options.dryRun, By: d.options.caller(r, "delete")}
	answer, err := s.empty(removal, contents)
	if err != nil {
		return nil, err
	}
	return answer.Object, answer.Err
}

// removable are the objects in a namespace that go with it when it is removed, and one that
// belongs to a file, if there is one.
func (s *Server) removable(namespace string) (refs []object.Ref, ofFile *object.Ref, err error) {
	contents, err := s.contents(namespace)
	for _, content := range contents {
		ref := object.RefOf(content)
		switch _, owner := s.store.Get(ref); {
		case owner.File != "":
			ofFile = &ref
		case owner.Controller == "" && content.GetMeta().DeletionTimestamp == nil:
			refs = append(refs, ref)
		}
	}
	return refs, ofFile, err
}

// empty removes a namespace and its contents, the namespace first: from then on nothing can
// be put into it. It returns the result of the removal of the namespace.
func (s *Server) empty(removal store.Write, contents []object.Ref) (store.Written, error) {
	writes := []store.Write{removal}
	for _, ref := range contents {
		writes = append(writes, store.Write{Ref: ref, Delete: true, DryRun: removal.DryRun, By: removal.By})
	}
	var first store.Written
	for chunk := range slices.Chunk(writes, commitObjects) {
		results, err := s.commit(chunk...)
		if err != nil {
			return store.Written{}, err
		}
		if chunk[0].Ref == removal.Ref {
			first = results[0]
		}
	}
	return first, nil
}

// emptyNamespaces goes on with removals of namespaces that were not finished, as when the
// appliance was stopped in the middle of one.
func (s *Server) emptyNamespaces() error {
	namespaces, _, err := s.store.List(object.KindNamespace, "", 0)
	if err != nil {
		return err
	}
	for _, o := range namespaces {
		if o.GetMeta().DeletionTimestamp == nil {
			continue
		}
		contents, _, err := s.removable(o.GetMeta().Name)
		if err != nil {
			return err
		}
		if len(contents) == 0 {
			continue
		}
		if _, err := s.empty(store.Write{Ref: object.RefOf(o), Delete: true, By: store.Caller{Verb: "delete"}}, contents); err != nil {
			return err
		}
	}
	return nil
}
