package pending

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

func service(name, ip string) *object.Service {
	return &object.Service{
		TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: "7"},
		Spec:     object.ServiceSpec{ClusterIP: ip},
	}
}

func slice(name, of string) *object.EndpointSlice {
	return &object.EndpointSlice{
		TypeMeta: object.TypeMeta{Kind: object.KindEndpointSlice, APIVersion: object.APIVersionDiscovery},
		Metadata: object.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{object.LabelServiceName: of}, ResourceVersion: "7"},
	}
}

// A head keeps the fields of its user, and does not take its own for them.
func TestHeadKeepsThePlan(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, plan := range []string{"", `{"bake":"5m","steps":[1,2]}`} {
		h := Head{ID: "r1", Began: at, User: "kim", Phase: Baking, Turn: 3, Boxes: []string{"a"}, Revision: 9, Since: at, Plan: json.RawMessage(plan)}
		text, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		var got Head
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if string(got.Plan) != plan {
			t.Errorf("the plan of %s is %q, want %q", text, got.Plan, plan)
		}
		if got.Plan = h.Plan; !reflect.DeepEqual(got, h) {
			t.Errorf("%+v\nwas %+v", got, h)
		}
	}
}

func TestHasAndPending(t *testing.T) {
	back := time.Now()
	for name, c := range map[string]struct {
		head         *Head
		pending, has bool // has: box "a" programs the changes
	}{
		"none":          {nil, false, true},
		"other boxes":   {&Head{Phase: Programming, Boxes: []string{"b"}}, true, false},
		"its box":       {&Head{Phase: Programming, Boxes: []string{"a", "b"}}, true, true},
		"everyone":      {&Head{Phase: Baking, Everyone: true}, true, true},
		"done":          {&Head{Phase: Done, Boxes: []string{"b"}}, false, true},
		"rolled back":   {&Head{Back: &back}, false, true},
		"stopped early": {&Head{Phase: Stopped}, true, false},
	} {
		if p, h := c.head.Pending(), c.head.Has("a"); p != c.pending || h != c.has {
			t.Errorf("%s: pending %v, has %v", name, p, h)
		}
	}
}

// A change belongs to the set of its client, of its file, or of the Service that a controller generates it for.
func TestBelongs(t *testing.T) {
	web := object.ServiceRef("default/web")
	timed, files, staged := New(Timed, &Head{ID: "t1"}), New(Timed, &Head{ID: "t1", Files: true}), New(Staged, &Head{ID: "r1"})
	staged.Put(web, nil)
	generated := func(of string) *Change {
		return &Change{Ref: object.Ref{Kind: object.KindEndpointSlice, Namespace: "default", Name: "x"}, Next: slice("x", of), Owner: record.Owner{Controller: "endpoints"}}
	}
	for name, c := range map[string]struct {
		set    *Set
		change *Change
		want   bool
	}{
		"its client":             {timed, &Change{Ref: web, By: &journal.Caller{Trial: "t1"}}, true},
		"another trial":          {timed, &Change{Ref: web, By: &journal.Caller{Trial: "t2"}}, false},
		"a client of no set":     {staged, &Change{Ref: web, By: &journal.Caller{}}, false},
		"a file, of a trial":     {files, &Change{Ref: web, Owner: record.Owner{File: "a.yaml"}}, true},
		"a file, without files":  {timed, &Change{Ref: web, Owner: record.Owner{File: "a.yaml"}}, false},
		"generated for it":       {staged, generated("web"), true},
		"generated for another":  {staged, generated("db"), false},
		"generated, but of none": {New(Staged, &Head{ID: "r1", Phase: Done}), generated("web"), false},
	} {
		if got := c.set.Belongs(c.change); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Another machine that follows the commits of a set has the same set, and none after its end.
func TestFollow(t *testing.T) {
	set := New(Staged, &Head{ID: "r1", Turn: 1, Phase: Gathering})
	set.Put(object.ServiceRef("default/web"), &record.Record{Object: service("web", "10.96.0.1")})
	set.Put(object.ServiceRef("default/new"), nil)
	old := slice("web-1", "web")
	set.Put(object.RefOf(old), &record.Record{Object: old})
	var begin engine.Transaction
	for ref, before := range set.Before {
		if err := set.Kind.AddBefore(ref, before, 7, &begin); err != nil {
			t.Fatal(err)
		}
	}
	if err := set.AddHead(7, &begin); err != nil {
		t.Fatal(err)
	}
	puts := func(tx engine.Transaction) *engine.Followed {
		for i, p := range tx.Puts {
			if p.Entry != nil {
				tx.Puts[i].Value = p.Entry[engine.EntryHeader:]
			}
		}
		return &engine.Followed{Puts: tx.Puts, Deletes: tx.Deletes}
	}
	got, headed, err := New(Staged, nil).Follow(puts(begin))
	if err != nil || !headed || got.ID != "r1" || len(got.Before) != 3 {
		t.Fatalf("%+v, headed %v, %v", got, headed, err)
	}
	if b := got.Before[object.ServiceRef("default/web")]; b == nil || b.Object.(*object.Service).Spec.ClusterIP != "10.96.0.1" {
		t.Errorf("the version before is %+v", b)
	}
	if b, has := got.Before[object.ServiceRef("default/new")]; b != nil || !has {
		t.Errorf("of an object that did not exist: %+v, %v", b, has)
	}
	svc, list, _ := got.Service("default/web", service("web", "10.96.0.99"), []*object.EndpointSlice{slice("web-1", "web"), slice("web-2", "web")}, nil)
	if svc.Spec.ClusterIP != "10.96.0.1" || len(list) != 2 || list[0] == nil || !reflect.DeepEqual(list[0], old) {
		t.Errorf("the Service before: %+v, slices %+v", svc, list)
	}
	if svc, _, _ := got.Service("default/new", service("new", "10.96.0.5"), nil, nil); svc != nil {
		t.Errorf("before the changes there was no such Service: %+v", svc)
	}
	if same, headed, err := got.Follow(&engine.Followed{Puts: []engine.Pair{{Key: "trial/head", Value: []byte("{}")}}}); same != got || headed || err != nil {
		t.Errorf("a commit of another kind changes the set: %v, %v", headed, err)
	}
	var end engine.Transaction
	if err := got.AddEnd(nil, 8, &end); err != nil {
		t.Fatal(err)
	}
	after, _, err := got.Follow(puts(end))
	if err != nil || after.Head != nil || len(after.Before) != 0 {
		t.Errorf("after its end: %+v, %v", after, err)
	}
	if got.Head == nil || len(got.Before) != 3 {
		t.Error("the set before the commit has changed")
	}
	if !slices.Contains(end.Deletes, "rollout/head") {
		t.Errorf("%v", end.Deletes)
	}
	if _, _, err := New(Staged, nil).Follow(&engine.Followed{Puts: []engine.Pair{{Key: "rollout/object/?"}}}); err == nil {
		t.Error("a key that is none is taken")
	}
}
