package engine

import (
	"errors"
	"fmt"
	"maps"
	"testing"
)

// engines are the implementations; reopen gives what a new process would find.
var engines = []struct {
	name string
	open func(t *testing.T) (engine Engine, reopen func() Engine)
}{
	{"memory", func(t *testing.T) (Engine, func() Engine) {
		m := NewMemory()
		return m, func() Engine {
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			return &Memory{pairs: maps.Clone(m.pairs)}
		}
	}},
	{"file", func(t *testing.T) (Engine, func() Engine) {
		dir := t.TempDir()
		f := mustOpenFile(t, dir)
		return f, func() Engine {
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			return mustOpenFile(t, dir)
		}
	}},
}

func mustOpenFile(t testing.TB, dir string) *File {
	t.Helper()
	f, err := OpenFile(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// dump is all that an engine holds, one line a pair.
func dump(t testing.TB, engine Engine) string {
	t.Helper()
	pairs, err := engine.Load("")
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, pair := range pairs {
		text += fmt.Sprintf("%s@%d=%s\n", pair.Key, pair.Revision, pair.Value)
	}
	return text
}

func TestEngines(t *testing.T) {
	put := func(key string, revision uint64, value string) Pair {
		return Pair{Key: key, Revision: revision, Value: []byte(value)}
	}
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			engine, reopen := e.open(t)
			for i, step := range []struct {
				t    Transaction
				want error
				dump string
			}{
				{Transaction{CompareKey: "head", CompareRevision: 7, Puts: []Pair{put("a", 1, "x")}}, ErrConflict, ""},
				{Transaction{CompareKey: "head", Puts: []Pair{put("head", 1, ""), put("b/2", 1, "two"), put("b/1", 1, "one")}}, nil,
					"b/1@1=one\nb/2@1=two\nhead@1=\n"},
				{Transaction{CompareKey: "head", Puts: []Pair{put("a", 2, "x")}}, ErrConflict, "b/1@1=one\nb/2@1=two\nhead@1=\n"},
				{Transaction{CompareKey: "head", CompareRevision: 1, Puts: []Pair{put("head", 2, ""), put("b/2", 2, "TWO")},
					Deletes: []string{"b/1", "never/there"}}, nil, "b/2@2=TWO\nhead@2=\n"},
				{Transaction{CompareKey: "head", CompareRevision: 2, Puts: []Pair{put("c", 2, "see")}}, nil, "b/2@2=TWO\nc@2=see\nhead@2=\n"},
			} {
				if err := engine.Commit(step.t); !errors.Is(err, step.want) {
					t.Fatalf("step %d: got %v, want %v", i, err, step.want)
				}
				if got := dump(t, engine); got != step.dump {
					t.Fatalf("step %d: got\n%swant\n%s", i, got, step.dump)
				}
			}
			before := dump(t, engine)
			again := reopen()
			if got := dump(t, again); got != before {
				t.Errorf("reopened: got\n%swant\n%s", got, before)
			}
			pairs, err := again.Load("b/")
			if err != nil || len(pairs) != 1 || pairs[0].Key != "b/2" {
				t.Errorf("Load(b/): %v, %v", pairs, err)
			}
			if err := engine.Commit(Transaction{CompareKey: "head", CompareRevision: 2}); !errors.Is(err, ErrClosed) {
				t.Errorf("commit to the old engine: %v", err)
			}
		})
	}
}

// Test1008_of_puts_with_one_key_the_last_one_counts has many pairs in one transaction, several with each key.
func Test1008_of_puts_with_one_key_the_last_one_counts(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			engine, reopen := e.open(t)
			tx := Transaction{Deletes: []string{"k0"}}
			for i := range 100 {
				tx.Puts = append(tx.Puts, Pair{Key: fmt.Sprint("k", i%3), Revision: uint64(i), Value: fmt.Append(nil, i)})
			}
			if err := engine.Commit(tx); err != nil {
				t.Fatal(err)
			}
			if got, want := dump(t, reopen()), "k0@99=99\nk1@97=97\nk2@98=98\n"; got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}
