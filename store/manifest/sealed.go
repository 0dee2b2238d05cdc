package manifest

import (
	"slices"
	"sync"

	"svcctl.io/svcctl/store/object"
)

// A seal has the names in a File that was not decoded yet, and the way to decode it.
type seal struct {
	names  []object.Ref
	opened func() *File
}

// Sealed returns a File without problems that is decoded at the first request for its documents: of
// its objects only the names are known, one for each document. open returns the decoded file; nil
// when it cannot be read.
func Sealed(path string, hash Hash, names []object.Ref, open func() *File) *File {
	return &File{Path: path, Hash: hash, seal: &seal{names, sync.OnceValue(func() *File {
		if f := open(); f != nil && f.Hash == hash {
			return f
		}
		return &File{Path: path}
	})}}
}

// Names returns the names of the objects in a sealed File, in the order of the text; not ok for a
// decoded one.
func (f *File) Names() (names []object.Ref, ok bool) {
	if f.seal == nil {
		return nil, false
	}
	return f.seal.names, true
}

// Opened is the decoded File. Of a sealed one that cannot be read it has no documents.
func (f *File) Opened() *File {
	if f.seal == nil {
		return f
	}
	return f.seal.opened()
}

// Document is one of the documents; nil when there is none, or the file cannot be read.
func (f *File) Document(i int) *Document {
	if docs := f.Opened().Documents; i >= 0 && i < len(docs) {
		return &docs[i]
	}
	return nil
}

// Declares reports whether a document may be of an object of this name; no namespace means any.
func (f *File) Declares(ref object.Ref) bool {
	names, sealed := f.Names()
	return !sealed || slices.ContainsFunc(names, func(name object.Ref) bool {
		return name.Kind == ref.Kind && name.Name == ref.Name && (name.Namespace == "" || name.Namespace == ref.Namespace)
	})
}
