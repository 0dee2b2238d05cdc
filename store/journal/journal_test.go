package journal

import (
	"encoding/json"
	"testing"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

func FuzzDecode(f *testing.F) {
	o := &object.ConfigMap{
		TypeMeta: object.TypeMeta{APIVersion: "v1", Kind: object.KindConfigMap},
		Metadata: object.ObjectMeta{Namespace: "default", Name: "a"}, Data: map[string]string{"value": "1"},
	}
	c := Change{Ref: object.RefOf(o), Revision: 5, By: &Caller{User: "root"}, Old: o}
	_, value, err := entryOf(&c, 4, time.Unix(1_700_000_000, 0))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(Key(5), value)
	f.Add(Key(5), value[:len(value)/2])
	f.Add(Prefix+"zz", []byte("\n"))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		e, err := decode(engine.Pair{Key: key, Value: value})
		if err != nil {
			return
		}
		if Key(e.Revision) != key || e.Ref.Name == "" || e.Previous >= e.Revision {
			t.Errorf("%q, %q: %+v", key, value, e)
		}
		if e.old == nil {
			return
		}
		o, err := decodeVersion(e.Ref, e.old)
		if err == nil && object.RefOf(o) != e.Ref {
			t.Errorf("%s has a version of %s", e.Ref, object.RefOf(o))
		}
		if err == nil {
			if _, err := json.Marshal(o); err != nil {
				t.Errorf("%s: %v", e.Ref, err)
			}
		}
	})
}

// What is planned and applied is what Load finds in the engine afterwards, as far as the bounds let it.
func TestPlannedIsLoaded(t *testing.T) {
	at := time.Unix(1_700_000_000, 0).UTC()
	ref := object.Ref{Kind: object.KindConfigMap, Namespace: "default", Name: "a"}
	stored := engine.NewMemory()
	j := New(Bounds{Entries: 16, Bytes: 1 << 20, Recent: 4})
	j.Reset(100)
	for revision := uint64(101); revision <= 140; revision++ {
		u, err := j.Plan([]Change{{Revision: revision, Ref: ref, By: &Caller{User: "root"}}}, revision-1, at)
		if err != nil {
			t.Fatal(err)
		}
		var out engine.Transaction
		u.AddTo(&out)
		if err := stored.Commit(out); err != nil {
			t.Fatal(err)
		}
		j.Apply(u)
	}
	pairs, err := stored.Load(Prefix)
	if err != nil {
		t.Fatal(err)
	}
	again := New(j.Bounds())
	again.Load(pairs, 140)
	if n := len(j.Entries()); n > 16 || n < 14 || len(again.Entries()) != n || again.Since() != j.Since() || again.Size() != j.Size() {
		t.Errorf("%d entries since %d of %d bytes, loaded %d since %d of %d bytes",
			n, j.Since(), j.Size(), len(again.Entries()), again.Since(), again.Size())
	}
	if got := again.Recent(3, nil); got != 137 {
		t.Errorf("the newest three follow on %d", got)
	}
	if entries, err := again.After(138, 140); err != nil || len(entries) != 2 || entries[0].Previous != 138 {
		t.Errorf("after 138: %v, %v", entries, err)
	}
	if _, err := again.After(j.Since()-1, 140); err == nil {
		t.Error("it knows more than it has")
	}
	// A gap: what comes after it is the journal, and the rest is removed with the next commit.
	gap := len(pairs) / 2
	again.Load(append(pairs[:gap:gap], pairs[gap+1:]...), 140)
	if n := len(again.Entries()); n != len(pairs)-gap-1 {
		t.Errorf("%d entries after a gap", n)
	}
	u, err := again.Plan(nil, 140, at)
	if err != nil || len(u.deletes) != gap {
		t.Errorf("%d stale entries are removed, %v", len(u.deletes), err)
	}
}
