package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// declaration is an object that a file declares, with its place in the file.
type declaration struct {
	path string
	// document is the index of the document in the file, object its content. A document that could not be read as an object has no index (-1) and
	// no object: whatever the file owned under that name stays as it was.
	document int
	object   object.Object
	// sealed is the file if it is not decoded yet, otherwise nil; wanted decodes it to get the object.
	sealed *manifest.File
}

// wanted returns the declared object; nil if its document could not be decoded.
func (c declaration) wanted() object.Object {
	if c.sealed == nil {
		return c.object
	}
	if d := c.sealed.Document(c.document); d != nil {
		return d.Object
	}
	return nil
}

// refInFile returns the reference of an object in a document, with the namespace default
// if the document gives none.
func refInFile(ref object.Ref) object.Ref {
	if ref.Namespace == "" && namespaced(ref.Kind) {
		ref.Namespace = "default" // object.Default
	}
	return ref
}

// namespaced reports whether objects of a kind have a namespace.
func namespaced(kind string) bool {
	s := object.StrategyOfKind(kind)
	return s == nil || s.Namespaced
}

// declaredObject is a reference to an object, with its declaration.
type declaredObject struct {
	ref object.Ref
	declaration
}

// fileDeclarations has the declarations of one file, at most one for each object.
type fileDeclarations struct {
	all   []declaredObject
	index map[object.Ref]int // index of each object's declaration; nil up to fewDeclarations
}

// fewDeclarations is the maximum number of declarations that are searched linearly. Most files have fewer.
const fewDeclarations = 16

// of returns the declaration of an object in the file.
func (d *fileDeclarations) of(ref object.Ref) (c declaration, has bool) {
	var i int
	if d.index != nil {
		if i, has = d.index[ref]; !has {
			return c, false
		}
	} else if i = slices.IndexFunc(d.all, func(n declaredObject) bool { return n.ref == ref }); i < 0 {
		return c, false
	}
	return d.all[i].declaration, true
}

// add adds the declaration of an object, which has none in this file yet.
func (d *fileDeclarations) add(ref object.Ref, c declaration) {
	d.all = append(d.all, declaredObject{ref, c})
	switch {
	case d.index != nil:
		d.index[ref] = len(d.all) - 1
	case len(d.all) > fewDeclarations:
		d.index = make(map[object.Ref]int, cap(d.all))
		for i := range d.all {
			d.index[d.all[i].ref] = i
		}
	}
}

// readDeclarations returns the declarations of a file, and a problem for each document whose object is already declared by an earlier document of the
// file.
func readDeclarations(file *manifest.File) (declarations fileDeclarations, duplicates []manifest.Problem) {
	if file == nil {
		return declarations, nil
	}
	if names, sealed := file.Names(); sealed {
		declarations.all = make([]declaredObject, 0, len(names))
		for i, name := range names {
			declarations.add(refInFile(name), declaration{path: file.Path, document: i, sealed: file})
		}
		return declarations, nil // it has no problems
	}
	declarations.all = make([]declaredObject, 0, len(file.Documents))
	for i := range file.Documents {
		doc := &file.Documents[i]
		ref := refInFile(object.RefOf(doc.Object))
		if first, taken := declarations.of(ref); taken {
			duplicates = append(duplicates, file.Problem(doc, "", ReasonConflict, fmt.Sprintf(
				"the same object is in line %d of this file, which is used: remove one of them", file.Documents[first.document].Line)))
			continue
		}
		declarations.add(ref, declaration{path: file.Path, document: i, object: doc.Object})
	}
	for _, problem := range file.Problems {
		ref := refInFile(problem.Object)
		if _, taken := declarations.of(ref); !taken && !problem.Warning && isNamed(problem.Object) {
			declarations.add(ref, declaration{path: file.Path, document: -1})
		}
	}
	return declarations, duplicates
}

func isNamed(ref object.Ref) bool { return ref.Kind != "" && ref.Name != "" }

// isUnreadable reports whether a file has documents whose object names cannot be read. If so, objects that the file no longer seems to declare are
// kept.
func isUnreadable(file *manifest.File) bool {
	if file == nil {
		return false
	}
	return file.Err != nil || slices.ContainsFunc(file.Problems, func(p manifest.Problem) bool {
		return !p.Warning && !isNamed(p.Object)
	})
}

func isSealed(file *manifest.File) bool {
	_, sealed := file.Names()
	return sealed
}

