package selector

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
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
	return !slices.ContainsFunc(f.terms, func(t term) bool { return slices.Contains(valuesOf(o, t.field), t.value) == t.not })
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
		if field == FieldAddress {
			f.terms[i].value = canonical([]string{t.value})[0]
		}
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
	// FieldAddress has the addresses of a Service, or of the endpoints of a slice, and FieldNodePort the node ports of a Service, that of
	// health checks among them. Both are our own.
	FieldAddress  = "svcctl.io/address"
	FieldNodePort = "svcctl.io/nodePort"
)

// selectable are the fields besides name and namespace that objects can be selected by. A
// kind with an entry has another error text than one without (the conversions of field
// labels in pkg/apis of Kubernetes).
var selectable = map[string][]string{
	"v1 Service":   {"spec.clusterIP", "spec.type", FieldAddress, FieldNodePort},
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
	switch own, has := selectable[k.APIVersion()+" "+k.Name]; {
	case label == FieldAddress && k.Name == object.KindEndpointSlice:
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

// valuesOf returns the values of a selectable field: those of our own have several.
func valuesOf(o object.Object, field string) (values []string) {
	switch field {
	case fieldName:
		return []string{o.GetMeta().Name}
	case fieldNamespace:
		return []string{o.GetMeta().Namespace}
	}
	if view, is := o.(*object.EventView); is {
		o = view.Event()
	}
	switch o := o.(type) {
	case *object.Service:
		switch field {
		case FieldAddress:
			values = slices.Concat(o.Spec.ClusterIPs, o.Spec.ExternalIPs)
			for _, i := range o.Status.LoadBalancer.Ingress {
				values = append(values, i.IP)
			}
			return canonical(values)
		case FieldNodePort:
			for _, p := range o.Spec.Ports {
				values = append(values, strconv.Itoa(int(p.NodePort)))
			}
			return append(values, strconv.Itoa(int(o.Spec.HealthCheckNodePort)))
		}
	case *object.EndpointSlice:
		for i := range o.Endpoints {
			values = append(values, o.Endpoints[i].Addresses...)
		}
		return canonical(values)
	case *object.Event:
		if field == "source" {
			return []string{cmp.Or(o.Source.Component, o.ReportingComponent)}
		}
	}
	v := reflect.Indirect(reflect.ValueOf(o))
	for name := range strings.SplitSeq(field, ".") {
		v = v.FieldByNameFunc(func(of string) bool { return strings.EqualFold(of, name) })
	}
	return []string{fmt.Sprint(v)}
}

// canonical replaces texts of IPv6 addresses by those that netip writes.
func canonical(texts []string) []string {
	for i, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil && addr.Is6() {
			texts[i] = addr.String()
		}
	}
	return texts
}
