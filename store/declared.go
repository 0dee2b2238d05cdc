package store

import (
	"slices"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// declarations has the documents of files, by object. Only the writer changes them, under Store.mu.
type declarations struct {
	files      manifest.Files
	byObject   map[object.Ref][]declaration // by path
	duplicates map[string][]manifest.Problem
	troubled   map[string]struct{} // paths with problems of their own
	// undeclared are the objects of files that have no document for them: because the file has not
	// been read yet, or cannot be read, or because their removal is held.
	undeclared map[string]map[object.Ref]struct{}
	held       map[object.Ref]Decision // objects that are not removed, see Removals
	synced     bool                    // SyncFiles has succeeded once
}

func newDeclarations() declarations {
	return declarations{
		byObject: map[object.Ref][]declaration{}, duplicates: map[string][]manifest.Problem{}, troubled: map[string]struct{}{},
		undeclared: map[string]map[object.Ref]struct{}{},
	}
}

// isDeclaredBy reports whether a file has a document for an object.
func (d *declarations) isDeclaredBy(ref object.Ref, path string) bool {
	return slices.ContainsFunc(d.byObject[ref], func(c declaration) bool { return c.path == path })
}

// noteOwner keeps undeclared, when an object has another owner than before, or other declarations.
func (d *declarations) noteOwner(ref object.Ref, before, now Owner) {
	if all := d.undeclared[before.File]; all != nil {
		if delete(all, ref); len(all) == 0 {
			delete(d.undeclared, before.File)
		}
	}
	if now.File == "" || d.isDeclaredBy(ref, now.File) {
		return
	}
	all := d.undeclared[now.File]
	if all == nil {
		all = map[object.Ref]struct{}{}
		d.undeclared[now.File] = all
	}
	all[ref] = struct{}{}
}

// update makes the files of a transaction those that are declared.
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

// position returns the line and column of an object's field in a file; 0 when it is not there.
func (d *declarations) position(ref object.Ref, path, field string) (line, column int) {
	if doc := d.document(ref, path); doc != nil {
		return doc.Position(fieldInFile(doc.Object, field))
	}
	return 0, 0
}

// problems returns the problems of the files themselves, in no order.
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

// outcomes has the notes about objects, and which of them wait. Only the writer changes them, under Store.mu.
type outcomes struct {
	notes   map[object.Ref][]note
	waiting map[object.Ref]struct{} // objects whose change.waits is set
}

func newOutcomes() outcomes {
	return outcomes{notes: map[object.Ref][]note{}, waiting: map[object.Ref]struct{}{}}
}

// set replaces what is said about an object.
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

// waits reports whether an object waits for a value that others hold.
func (o *outcomes) waits(ref object.Ref) bool {
	_, waits := o.waiting[ref]
	return waits
}
