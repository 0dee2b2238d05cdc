package store

import (
	"errors"
	"testing"
	"time"
)

// Who knows of a change takes that one back, and none that came after it.
func TestRollbackOfAKnownChange(t *testing.T) {
	b := newBox(t)
	b.sync()
	by := Caller{User: "root", Manager: "m", Verb: "create"}
	if _, err := b.s.Rollback(Rollback{By: by}); !errors.Is(err, ErrNoChange) {
		t.Errorf("without a change: %v", err)
	}
	create := func(name string) uint64 {
		t.Helper()
		b.now = b.now.Add(time.Second)
		w := write(document(t, name+" {}"))
		w.By = by
		b.must(w)
		seen, err := b.s.Rollback(Rollback{By: by, DryRun: true})
		if err != nil || len(seen.Objects) != 1 || seen.Objects[0].Ref != ref(name) {
			t.Fatalf("the last change: %+v, %v", seen, err)
		}
		return seen.Last
	}
	first := create("first")
	second := create("second")
	b.apply("/m/f", "filed {}") // no change by a client
	for _, dry := range []bool{true, false} {
		_, err := b.s.Rollback(Rollback{Last: first, By: by, DryRun: dry})
		if newer, is := errors.AsType[*NewerChangeError](err); !is || newer.Newest != second || newer.Last != first {
			t.Errorf("after a newer change: %v", err)
		}
	}
	if !b.has("first") || !b.has("second") {
		t.Error("a refused rollback changed something")
	}
	if _, err := b.s.Rollback(Rollback{Last: second, By: by}); err != nil || b.has("second") || !b.has("first") || !b.has("filed") {
		t.Errorf("%v: first is there: %t, second: %t, filed: %t", err, b.has("first"), b.has("second"), b.has("filed"))
	}
	b.check()
}
