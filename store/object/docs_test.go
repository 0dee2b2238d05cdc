package object

import (
	"maps"
	"slices"
)

// documented is every name that Doc knows, sorted.
func documented() []string { return slices.Sorted(maps.Keys(docs())) }