// readFiles compares the files with those of the previous call, by pointer, and records their
// declarations in the transaction. It returns the objects whose declarations have changed.
func (t *transaction) readFiles(files manifest.Files) []object.Ref {
	t.files = files
	documents := 0
	if !t.s.declared.synced {
		all := 0
		for file := range files.All() {
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
	return slices.Collect(maps.Keys(touched))
}

// readFile records the declarations of one file and adds to touched the objects whose declaration differs from that in its previous
// version.
func (t *transaction) readFile(path string, old, file *manifest.File, touched map[object.Ref]struct{}) {
	if old == nil && !t.s.declared.synced && t.settledBefore(file) {
		t.trust(file, touched)
		return
	}
	if old != nil && isSealed(file) && old.Hash == file.Hash {
		declarations, _ := readDeclarations(file) // the same ones, without their documents
		for _, d := range declarations.all {
			t.setDeclaration(d.ref, file.Path, &d.declaration)
		}
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

// sameNames reports whether both versions of a file declare the same objects in the same order and have no problems, which is the usual case. Then
// objects with unchanged documents need not be examined.
func (t *transaction) sameNames(path string, old, file *manifest.File) bool {
	if old == nil || file == nil || isSealed(old) || isSealed(file) || len(old.Documents) != len(file.Documents) || len(old.Problems)+len(file.Problems) > 0 ||
		old.Err != nil || file.Err != nil || len(t.s.declared.duplicates[path])+len(t.s.declared.undeclared[path]) > 0 {
		return false
	}
	for i := range file.Documents {
		if was, is := old.Documents[i].Object, file.Documents[i].Object; was != is && object.RefOf(was) != object.RefOf(is) {
			return false
		}
	}
	return true
}

// setDeclaration replaces the declaration of an object in one file; nil removes it.
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

// declarationsOf returns the declarations of an object as of this transaction, sorted by path.
func (t *transaction) declarationsOf(ref object.Ref) []declaration {
	if declarations, changed := t.declarations[ref]; changed {
		return declarations
	}
	return t.s.declared.byObject[ref]
}

// verdict is the decision about an object that files declare, or used to declare.
type verdict int

const (
	keep   verdict = iota // the object is not changed: it stays as stored, or absent
	use                   // the object becomes the declared one
	remove                // the object is removed: no file or client declares it any more
)

// decide chooses the declaration that determines an object: the one of its present owner, or else the one in the file with the lowest path. An object
// that a controller created gives way to any file, since the controller can create it again under another name.
func (t *transaction) decide(old *record.Record, declarations []declaration) (declaration, verdict) {
	if old != nil && (old.Owner == (Owner{}) || t.s.isReadElsewhere(old.Owner) && !t.readsAnew(old.Owner.File)) {
		return declaration{}, keep
	}
	if old != nil {
		for _, c := range declarations {
			if c.path == old.Owner.File && c.wanted() == nil {
				return c, keep
			}
			if c.path == old.Owner.File {
				return c, use
			}
		}
		if isUnreadable(t.files.Get(old.Owner.File)) {
			return declaration{}, keep
		}
	}
	for _, c := range declarations {
		if c.wanted() != nil {
			return c, use
		}
	}
	if old == nil || len(declarations) > 0 || old.Owner.Controller != "" {
		return declaration{}, keep
	}
	return declaration{}, remove
}

// reportConflicts adds a note for each file that declares the object too and is not its owner.
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

// isSettled reports whether a stored object is unchanged since it was read from a file, so that the file
// need not be decoded: nothing in it was allocated, defaulted or added later.
func (s *Store) isSettled(ref object.Ref, path string) bool {
	r := s.table.get(ref)
	if r == nil || r.Owner != (Owner{File: path}) || r.Withheld || len(s.outcomes.notes[ref]) > 0 {
		return false
	}
	_, held := s.declared.held[ref]
	if meta := r.Object.GetMeta(); held || s.outcomes.waits(ref) || len(meta.ManagedFields) > 0 || len(meta.Finalizers) > 0 || meta.DeletionTimestamp != nil {
		return false // clients have added to it
	}
	switch o := r.Object.(type) {
	case *object.EndpointSlice:
		return true
	case *object.Service:
		return o.Spec.Type == object.TypeClusterIP && len(o.Spec.ExternalIPs) == 0 && len(o.Status.LoadBalancer.Ingress)+len(o.Status.Conditions) == 0
	}
	return false
}

// settledBefore reports whether a file is sealed (recorded as unchanged since an earlier process read it) and all objects that it declares
// are settled.
func (t *transaction) settledBefore(file *manifest.File) bool {
	names, sealed := file.Names()
	return sealed && !slices.ContainsFunc(names, func(name object.Ref) bool { return !t.s.isSettled(refInFile(name), file.Path) })
}

// trust records the declarations of a sealed file without decoding it. It adds to touched the objects that the file owned and does not
// declare any more.
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

// declarations holds the objects that files declare, and the files. It is changed only while Store.writer and Store.mu are held.
type declarations struct {
	files      manifest.Files
	byObject   map[object.Ref][]declaration // each list is sorted by path
	duplicates map[string][]manifest.Problem
	troubled   map[string]struct{} // paths of files with problems that concern no single object
	// undeclared holds, by path, the objects that belong to a file but have no document in it: the file has not been read yet or cannot be read, or
	// their removal is held back.
	undeclared map[string]map[object.Ref]struct{}
	held       map[object.Ref]Decision // objects whose removal is held back, see Removals
	synced     bool                    // SyncFiles has succeeded once
}

func newDeclarations() declarations {
	return declarations{
		byObject: map[object.Ref][]declaration{}, duplicates: map[string][]manifest.Problem{}, troubled: map[string]struct{}{},
		undeclared: map[string]map[object.Ref]struct{}{},
	}
}

// noteOwner updates undeclared for an object whose owner or declarations have changed.
func (d *declarations) noteOwner(ref object.Ref, before, now Owner) {
	index.Drop(d.undeclared, before.File, ref)
	if now.File == "" || slices.ContainsFunc(d.byObject[ref], func(c declaration) bool { return c.path == now.File }) {
		return
	}
	index.Put(d.undeclared, now.File, ref, struct{}{})
}

// update replaces the files and applies the declarations and duplicates that a transaction has changed.
func (d *declarations) update(files manifest.Files, declarations map[object.Ref][]declaration, duplicates map[string][]manifest.Problem) {
	d.files = files
	if len(d.byObject) == 0 {
		d.byObject, declarations = declarations, nil
	}
	for ref, list := range declarations {
		if len(list) == 0 {
			delete(d.byObject, ref)
		} else {
			d.byObject[ref] = list
		}
	}
	for path, list := range duplicates {
		delete(d.troubled, path)
		delete(d.duplicates, path)
		if len(list) > 0 {
			d.duplicates[path] = list
			d.troubled[path] = struct{}{}
		}
		if file := files.Get(path); file != nil && (file.Err != nil || len(file.Problems) > 0) {
			d.troubled[path] = struct{}{}
		}
	}
}

// document returns the document that a file has for an object, nil when there is none.
func (d *declarations) document(ref object.Ref, path string) *manifest.Document {
	for _, c := range d.byObject[ref] {
		if c.path == path && c.document >= 0 {
			if doc := d.files.Get(path).Document(c.document); doc != nil {
				return doc
			}
		}
	}
	return nil
}

// position returns the line and column of an object's field in a file; 0 when the field or the file is absent.
func (d *declarations) position(ref object.Ref, path, field string) (line, column int) {
	if doc := d.document(ref, path); doc != nil {
		return doc.Position(fieldInFile(doc.Object, field))
	}
	return 0, 0
}

// problems returns the problems of files, as opposed to those of objects, in no order.
func (d *declarations) problems() (problems []manifest.Problem) {
	for path := range d.troubled {
		if file := d.files.Get(path); file != nil {
			if file.Err != nil {
				problems = append(problems, *file.Err)
			}
			problems = append(problems, file.Problems...)
		}
		problems = append(problems, d.duplicates[path]...)
	}
	return problems
}

// outcomes holds the notes about objects, and the set of objects that wait for a value. It is changed only while Store.writer and Store.mu are held.
type outcomes struct {
	notes   map[object.Ref][]note
	waiting map[object.Ref]struct{} // objects that wait for a value that another object holds (change.waits)
}

// set replaces the notes of an object, and records whether it waits for a value.
func (o *outcomes) set(ref object.Ref, notes []note, waits bool) {
	if len(notes) > 0 {
		o.notes[ref] = notes
	} else {
		delete(o.notes, ref)
	}
	if waits {
		o.waiting[ref] = struct{}{}
	} else {
		delete(o.waiting, ref)
	}
}

// waits reports whether an object waits for a value, such as an address or port, that another object holds.
func (o *outcomes) waits(ref object.Ref) bool {
	_, waits := o.waiting[ref]
	return waits
}
