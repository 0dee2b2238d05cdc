package rest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	fields "svcctl.io/svcctl/store/managedfields"
	"svcctl.io/svcctl/store/object"
)

// fieldManagerConflict is the reason of the cause that names a field and its owner
// (metav1.CauseTypeFieldManagerConflict).
const fieldManagerConflict = "FieldManagerConflict"

// A fileDeclaration has the fields that a file declares of an object that belongs to it. The zero value
// stands for an object that belongs to none.
type fileDeclaration struct {
	path string
	line int
	// entries are the managedFields that the object would have if the file alone had
	// written it, and typed the same as they are stored.
	entries []any
	typed   []object.ManagedFieldsEntry
}

// fileOf returns the claim of the file that declares an object.
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

// createdAt returns the creation time of an object, or otherwise if it has none.
func createdAt(o object.Object, otherwise time.Time) time.Time {
	if at := o.GetMeta().CreationTimestamp; at != nil {
		return *at
	}
	return otherwise
}

// managed returns an object as clients see it: with the managedFields of the file, if only a file
// has written it.
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

// addEntries adds the managedFields entries of the file to an object without them; it reports
// whether it has.
func (f fileDeclaration) addEntries(content map[string]any) bool {
	metadata := metadataIn(content)
	entries, _ := metadata["managedFields"].([]any)
	if len(f.entries) == 0 || slices.ContainsFunc(entries, isGitops) {
		return false
	}
	metadata["managedFields"] = append(slices.Clone(f.entries), entries...)
	return true
}

// keep restores the file's managedFields entry, which a client may not change: by it the object is
// merged with the next version of the file.
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

// check refuses a new version of an object that differs in what the file declares.
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

// place is a line of a file.
func place(path string, line int) string {
	if line == 0 {
		return path
	}
	return fmt.Sprintf("%s:%d", path, line)
}

// mayWrite refuses changes of what a controller makes.
func mayWrite(r *request, owner store.Owner, live object.Object) error {
	if owner.Controller == "" || owner.Controller == store.NamespacesController && r.kind.Name == object.KindNamespace ||
		store.IsNodeController(owner.Controller) && r.kind.Name == object.KindNode {
		return nil
	}
	return store.OwnedByController(live, owner)
}
