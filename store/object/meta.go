package object

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

var metaPath = root("metadata")

const immutableText = "field is immutable"

// validateName checks name and namespace, which nothing but a new object can change.
func validateName(m *ObjectMeta, namespaced bool, nameProblems func(string) []string) Errors {
	var errs Errors
	switch {
	case m.Name != "":
		errs = append(errs, invalidFor(metaPath.child("name"), m.Name, nameProblems(m.Name))...)
	case m.GenerateName != "":
		errs = append(errs, required(metaPath.child("name"), "generateName makes a name only for an object created through the API: give this one a name")...)
	default:
		errs = append(errs, required(metaPath.child("name"), "name or generateName is required")...)
	}
	switch {
	case !namespaced:
		if m.Namespace != "" {
			errs = append(errs, forbidden(metaPath.child("namespace"), "not allowed on this type")...)
		}
	case m.Namespace == "":
		errs = append(errs, required(metaPath.child("namespace"), "")...)
	default:
		errs = append(errs, invalidFor(metaPath.child("namespace"), m.Namespace, dns1123LabelProblems(m.Namespace))...)
	}
	return errs
}

// validateMeta checks what may change about an object's metadata.
func validateMeta(m *ObjectMeta) Errors {
	var errs Errors
	if m.Generation < 0 {
		errs = append(errs, invalid(metaPath.child("generation"), m.Generation, "must be greater than or equal to 0")...)
	}
	errs = append(errs, validateLabels(metaPath.child("labels"), m.Labels)...)
	errs = append(errs, validateAnnotations(metaPath.child("annotations"), m.Annotations)...)
	errs = append(errs, validateOwners(metaPath.child("ownerReferences"), m.OwnerReferences)...)
	return append(errs, validateFinalizers(metaPath.child("finalizers"), m.Finalizers)...)
}

// validateLabels is for labels and for all that is made of labels, as selectors.
func validateLabels(p path, labels map[string]string) Errors {
	right := true
	for key, value := range labels {
		right = right && len(labelKeyProblems(key))+len(labelValueProblems(value)) == 0
	}
	if right { // nearly always
		return nil
	}
	var errs Errors
	for _, key := range sortedKeys(labels) {
		errs = append(errs, invalidFor(p, key, labelKeyProblems(key))...)
		errs = append(errs, invalidFor(p, labels[key], labelValueProblems(labels[key]))...)
	}
	return errs
}

// sortedKeys are the keys of a mapping in order.
func sortedKeys(m map[string]string) []string {
	keys := slices.AppendSeq(make([]string, 0, len(m)), maps.Keys(m))
	slices.Sort(keys)
	return keys
}

func validateAnnotations(p path, annotations map[string]string) Errors {
	var errs Errors
	size, right := 0, true
	for key, value := range annotations {
		right = right && len(labelKeyProblems(strings.ToLower(key))) == 0
		size += len(key) + len(value)
	}
	if !right {
		for _, key := range sortedKeys(annotations) {
			// Case does not matter in the key of an annotation.
			errs = append(errs, invalidFor(p, key, labelKeyProblems(strings.ToLower(key)))...)
		}
	}
	if size > maxAnnotationBytes {
		errs = append(errs, tooLong(p, maxAnnotationBytes)...)
	}
	return errs
}

func validateOwners(p path, owners []OwnerReference) Errors {
	var errs Errors
	var controllers []string
	for i, owner := range owners {
		for _, field := range []struct{ name, value string }{
			{"apiVersion", owner.APIVersion}, {"kind", owner.Kind}, {"name", owner.Name}, {"uid", owner.UID},
		} {
			if field.value == "" {
				errs = append(errs, required(p.index(i).child(field.name), "must not be empty")...)
			}
		}
		if strings.Count(owner.APIVersion, "/") > 1 || strings.HasSuffix(owner.APIVersion, "/") {
			errs = append(errs, invalid(p.index(i).child("apiVersion"), owner.APIVersion, "must be <group>/<version> or <version>")...)
		}
		if Deref(owner.Controller) {
			controllers = append(controllers, owner.Kind+"/"+owner.Name)
		}
	}
	if len(controllers) > 1 {
		errs = append(errs, invalid(p, owners, fmt.Sprintf(
			"Only one reference can have Controller set to true. Found \"true\" in references for %v and %v", controllers[0], controllers[1]))...)
	}
	return errs
}

// standardFinalizers lists the finalizers without a domain.
var standardFinalizers = []string{"kubernetes", "orphan", "foregroundDeletion"}

func validateFinalizers(p path, finalizers []string) Errors {
	var errs Errors
	for _, finalizer := range finalizers {
		errs = append(errs, invalidFor(p, finalizer, labelKeyProblems(finalizer))...)
	}
	for i, finalizer := range finalizers {
		if !strings.Contains(finalizer, "/") && !slices.Contains(standardFinalizers, finalizer) {
			errs = append(errs, invalid(p.index(i), finalizer, "name is neither a standard finalizer name nor is it fully qualified")...)
		}
	}
	if slices.Contains(finalizers, "orphan") && slices.Contains(finalizers, "foregroundDeletion") {
		errs = append(errs, invalid(p, finalizers, "finalizer orphan and foregroundDeletion cannot be both set")...)
	}
	return errs
}

// validateMetaUpdate checks what an update does to the metadata. A uid that is not
// given is not a change: a document in a directory has none.
func validateMetaUpdate(m, old *ObjectMeta) Errors {
	var errs Errors
	for _, field := range []struct{ name, value, old string }{
		{"name", m.Name, old.Name}, {"namespace", m.Namespace, old.Namespace}, {"uid", m.UID, old.UID},
	} {
		if field.value != field.old && !(field.name == "uid" && field.value == "") {
			errs = append(errs, invalid(metaPath.child(field.name), field.value, immutableText)...)
		}
	}
	if old.DeletionTimestamp == nil {
		return errs
	}
	var added []string
	had := setOf(old.Finalizers)
	for _, finalizer := range m.Finalizers {
		if !had[finalizer] {
			added = append(added, finalizer)
		}
	}
	if len(added) > 0 {
		slices.Sort(added)
		errs = append(errs, forbidden(metaPath.child("finalizers"), fmt.Sprintf(
			"no new finalizers can be added if the object is being deleted, found new finalizers %#v", slices.Compact(added)))...)
	}
	return errs
}
