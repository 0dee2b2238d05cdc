package fleet

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
)

// What is written of a commit is all of it, with the cursor: a box that ends at any moment starts from its
// replica.
func TestReplicaIsWholeAtAnyMoment(t *testing.T) {
	r, err := openReplica(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	e := newEngine(Config{}, r)
	kept := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(kept)
		for n := range 20 {
			var ops []operation
			for i := range 2000 {
				ops = append(ops, operation{Key: fmt.Sprintf("object/%d", i), Value: fmt.Append(nil, n), Remove: (i+n)%3 == 0})
			}
			e.content.apply(ops)
			e.keep(ops, &head{Revision: uint64(n + 1), standing: standing{Objects: len(e.content.sums), Digest: e.content.digest}, mod: int64(n + 1)})
		}
	})
	for going := true; going; {
		select {
		case <-kept:
			going = false
		default:
		}
		if err := r.flush(); err != nil {
			t.Fatal(err)
		}
		have := newContent()
		pairs, err := r.file.Load("")
		if err != nil {
			t.Fatal(err)
		}
		var stands cursor
		var revision uint64
		for _, p := range pairs {
			switch {
			case p.Key == headKey:
				revision = p.Revision
			case p.Key != cursorKey:
				have.put(p.Key, p.Value)
			case json.Unmarshal(p.Value, &stands) != nil:
				t.Fatalf("the cursor is %q", p.Value)
			}
		}
		if have.digest != stands.Digest || len(have.sums) != stands.Objects || revision != uint64(stands.Mod) {
			t.Fatalf("the file has %d objects, and a cursor of revision %d with %d", len(have.sums), revision, stands.Objects)
		}
	}
	wg.Wait()
}
