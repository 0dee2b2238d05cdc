package store

import (
	"fmt"
	"slices"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// declaration is a document of a file for an object.
type declaration struct {
	path string
	// document is its index in the file, object what it holds. A document that could
	// not be read as an object has no index (-1) and no object: whatever the file
	// owned under that name stays as it was.
	document int
	object   object.Object
	// sealed is the file while it is not decoded: then object is in it.
	sealed *manifest.File
}

// wanted returns the object of the document; nil when that cannot be read.
func (c declaration) wanted() object.Object {
	if c.sealed == nil {
		return c.object
	}
	if d := c.sealed.Document(c.document); d != nil {
		return d.Object
	}
	return nil
}

// refInFile is the name of an object as a document gives it, with the namespace that
// no namespace means.
func refInFile(ref object.Ref) object.Ref {
	if ref.Namespace == "" && namespaced(ref.Kind) {
		ref.Namespace = "default" // object.Default
	}
	return ref
}

// namespaced reports whether objects of a kind are in a namespace.
func namespaced(kind string) bool {
	s := object.StrategyOfKind(kind)
	return s == nil || s.Namespaced
}

// declaredObject is the declaration of an object.
type declaredObject struct {
	ref object.Ref
	declaration
}

// fileDeclarations are those of one file, each object once.
type fileDeclarations struct {
	all   []declaredObject
	index map[object.Ref]int // nil while there are few
}

// fewDeclarations is the number up to which declarations are searched linearly: most files have fewer.
const fewDeclarations = 16

// of is the declaration of an object, if there is one.
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

// add adds that of an object that has none.
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

// readDeclarations returns the declarations of a file by object, and the problems of documents that repeat one.
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

// isUnreadable reports whether a file may declare objects whose names cannot be read: then objects
// that it owned and does not mention any more stay.
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
