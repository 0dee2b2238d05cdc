package manifest

import (
	"maps"
	"slices"
	"strings"
)

// Files are files in the order of their paths, each path once. To compare two of them, or to
// copy them, costs next to nothing for each file.
type Files []*File

// FilesOf puts files in their order.
func FilesOf(files map[string]*File) Files {
	return slices.SortedFunc(maps.Values(files), func(a, b *File) int { return strings.Compare(a.Path, b.Path) })
}

// Find returns the index of the file at a path, or the one at which it would be inserted, and
// whether it is there.
func (f Files) Find(path string) (i int, found bool) {
	return slices.BinarySearchFunc(f, path, func(file *File, path string) int { return strings.Compare(file.Path, path) })
}

// Get returns the file at a path; nil when there is none.
func (f Files) Get(path string) *File {
	if i, found := f.Find(path); found {
		return f[i]
	}
	return nil
}

// Changes calls each for every path at which there is another file than before, or none (nil)
// any more, or one that was not there (nil), in their order.
func (f Files) Changes(before Files, each func(was, is *File)) {
	for _, file := range f {
		for len(before) > 0 && before[0] != file && before[0].Path < file.Path {
			each(before[0], nil)
			before = before[1:]
		}
		switch {
		case len(before) > 0 && before[0] == file:
			before = before[1:]
		case len(before) > 0 && before[0].Path == file.Path:
			each(before[0], file)
			before = before[1:]
		default:
			each(nil, file)
		}
	}
	for _, file := range before {
		each(file, nil)
	}
}
