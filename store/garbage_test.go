package store

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// TestNamespacesInUse follows who uses which namespaces, and that it is told once.
func TestNamespacesInUse(t *testing.T) {
	file, client := Owner{File: "a.yaml"}, Owner{}
	made := Owner{Controller: "endpoints"}
	service := func(namespace, name string) object.Ref {
		return object.Ref{Kind: object.KindService, Namespace: namespace, Name: name}
	}
	c := newNamespaceUse()
	records := map[object.Ref]*record.Record{}
	set := func(ref object.Ref, owner *Owner) bool {
		state := c.state
		var now *record.Record
		if owner != nil {
			now = &record.Record{Owner: *owner}
		}
		c.move(ref, records[ref], now)
		records[ref] = now
		return c.state != state
	}
	for _, step := range []struct {
		ref   object.Ref
		owner *Owner // nil: it goes
		tells bool
		want  string
	}{
		{service("a", "1"), &file, true, "a|"},
		{service("a", "1"), &file, false, "a|"},
		{service("a", "2"), &file, false, "a|"},
		{service("b", "1"), &made, false, "a|"},
		{service("b", "1"), &client, true, "a|b"},
		{object.Ref{Kind: object.KindEvent, Namespace: "c", Name: "1"}, &client, false, "a|b"},
		{object.Ref{Kind: object.KindNode, Name: "gw1"}, &made, false, "a|b"},
		{object.Ref{Kind: object.KindNamespace, Name: "a"}, &made, true, "a|b"},
		{object.Ref{Kind: object.KindNamespace, Name: "a"}, nil, true, "a|b"},
		{service("a", "2"), &client, true, "a|a b"},
		{service("a", "1"), nil, true, "|a b"},
		{service("a", "2"), nil, true, "|b"},
		{service("b", "1"), &file, true, "b|"},
		{service("b", "1"), nil, true, "|"},
	} {
		tells := set(step.ref, step.owner)
		s := Store{accepted: accepted{table: &table{namespaces: c}}}
		all, _ := s.Namespaces(0)
		got := strings.Join(all.Files, " ") + "|" + strings.Join(all.Clients, " ")
		if tells != step.tells || got != step.want {
			t.Errorf("%s of %v: told %v, %s; want %v, %s", step.ref, step.owner, tells, got, step.tells, step.want)
		}
		if _, again := s.Namespaces(all.State); again {
			t.Error("told twice")
		}
	}
}
