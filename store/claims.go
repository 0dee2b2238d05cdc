package store

import (
	"cmp"
	"fmt"
	"slices"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// claim says that a file has a document for an object.
type claim struct {
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
func (c claim) wanted() object.Object {
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

// claimsOf is what a file claims, and the documents in it that come too late.
func claimsOf(file *manifest.File) (map[object.Ref]claim, []manifest.Problem) {
	if file == nil {
		return nil, nil
	}
	if names, sealed := file.Names(); sealed {
		claims := make(map[object.Ref]claim, len(names))
		for i, name := range names {
			claims[refInFile(name)] = claim{path: file.Path, document: i, sealed: file}
		}
		return claims, nil // it has no problems
	}
	claims := make(map[object.Ref]claim, len(file.Documents))
	var duplicates []manifest.Problem
	for i := range file.Documents {
		doc := &file.Documents[i]
		ref := refInFile(object.RefOf(doc.Object))
		if first, taken := claims[ref]; taken {
			duplicates = append(duplicates, file.Problem(doc, "", ReasonConflict, fmt.Sprintf(
				"the same object is in line %d of this file, which is used: remove one of them", file.Documents[first.document].Line)))
			continue
		}
		claims[ref] = claim{path: file.Path, document: i, object: doc.Object}
	}
	for _, problem := range file.Problems {
		ref := refInFile(problem.Object)
		if _, taken := claims[ref]; !taken && !problem.Warning && isNamed(problem.Object) {
			claims[ref] = claim{path: file.Path, document: -1}
		}
	}
	return claims, duplicates
}

func isNamed(ref object.Ref) bool { return ref.Kind != "" && ref.Name != "" }

// isUnreadable reports whether a file may hold objects that nobody can name: then what it
// owned and does not mention any more stays.
func isUnreadable(file *manifest.File) bool {
	if file == nil {
		return false
	}
	return file.Err != nil || slices.ContainsFunc(file.Problems, func(p manifest.Problem) bool {
		return !p.Warning && !isNamed(p.Object)
	})
}

// readFiles compares the files with those of the previous call, by pointer, and notes
// what they claim now. It gives the objects whose claims have changed.
func (t *transaction) readFiles(files manifest.Files) []object.Ref {
	t.files = files
	documents := 0
	if !t.s.declared.synced {
		for _, file := range files {
			documents += len(file.Documents)
		}
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
		// Files that went while nobody was looking.
		for path := range t.s.declared.unclaimed {
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
				t.setClaim(ref, path, &claim{path: path, document: i, object: o})
				touched[ref] = struct{}{}
			}
		}
		return
	}
	before, _ := claimsOf(old)
	now, duplicates := claimsOf(file)
	t.duplicates[path] = duplicates
	for ref, c := range now {
		b, had := before[ref]
		if had && b == c {
			continue
		}
		t.setClaim(ref, path, &c)
		if !had || b.object != c.object || b.sealed != c.sealed {
			touched[ref] = struct{}{}
		}
	}
	for ref := range before {
		if _, still := now[ref]; !still {
			t.setClaim(ref, path, nil)
			touched[ref] = struct{}{}
		}
	}
	for ref := range t.s.declared.unclaimed[path] {
		touched[ref] = struct{}{}
	}
}

// letDocumentsGo has the claims of a file that was sealed, and says what it said before, come without its documents.
func (t *transaction) letDocumentsGo(file *manifest.File) {
	claims, _ := claimsOf(file)
	for ref, c := range claims {
		t.setClaim(ref, file.Path, &c)
	}
}

// sameNames reports whether nothing has come or gone in a file that has no problems, as in most
// changes: then what is in it need not be looked at as a whole.
func (t *transaction) sameNames(path string, old, file *manifest.File) bool {
	if old == nil || file == nil || isSealed(old) || isSealed(file) || len(old.Documents) != len(file.Documents) || len(old.Problems)+len(file.Problems) > 0 ||
		old.Err != nil || file.Err != nil || len(t.s.declared.duplicates[path])+len(t.s.declared.unclaimed[path]) > 0 {
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

func isSealed(file *manifest.File) bool {
	_, sealed := file.Names()
	return sealed
}

// setClaim puts a path's claim in the place of its old one; nil removes it.
func (t *transaction) setClaim(ref object.Ref, path string, c *claim) {
	var claims []claim
	for _, other := range t.claimsOn(ref) {
		if other.path != path {
			claims = append(claims, other)
		}
	}
	if c != nil {
		claims = append(claims, *c)
		slices.SortFunc(claims, func(a, b claim) int { return cmp.Compare(a.path, b.path) })
	}
	t.claims[ref] = claims
}

// claimsOn are the claims on an object as of this transaction, by path.
func (t *transaction) claimsOn(ref object.Ref) []claim {
	if claims, changed := t.claims[ref]; changed {
		return claims
	}
	return t.s.declared.claims[ref]
}

// verdict is what becomes of an object.
type verdict int

const (
	keep   verdict = iota // it stays as it is, or stays out
	use                   // it becomes what a claim says
	remove                // nobody wants it any more
)

// decide finds who an object belongs to: who has it keeps it as long as they want it;
// then the file with the lowest path. What a controller has made can be made again under
// another name, and so it gives way to any file.
func (t *transaction) decide(old *record, claims []claim) (claim, verdict) {
	if old != nil && (old.owner == (Owner{}) || t.s.isReadElsewhere(old.owner) && !t.readsAnew(old.owner.File)) {
		return claim{}, keep
	}
	if old != nil {
		for _, c := range claims {
			if c.path == old.owner.File && c.wanted() == nil {
				return c, keep
			}
			if c.path == old.owner.File {
				return c, use
			}
		}
		if isUnreadable(t.files.Get(old.owner.File)) {
			return claim{}, keep
		}
	}
	for _, c := range claims {
		if c.wanted() != nil {
			return c, use
		}
	}
	if old == nil || len(claims) > 0 || old.owner.Controller != "" {
		return claim{}, keep
	}
	return claim{}, remove
}

// reportConflicts notes that others than the holder of an object claim it too, for each of them.
func (c *change) reportConflicts(claims []claim, holder Owner) {
	mentioned := slices.ContainsFunc(claims, func(c claim) bool { return c.path == holder.File })
	for _, loser := range claims {
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
