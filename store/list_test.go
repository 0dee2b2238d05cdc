package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// valuesIn are the "namespace/name=value" of a list of ConfigMaps.
func valuesIn(list []object.Object) string {
	var all []string
	for _, o := range list {
		all = append(all, object.RefOf(o).Key()+"="+o.(*object.ConfigMap).Data["value"])
	}
	return strings.Join(all, " ")
}

func TestListIsSorted(t *testing.T) {
	b := newBox(t)
	for _, key := range []string{"b/a", "a/b", "a-b/c", "a/a", "a-b/a", "c/z"} {
		o := configMap("", "1")
		o.Metadata.Namespace, o.Metadata.Name, _ = strings.Cut(key, "/")
		b.must(write(o))
	}
	b.must(write(made(t, object.KindLease, "a", "c")))
	for namespace, want := range map[string]string{
		"":    "a/a=1 a/b=1 a-b/a=1 a-b/c=1 b/a=1 c/z=1",
		"a":   "a/a=1 a/b=1",
		"a-b": "a-b/a=1 a-b/c=1",
		"d":   "",
	} {
		list, revision, err := b.s.List(object.KindConfigMap, namespace, 0)
		if err != nil || valuesIn(list) != want || revision != b.s.Revision() {
			t.Errorf("%q: %s, %d, %v", namespace, valuesIn(list), revision, err)
		}
	}
	if list, _, err := b.s.List("Gadget", "", 0); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// A list that a caller has is not changed by what comes later.
func TestListsStayAsTheyWere(t *testing.T) {
	b := newBox(t)
	b.must(write(configMap("b", "1")))
	list, _, _ := b.s.List(object.KindConfigMap, "default", 0)
	b.must(write(configMap("a", "1")))
	b.must(write(configMap("b", "2")))
	b.must(write(configMap("c", "1")))
	if valuesIn(list) != "default/b=1" {
		t.Errorf("it became %s", valuesIn(list))
	}
	if now, _, _ := b.s.List(object.KindConfigMap, "default", 0); valuesIn(now) != "default/a=1 default/b=2 default/c=1" {
		t.Errorf("now %s", valuesIn(now))
	}
}

// Lists of the past are what was listed then, also after a restart.
func TestListAtRevision(t *testing.T) {
	b := newBox(t)
	r := rand.New(rand.NewPCG(1, 2))
	then := map[uint64][2]string{}
	note := func() {
		all, revision, _ := b.s.List(object.KindConfigMap, "", 0)
		one, _, _ := b.s.List(object.KindConfigMap, "n1", 0)
		then[revision] = [2]string{valuesIn(all), valuesIn(one)}
	}
	note()
	for i := range 300 {
		o := configMap(fmt.Sprint("a", r.IntN(20)), fmt.Sprint(i))
		o.Metadata.Namespace = fmt.Sprint("n", r.IntN(3))
		w := write(o)
		if r.IntN(3) == 0 {
			w.Object, w.Delete = nil, true
		}
		b.ask(w)
		if r.IntN(4) != 0 {
			note() // the others are only known by the journal
		}
	}
	for range 2 {
		for revision, want := range then {
			all, at, err := b.s.List(object.KindConfigMap, "", revision)
			if err != nil || at != revision || valuesIn(all) != want[0] {
				t.Errorf("at %d: %s, %v\nwant %s", revision, valuesIn(all), err, want[0])
			}
			one, _, err := b.s.List(object.KindConfigMap, "n1", revision)
			if err != nil || valuesIn(one) != want[1] {
				t.Errorf("n1 at %d: %s, %v\nwant %s", revision, valuesIn(one), err, want[1])
			}
		}
		b.restart()
	}
}

// A list without readers is not kept up to date.
func TestForgottenLists(t *testing.T) {
	b := newBox(t)
	b.s.List(object.KindConfigMap, "", 0)
	for i := range maxTouched + 2 {
		b.ask(write(configMap(fmt.Sprint("a", i), "1")))
	}
	if l := b.s.table.lists.kinds[object.KindConfigMap]; l != nil {
		t.Errorf("%d changes are noted", len(l.touched))
	}
	if list, _, _ := b.s.List(object.KindConfigMap, "", 0); len(list) != maxTouched+2 || !slices.IsSortedFunc(list, compareObjects) {
		t.Errorf("%d objects", len(list))
	}
}

func compareObjects(a, b object.Object) int {
	return record.CompareRefs(object.RefOf(a), object.RefOf(b))
}
