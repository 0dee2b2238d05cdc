package rest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/kind"
	fields "svcctl.io/svcctl/store/managedfields"
	"svcctl.io/svcctl/store/object"
)

func namespaceRef(name string) object.Ref { return object.Ref{Kind: object.KindNamespace, Name: name} }

// hasNamespace refuses to create an object in a namespace that does not exist or is being removed. The namespace of MetalLB may be missing,
// as control.ClusterObjects creates it after the first object in it.
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

// immortal has the namespaces that cannot be deleted.
var immortal = []string{"default", "kube-system"}

// contents returns the objects in a namespace, kind by kind.
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

// removeNamespace removes a namespace with all objects in it, and returns its last version. It refuses to if a file declares an object in it. Objects
// made by controllers are removed along with the objects they are made from. While it is not empty, the namespace still exists but accepts no new
// objects.
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

// removable returns the objects to remove with a namespace, and an object in it that belongs to a file; nil if there is none.
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

// fieldManagerConflict is the reason of the cause that names a field and its owner
// (metav1.CauseTypeFieldManagerConflict).
const fieldManagerConflict = "FieldManagerConflict"

// A fileDeclaration holds the fields that a manifest file declares of an object. It is the zero value for an object that does not belong to a file.
type fileDeclaration struct {
	path string
	line int
	// entries are the managedFields that the object would have if only the file had written it. typed holds the same entries as Go values.
	entries []any
	typed   []object.ManagedFieldsEntry
}

// fileOf returns the fileDeclaration of the file that declares an object.
func (s *Server) fileOf(r *request, owner store.Owner, live object.Object) (fileDeclaration, error) {
	if owner.File == "" {
		return fileDeclaration{}, nil
	}
	document, path, line := s.store.Document(r.ref())
	if reader := s.store.ReadElsewhere(r.ref()); document == nil && reader != "" {
		return fileDeclaration{}, &store.OwnedError{Ref: r.ref(), Owner: owner, Reader: reader}
	}
	if document == nil {
		return fileDeclaration{}, unavailable(fmt.Sprintf("%s %q belongs to the file %s, which is not there, or was not read yet: put it back, run `svcctl confirm --removals` if its removal is held, or try again a moment after the start",
			r.kind.GroupResource(), r.name, owner.File), busyRetry)
	}
	merged, err := fields.ApplyFile(map[string]any{}, document, r.kind, createdAt(live, s.now()))
	if err != nil {
		return fileDeclaration{}, err
	}
	entries, _ := metadataIn(merged)["managedFields"].([]any)
	stored, err := entriesOf(merged)
	return fileDeclaration{path, line, entries, stored}, err
}

// createdAt returns the creation time of an object, or the given time if it has none.
func createdAt(o object.Object, otherwise time.Time) time.Time {
	if at := o.GetMeta().CreationTimestamp; at != nil {
		return *at
	}
	return otherwise
}

// managed returns an object as clients see it. If only a file has written it, managed adds managedFields that correspond to the file.
func (s *Server) managed(r *request, o object.Object) object.Object {
	_, owner := s.store.Get(r.ref())
	if owner.File == "" || len(o.GetMeta().ManagedFields) > 0 {
		return o
	}
	file, err := s.fileOf(r, owner, o)
	if err != nil {
		return o // it is not known yet
	}
	o = object.DeepCopy(o)
	o.GetMeta().ManagedFields = file.typed
	return o
}

// addEntries adds the file's managedFields entries to an object that lacks them, and reports whether it did.
func (f fileDeclaration) addEntries(content map[string]any) bool {
	metadata := metadataIn(content)
	entries, _ := metadata["managedFields"].([]any)
	if len(f.entries) == 0 || slices.ContainsFunc(entries, isGitops) {
		return false
	}
	metadata["managedFields"] = append(slices.Clone(f.entries), entries...)
	return true
}

// keep restores the file's managedFields entry, which a client may not change: it is needed to merge the next version of the file.
func (f fileDeclaration) keep(meta, before *object.ObjectMeta) {
	i := slices.IndexFunc(before.ManagedFields, ofFile)
	if len(f.entries) == 0 || i < 0 {
		return
	}
	meta.ManagedFields = slices.Insert(slices.DeleteFunc(slices.Clone(meta.ManagedFields), ofFile), 0, before.ManagedFields[i])
}

func ofFile(e object.ManagedFieldsEntry) bool {
	return e.Manager == fields.FileManager && e.Operation == "Apply"
}

func isGitops(entry any) bool {
	e, _ := entry.(map[string]any)
	return e["manager"] == fields.FileManager && e["operation"] == "Apply"
}

// check refuses a new version of an object that changes a field which the file declares.
func (f fileDeclaration) check(r *request, live map[string]any, o object.Object, by fields.Writer) error {
	if len(f.entries) == 0 {
		return nil
	}
	owned := copied(live)
	owned["metadata"].(map[string]any)["managedFields"] = f.entries
	taken := fields.Taken(owned, untyped(o, r.kind), by, fields.FileManager)
	if len(taken) == 0 {
		return nil
	}
	at := place(f.path, f.line)
	var names []string
	details := detailsOf(r.kind, r.name)
	for _, c := range taken {
		names = append(names, c.Field)
		details.Causes = append(details.Causes, wire.FailureCause{Reason: fieldManagerConflict, Message: c.Message() + ": the file " + at, Field: c.Field})
	}
	e := conflict(r.kind, r.name, fmt.Sprintf("it belongs to the file %s, which declares %s: change it there", at, strings.Join(names, ", ")))
	e.Details = details
	return e
}

// place formats a path and a line: "web.yaml:12".
func place(path string, line int) string {
	if line == 0 {
		return path
	}
	return fmt.Sprintf("%s:%d", path, line)
}

// mayWrite returns an error if an object was created by a controller, so that clients may not change it. Namespaces and Nodes are exceptions.
func mayWrite(r *request, owner store.Owner, live object.Object) error {
	if owner.Controller == "" || owner.Controller == store.NamespacesController && r.kind.Name == object.KindNamespace ||
		store.IsNodeController(owner.Controller) && r.kind.Name == object.KindNode {
		return nil
	}
	return store.OwnedByController(live, owner)
}
