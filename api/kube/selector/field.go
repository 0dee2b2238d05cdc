package selector

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// Fields selects objects of one kind by their fields. The zero value selects everything.
type Fields struct{ terms []term }

// term is one requirement of a field selector.
type term struct {
	field string
	not   bool
	value string
}

// Empty reports whether the selector selects everything.
func (f Fields) Empty() bool { return len(f.terms) == 0 }

// Exact returns the value that the selector requires of a field, if it requires one:
// metadata.name=web selects a single object.
func (f Fields) Exact(field string) (string, bool) {
	for _, t := range f.terms {
		if t.field == field && !t.not {
			return t.value, true
		}
	}
	return "", false
}

// Matches reports whether the selector selects an object of its kind.
func (f Fields) Matches(o object.Object) bool {
	for _, t := range f.terms {
		if (fieldOf(o, t.field) == t.value) == t.not {
			return false
		}
	}
	return true
}

// ParseFields parses a field selector for objects of a kind. A field that is not
// selectable is an error.
func ParseFields(k kind.Kind, s string) (Fields, error) {
	var f Fields
	parts := split(s)
	slices.Sort(parts)
	for _, part := range parts {
		if part == "" {
			continue
		}
		t, ok := cutTerm(part)
		if !ok {
			return Fields{}, fmt.Errorf("invalid selector: '%s'; can't understand '%s'", s, part)
		}
		var err error
		if t.value, err = unescape(t.value); err != nil {
			return Fields{}, err
		}
		f.terms = append(f.terms, t)
	}
	for i, t := range f.terms {
		field, err := known(k, t.field)
		if err != nil {
			return Fields{}, err
		}
		f.terms[i].field = field
	}
	return f, nil
}

// split splits a selector at its commas, except those after a backslash.
func split(s string) []string {
	var parts []string
	start := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case ',':
			parts = append(parts, s[start:i])
			start = i + 1
		}
	}
	return append(parts, s[start:])
}

// cutTerm splits a part at its first operator. The part before it has no escapes.
func cutTerm(part string) (term, bool) {
	i := strings.IndexByte(part, '=')
	switch {
	case i < 0:
		return term{}, false
	case i > 0 && part[i-1] == '!':
		return term{field: part[:i-1], not: true, value: part[i+1:]}, true
	}
	return term{field: part[:i], value: strings.TrimPrefix(part[i+1:], "=")}, true
}

func unescape(s string) (string, error) {
	if !strings.ContainsAny(s, `\,=`) {
		return s, nil
	}
	var b strings.Builder
	escaped := false
	for _, r := range s {
		switch {
		case escaped && !strings.ContainsRune(`\,=`, r):
			return "", fmt.Errorf("invalid field selector: invalid escape sequence: \\%c", r)
		case !escaped && r == '\\':
			escaped = true
			continue
		case !escaped && (r == ',' || r == '='):
			return "", fmt.Errorf("invalid field selector: unescaped character in value: %v", r)
		}
		escaped = false
		b.WriteRune(r)
	}
	if escaped {
		return "", fmt.Errorf(`invalid field selector: invalid escape sequence: \`)
	}
	return b.String(), nil
}

const (
	fieldName      = "metadata.name"
	fieldNamespace = "metadata.namespace"
)

// selectable are the fields besides name and namespace that objects can be selected by. A
// kind with an entry has another error text than one without (the conversions of field
// labels in pkg/apis of Kubernetes).
var selectable = map[string][]string{
	"v1 Service":   {"spec.clusterIP", "spec.type"},
	"v1 Pod":       {"spec.nodeName", "spec.hostNetwork", "status.phase", "status.podIP"},
	"v1 Node":      {"spec.unschedulable"},
	"v1 Namespace": {"status.phase"},
	"v1 Secret":    {"type"},
	"v1 Event": {
		"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
		"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
		"reason", "reportingComponent", "source", "type",
	},
	"events.k8s.io/v1 Event": {
		"regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid",
		"regarding.apiVersion", "regarding.resourceVersion", "regarding.fieldPath",
		"reason", "reportingController", "type",
	},
}

// known returns the field that a field label stands for.
func known(k kind.Kind, label string) (string, error) {
	own, has := selectable[k.APIVersion()+" "+k.Name]
	switch {
	case label == fieldName || label == fieldNamespace && (k.Namespaced || !has), slices.Contains(own, label):
	case has:
		return "", fmt.Errorf("field label not supported: %s", label)
	default:
		return "", fmt.Errorf("%q is not a known field selector: only %q, %q", label, fieldName, fieldNamespace)
	}
	// The two kinds of events are one, under two names.
	if rest, ok := strings.CutPrefix(label, "regarding."); ok {
		return "involvedObject." + rest, nil
	}
	if label == "reportingController" {
		return "reportingComponent", nil
	}
	return label, nil
}

// fieldOf returns the value of a selectable field.
func fieldOf(o object.Object, field string) string {
	switch field {
	case fieldName:
		return o.GetMeta().Name
	case fieldNamespace:
		return o.GetMeta().Namespace
	}
	switch o := o.(type) {
	case *object.Service:
		return serviceField(o, field)
	case *object.Pod:
		return podField(o, field)
	case *object.Node:
		return strconv.FormatBool(o.Spec.Unschedulable)
	case *object.Namespace:
		return o.Status.Phase
	case *object.Secret:
		return o.Type
	case *object.Event:
		return eventField(o, field)
	case *object.EventView:
		return eventField(o.Event(), field)
	}
	return ""
}

func serviceField(o *object.Service, field string) string {
	if field == "spec.type" {
		return o.Spec.Type
	}
	return o.Spec.ClusterIP
}

func podField(o *object.Pod, field string) string {
	switch field {
	case "spec.nodeName":
		return o.Spec.NodeName
	case "spec.hostNetwork":
		return strconv.FormatBool(o.Spec.HostNetwork)
	case "status.phase":
		return o.Status.Phase
	}
	return o.Status.PodIP
}

func eventField(o *object.Event, field string) string {
	about := o.InvolvedObject
	switch field {
	case "involvedObject.kind":
		return about.Kind
	case "involvedObject.namespace":
		return about.Namespace
	case "involvedObject.name":
		return about.Name
	case "involvedObject.uid":
		return about.UID
	case "involvedObject.apiVersion":
		return about.APIVersion
	case "involvedObject.resourceVersion":
		return about.ResourceVersion
	case "involvedObject.fieldPath":
		return about.FieldPath
	case "reason":
		return o.Reason
	case "type":
		return o.Type
	case "source":
		if o.Source.Component != "" {
			return o.Source.Component
		}
	}
	return o.ReportingComponent
}
