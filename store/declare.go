package store

import (
	"cmp"
	"fmt"
	"slices"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// readFiles compares the files with those of the previous call, by pointer, and notes their
// declarations. It returns the objects whose declarations have changed.
func (t *transaction) readFiles(files manifest.Files) []object.Ref {
	t.files = files
	documents := 0
	if !t.s.declared.synced {
		all := 0
		for _, file := range files {
			documents += len(file.Documents)
			names, _ := file.Names()
			all += len(file.Documents) + len(names)
		}
		t.declarations = make(map[object.Ref][]declaration, all)
	}
	touched := make(map[object.Ref]struct{}, documents)
	files.Changes(t.s.declared.files, func(was, is *manifest.File) {
		if is == nil {
			t.readFile(was.Path, was, nil, touched)
		} else {
			t.readFile(is.Path, was, is, touched)
		}
	})
	if !t.s.declared.synced || t.sourced != nil {
		// Files that were removed while the program did not run.
		for path := range t.s.declared.undeclared {
			if t.readsAnew(path) && files.Get(path) == nil {
				t.readFile(path, nil, nil, touched)
			}
		}
	}
	refs := make([]object.Ref, 0, len(touched))
	for ref := range touched {
		refs = append(refs, ref)
	}
	return refs
}

// readFile adds the objects to touched for which one file says something else than before.
func (t *transaction) readFile(path string, old, file *manifest.File, touched map[object.Ref]struct{}) {
	if old == nil && !t.s.declared.synced && t.settledBefore(file) {
		t.trust(file, touched)
		return
	}
	if old != nil && file != nil && isSealed(file) && old.Hash == file.Hash {
		t.letDocumentsGo(file)
		return
	}
	if t.sameNames(path, old, file) {
		for i := range file.Documents {
			if o := file.Documents[i].Object; o != old.Documents[i].Object {
				ref := refInFile(object.RefOf(o))
				t.setDeclaration(ref, path, &declaration{path: path, document: i, object: o})
				touched[ref] = struct{}{}
			}
		}
		return
	}
	before, _ := readDeclarations(old)
	now, duplicates := readDeclarations(file)
	t.duplicates[path] = duplicates
	for _, c := range now.all {
		ref := c.ref
		b, had := before.of(ref)
		if had && b == c.declaration {
			continue
		}
		t.setDeclaration(ref, path, &c.declaration)
		if !had || b.object != c.object || b.sealed != c.sealed {
			touched[ref] = struct{}{}
		}
	}
	for _, b := range before.all {
		if _, still := now.of(b.ref); !still {
			t.setDeclaration(b.ref, path, nil)
			touched[b.ref] = struct{}{}
		}
	}
	for ref := range t.s.declared.undeclared[path] {
		touched[ref] = struct{}{}
	}
}

// letDocumentsGo has the declarations of a file that was sealed, and says what it said before, come without its documents.
func (t *transaction) letDocumentsGo(file *manifest.File) {
	declarations, _ := readDeclarations(file)
	for _, d := range declarations.all {
		t.setDeclaration(d.ref, file.Path, &d.declaration)
	}
}

// sameNames reports whether nothing has come or gone in a file that has no problems, as in most
// changes: then what is in it need not be looked at as a whole.
func (t *transaction) sameNames(path string, old, file *manifest.File) bool {
	if old == nil || file == nil || isSealed(old) || isSealed(file) || len(old.Documents) != len(file.Documents) || len(old.Problems)+len(file.Problems) > 0 ||
		old.Err != nil || file.Err != nil || len(t.s.declared.duplicates[path])+len(t.s.declared.undeclared[path]) > 0 {
		return false
	}
	for i := range file.Documents {
		was, is := old.Documents[i].Object, file.Documents[i].Object
		if was != is && object.RefOf(was) != object.RefOf(is) {
			return false
		}
	}
	return true
}

// setDeclaration puts a path's declaration in the place of its old one; nil removes it.
func (t *transaction) setDeclaration(ref object.Ref, path string, c *declaration) {
	var declarations []declaration
	for _, other := range t.declarationsOf(ref) {
		if other.path != path {
			declarations = append(declarations, other)
		}
	}
	if c != nil {
		declarations = append(declarations, *c)
		slices.SortFunc(declarations, func(a, b declaration) int { return cmp.Compare(a.path, b.path) })
	}
	t.declarations[ref] = declarations
}

// declarationsOf returns the declarations of an object as of this transaction, by path.
func (t *transaction) declarationsOf(ref object.Ref) []declaration {
	if declarations, changed := t.declarations[ref]; changed {
		return declarations
	}
	return t.s.declared.byObject[ref]
}

// verdict decides about an object.
type verdict int

const (
	keep   verdict = iota // it stays as it is, or stays out
	use                   // it becomes the declared object
	remove                // no file or client declares it any more
)

// decide finds the owner of an object: the present one as long as it declares the object, then the
// file with the lowest path. An object of a controller can be made again under another name, and so
// it gives way to any file.
func (t *transaction) decide(old *record, declarations []declaration) (declaration, verdict) {
	if old != nil && (old.owner == (Owner{}) || t.s.isReadElsewhere(old.owner) && !t.readsAnew(old.owner.File)) {
		return declaration{}, keep
	}
	if old != nil {
		for _, c := range declarations {
			if c.path == old.owner.File && c.wanted() == nil {
				return c, keep
			}
			if c.path == old.owner.File {
				return c, use
			}
		}
		if isUnreadable(t.files.Get(old.owner.File)) {
			return declaration{}, keep
		}
	}
	for _, c := range declarations {
		if c.wanted() != nil {
			return c, use
		}
	}
	if old == nil || len(declarations) > 0 || old.owner.Controller != "" {
		return declaration{}, keep
	}
	return declaration{}, remove
}

// reportConflicts notes each file other than the holder's that declares an object too.
func (c *change) reportConflicts(declarations []declaration, holder Owner) {
	mentioned := slices.ContainsFunc(declarations, func(c declaration) bool { return c.path == holder.File })
	for _, loser := range declarations {
		if loser.path == holder.File || loser.wanted() == nil {
			continue
		}
		c.note(loser.path, "", ReasonConflict, fmt.Sprintf(
			"it comes from %s, which keeps it; this document is ignored: remove one of the two", holder), false)
		if mentioned {
			c.note(holder.File, "", ReasonConflict, fmt.Sprintf(
				"it is in %s too, where it is ignored: remove one of the two", loser.path), true)
		}
	}
}

// isSettled reports whether an object is the one that a file declares, as far as can be told without
// the file.
func (s *Store) isSettled(ref object.Ref, path string) bool {
	r := s.table.records[ref]
	if r == nil || r.owner != (Owner{File: path}) || r.withheld || len(s.outcomes.notes[ref]) > 0 {
		return false
	}
	if s.outcomes.waits(ref) {
		return false
	}
	if _, held := s.declared.held[ref]; held {
		return false
	}
	meta := r.object.GetMeta()
	if len(meta.ManagedFields) > 0 || len(meta.Finalizers) > 0 || meta.DeletionTimestamp != nil {
		return false // clients have added to it
	}
	switch o := r.object.(type) {
	case *object.EndpointSlice:
		return true
	case *object.Service:
		return o.Spec.Type == object.TypeClusterIP && len(o.Spec.ExternalIPs) == 0 && len(o.Status.LoadBalancer.Ingress)+len(o.Status.Conditions) == 0
	}
	return false
}

// settledBefore reports whether a file is sealed and what its seal says is so.
func (t *transaction) settledBefore(file *manifest.File) bool {
	if file == nil {
		return false
	}
	names, sealed := file.Names()
	return sealed && !slices.ContainsFunc(names, func(name object.Ref) bool { return !t.s.isSettled(refInFile(name), file.Path) })
}

// trust notes the declarations of a sealed file. Objects that were the file's and are not in it are touched.
func (t *transaction) trust(file *manifest.File, touched map[object.Ref]struct{}) {
	declarations, _ := readDeclarations(file)
	for _, c := range declarations.all {
		t.setDeclaration(c.ref, file.Path, &c.declaration) // a file that declares it too touches it
		t.trusted = append(t.trusted, c.ref)
	}
	for ref := range t.s.declared.undeclared[file.Path] {
		if _, declared := declarations.of(ref); !declared {
			touched[ref] = struct{}{}
		}
	}
}
