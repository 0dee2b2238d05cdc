package object

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

var metaPath = root("metadata")

const immutableText = "field is immutable"

// ByAge orders objects by their creation, and those of one time by "namespace/name", as the Gateway API does.
func ByAge(a, b *ObjectMeta) int {
	if order := Deref(a.CreationTimestamp).Compare(Deref(b.CreationTimestamp)); order != 0 {
		return order
	}
	return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
}

// validateName checks name and namespace. Since updates cannot change them, only new objects need the check.
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
		errs = append(errs, invalidFor(metaPath.child("namespace"), m.Namespace, DNSLabelProblems(m.Namespace))...)
	}
	return errs
}

// validateMeta checks the parts of the metadata that updates can change: labels, annotations and others.
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

// validateLabels checks a map of labels, or of a selector made of labels.
func validateLabels(p path, labels map[string]string) Errors {
	right := true
	for key, value := range labels {
		right = right && len(LabelKeyProblems(key))+len(LabelValueProblems(value)) == 0
	}
	if right { // nearly always
		return nil
	}
	var errs Errors
	for _, key := range sortedKeys(labels) {
		errs = append(errs, invalidFor(p, key, LabelKeyProblems(key))...)
		errs = append(errs, invalidFor(p, labels[key], LabelValueProblems(labels[key]))...)
	}
	return errs
}

// sortedKeys returns the keys of a map, sorted.
func sortedKeys(m map[string]string) []string {
	keys := slices.AppendSeq(make([]string, 0, len(m)), maps.Keys(m))
	slices.Sort(keys)
	return keys
}

func validateAnnotations(p path, annotations map[string]string) Errors {
	var errs Errors
	size, right := 0, true
	for key, value := range annotations {
		right = right && len(LabelKeyProblems(strings.ToLower(key))) == 0
		size += len(key) + len(value)
	}
	if !right {
		for _, key := range sortedKeys(annotations) {
			// Case does not matter in the key of an annotation.
			errs = append(errs, invalidFor(p, key, LabelKeyProblems(strings.ToLower(key)))...)
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
		errs = append(errs, invalidFor(p, finalizer, LabelKeyProblems(finalizer))...)
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

// validateMetaUpdate checks the changes of an update to the metadata. An empty uid is
// not a change, as documents in files have none.
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

// microTime is the layout of a MicroTime (metav1.RFC3339Micro).
const microTime = "2006-01-02T15:04:05.000000Z07:00"

// MicroTime is meta/v1 MicroTime: a time that is written with microseconds, in UTC.
// The zero value is written as null.
type MicroTime struct{ time.Time }

// MarshalJSON implements json.Marshaler.
func (t MicroTime) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return json.Marshal(t.UTC().Format(microTime))
}

// UnmarshalJSON implements json.Unmarshaler. It takes RFC 3339 with any number of
// decimals; digits beyond the microsecond are cut off.
func (t *MicroTime) UnmarshalJSON(b []byte) error {
	t.Time = time.Time{}
	if string(b) == "null" {
		return nil
	}
	if err := t.Time.UnmarshalJSON(b); err != nil {
		return err
	}
	t.Time = t.Truncate(time.Microsecond)
	return nil
}

// ManagedFieldsEntry is meta/v1 ManagedFieldsEntry: the fields of an object that one
// manager owns.
type ManagedFieldsEntry struct {
	Manager    string     `json:"manager,omitempty"`
	Operation  string     `json:"operation,omitempty"` // Apply or Update
	APIVersion string     `json:"apiVersion,omitempty"`
	Time       *time.Time `json:"time,omitempty"`
	FieldsType string     `json:"fieldsType,omitempty"` // always FieldsV1
	// FieldsV1 is a tree of field names, as FieldsV1 of meta/v1 writes them.
	FieldsV1    json.RawMessage `json:"fieldsV1,omitempty"`
	Subresource string          `json:"subresource,omitempty"`
}

// DeleteOptions is meta/v1 DeleteOptions, the body of a DELETE request. It is never stored.
type DeleteOptions struct {
	TypeMeta
	GracePeriodSeconds *int64         `json:"gracePeriodSeconds,omitempty"`
	Preconditions      *Preconditions `json:"preconditions,omitempty"`
	OrphanDependents   *bool          `json:"orphanDependents,omitempty"`
	PropagationPolicy  *string        `json:"propagationPolicy,omitempty"`
	DryRun             []string       `json:"dryRun,omitempty"`
}

// Preconditions is meta/v1 Preconditions: a deletion fails unless the object has this uid and resourceVersion.
type Preconditions struct {
	UID             *string `json:"uid,omitempty"`
	ResourceVersion *string `json:"resourceVersion,omitempty"`
}

// LabelSelector is meta/v1 LabelSelector.
type LabelSelector struct {
	MatchLabels      map[string]string          `json:"matchLabels,omitempty"`
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelSelectorRequirement is meta/v1 LabelSelectorRequirement.
type LabelSelectorRequirement struct {
	Key      string   `json:"key" schema:"required"`
	Operator string   `json:"operator" schema:"required"`
	Values   []string `json:"values,omitempty"`
}

// The operators of a LabelSelectorRequirement.
const (
	selectIn           = "In"
	selectNotIn        = "NotIn"
	selectExists       = "Exists"
	selectDoesNotExist = "DoesNotExist"
)

// MatchesAny reports whether labels match at least one of several selectors, or there are no selectors.
func MatchesAny(selectors []LabelSelector, labels map[string]string) bool {
	return len(selectors) == 0 || slices.ContainsFunc(selectors, func(s LabelSelector) bool { return s.Matches(labels) })
}

// HasLabels reports whether labels contains all keys of a selector with their values.
func HasLabels(labels, selector map[string]string) bool {
	for name, value := range selector {
		if has, is := labels[name]; !is || has != value {
			return false
		}
	}
	return true
}

// Matches reports whether labels meet all requirements of the selector. A selector without requirements matches everything.
func (s *LabelSelector) Matches(labels map[string]string) bool {
	if !HasLabels(labels, s.MatchLabels) {
		return false
	}
	for _, r := range s.MatchExpressions {
		value, is := labels[r.Key]
		listed := is && slices.Contains(r.Values, value)
		if r.Operator == selectIn && !listed || r.Operator == selectNotIn && listed ||
			r.Operator == selectExists && !is || r.Operator == selectDoesNotExist && is {
			return false
		}
	}
	return true
}

// validateSelectors checks LabelSelectors. Messages include operator and key, because all of the lists are reported at the same path.
func validateSelectors(at path, lists ...[]LabelSelector) Errors {
	var errs Errors
	for _, s := range slices.Concat(lists...) {
		for _, r := range s.MatchExpressions {
			switch in := at.child("matchExpressions"); r.Operator {
			case selectIn, selectNotIn:
				if len(r.Values) == 0 {
					errs = append(errs, required(in.child("values"), fmt.Sprintf("operator %s of key %s needs values", r.Operator, r.Key))...)
				}
			case selectExists, selectDoesNotExist:
				if len(r.Values) > 0 {
					errs = append(errs, forbidden(in.child("values"), fmt.Sprintf("operator %s of key %s takes no values", r.Operator, r.Key))...)
				}
			default:
				errs = append(errs, notSupported(in.child("operator"), r.Operator, []string{selectIn, selectNotIn, selectExists, selectDoesNotExist})...)
			}
		}
	}
	return errs
}
