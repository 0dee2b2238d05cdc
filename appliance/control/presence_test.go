package control

import (
	"net/netip"
	"testing"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// TestPresence: the Node of a box that is gone says so, and is Ready when the box is back; without a change nothing is written, nothing
// is said of a box of which nothing is known, and what a client has made is left alone.
func TestPresence(t *testing.T) {
	s, err := store.Open(engine.NewMemory(), store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}})
	if err != nil {
		t.Fatal(err)
	}
	nodeOf := func(name string) *object.Node {
		return &object.Node{TypeMeta: object.TypeMeta{Kind: object.KindNode, APIVersion: object.APIVersionCore}, Metadata: object.ObjectMeta{Name: name}}
	}
	for _, name := range []string{"a", "b"} {
		if _, err := s.Generate(NodeOwner+"/"+name, []object.Object{nodeOf(name)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := s.Write(store.Write{Ref: object.Ref{Kind: object.KindNode, Name: "client"}, Object: nodeOf("client"), Create: true, By: store.Caller{User: "test"}}); err != nil || r[0].Err != nil {
		t.Fatal(err, r)
	}
	label := func(name string) error {
		o, _ := s.Get(object.Ref{Kind: object.KindNode, Name: name})
		n := object.DeepCopy(o).(*object.Node)
		n.Metadata.Labels = map[string]string{"rack": "1"}
		r, err := s.Write(store.Write{Ref: object.RefOf(n), Object: n, By: store.Caller{User: "test"}})
		if err == nil {
			err = r[0].Err
		}
		return err
	}
	remove := func(name string) error {
		r, err := s.Write(store.Write{Ref: object.Ref{Kind: object.KindNode, Name: name}, Delete: true, By: store.Caller{User: "test"}})
		if err == nil {
			err = r[0].Err
		}
		return err
	}
	all := map[string]bool{"a": true, "b": true, "client": true}
	for _, test := range []struct {
		present, gone map[string]bool
		a, b          string
		writes        bool
	}{
		{all, nil, "True", "True", true},
		{all, nil, "True", "True", false},
		{map[string]bool{"a": true}, nil, "True", "True", false},
		{map[string]bool{"a": true}, map[string]bool{"b": true, "client": true}, "True", "Unknown", true},
		{map[string]bool{"a": true}, map[string]bool{"b": true, "client": true}, "True", "Unknown", false},
		{all, nil, "True", "True", true},
	} {
		before := s.Revision()
		if err := TellPresence(s, test.present, test.gone); err != nil {
			t.Fatal(err)
		}
		if wrote := s.Revision() != before; wrote != test.writes {
			t.Errorf("present %v, gone %v: something was written: %v", test.present, test.gone, wrote)
		}
		for name, want := range map[string]string{"a": test.a, "b": test.b, "client": ""} {
			o, _ := s.Get(object.Ref{Kind: object.KindNode, Name: name})
			is := object.ReadyOf(o.(*object.Node))
			if got := is != nil && is.Status == want && is.LastTransitionTime != nil; got != (want != "") {
				t.Errorf("present %v, gone %v: Node %s is %+v", test.present, test.gone, name, is)
			}
		}
	}
	if err := label("a"); err != nil {
		t.Errorf("a label on the Node of a box: %v", err)
	}
	if err := remove("b"); err == nil {
		t.Error("the Node of a box that runs is deleted")
	}
	if err := TellPresence(s, nil, map[string]bool{"b": true}); err != nil {
		t.Fatal(err)
	}
	if err := remove("b"); err != nil {
		t.Errorf("the Node of a box that is gone: %v", err)
	}
	if o, _ := s.Get(object.Ref{Kind: object.KindNode, Name: "a"}); o.GetMeta().Labels["rack"] != "1" {
		t.Errorf("the label of a client is not there: %v", o.GetMeta().Labels)
	}
}
