package change

import (
	"slices"
	"testing"
)

func TestPrunable(t *testing.T) {
	var names []string
	for _, k := range prunable() {
		names = append(names, k.Name)
	}
	if names[len(names)-1] != "Namespace" || slices.Contains(names, "Node") || slices.Contains(names, "Event") || !slices.Contains(names, "Service") {
		t.Errorf("%v", names)
	}
}
