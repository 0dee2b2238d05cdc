package managedfields

import (
	"encoding/json"
	"maps"

	"svcctl.io/svcctl/store/schema"
)

const (
	// kubectl is the manager of `kubectl apply --server-side`, which takes over from
	// `kubectl apply` without conflicts: any other name opts out.
	kubectl = "kubectl"
	// lastApplied is the annotation in which `kubectl apply` keeps what it applied.
	lastApplied = "kubectl.kubernetes.io/last-applied-configuration"
	// maxAnnotations is the size of all annotations of an object, in bytes
	// (TotalAnnotationSizeLimitB of apimachinery).
	maxAnnotations = 256 << 10
)

func annotationsOf(o map[string]any) map[string]any {
	metadata, _ := o["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	return annotations
}

// unchangedSinceLastApplied returns a function that reports whether the field of a conflict
// still is as kubectl's client-side apply left it: then kubectl may take it over.
func unchangedSinceLastApplied(live map[string]any, by Writer) func(Conflict) bool {
	none := func(Conflict) bool { return false }
	text, _ := annotationsOf(live)[lastApplied].(string)
	last, _, err := schema.Decode([]byte(text), by.Type)
	if err != nil || last["apiVersion"] != by.APIVersion {
		return none
	}
	if checkLists(last, by.Type, nil) != nil {
		return none
	}
	change := compare(last, live, by.Type)
	same := difference(setOf(last, by.Type), union(union(change.added, change.changed), change.removed))
	return func(c Conflict) bool { return same.contains(c.path) }
}

// renewLastApplied is an object whose record of what kubectl applied, if it has one, says
// what was applied now, so that both ways to apply can take turns. A record that would be
// too large goes.
func renewLastApplied(merged, applied map[string]any) map[string]any {
	before := annotationsOf(merged)
	if text, _ := before[lastApplied].(string); text == "" {
		return merged
	}
	annotations := maps.Clone(before)
	annotations[lastApplied] = recordOf(applied)
	size := 0
	for key, value := range annotations {
		text, _ := value.(string)
		size += len(key) + len(text)
	}
	if size > maxAnnotations {
		delete(annotations, lastApplied)
	}
	return withAnnotations(merged, annotations)
}

// recordOf is an applied object as kubectl writes it down: JSON without the record itself,
// and a newline.
func recordOf(applied map[string]any) string {
	if annotations := maps.Clone(annotationsOf(applied)); annotations != nil {
		delete(annotations, lastApplied)
		applied = withAnnotations(applied, annotations)
	}
	b, err := json.Marshal(applied)
	if err != nil {
		panic("store/managedfields: " + err.Error()) // it was JSON before
	}
	return string(b) + "\n"
}

func withAnnotations(o, annotations map[string]any) map[string]any {
	o = maps.Clone(o)
	metadata, _ := o["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	metadata["annotations"] = annotations
	o["metadata"] = metadata
	return o
}
