package engine

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
)

// Scan gives what Load gives, the wanted ones, also when it takes several pieces; Sums change with value and revision.
func TestScan(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			engine, _ := e.open(t)
			var puts []Pair
			large := bytes.Repeat([]byte("x"), 700<<10)
			for i := range 5 {
				puts = append(puts, Pair{Key: fmt.Sprint("b/", i), Revision: 1, Value: append([]byte{byte('0' + i)}, large...)})
			}
			puts = append(puts, Pair{Key: "a", Revision: 1, Value: []byte("a")}, Pair{Key: "b/5", Revision: 1, Value: nil}, Pair{Key: "c", Revision: 1, Value: []byte("c")})
			if err := engine.Commit(Transaction{CompareKey: "head", Puts: puts}); err != nil {
				t.Fatal(err)
			}
			scan := func(want func(string, Sum) bool) (got string) {
				t.Helper()
				err := engine.Scan("b/", want, func(pairs []Pair) error {
					for _, p := range pairs {
						got += fmt.Sprintf("%s@%d %d ", p.Key, p.Revision, len(p.Value))
						if len(p.Value) > 0 && (p.Value[0] != p.Key[2] || !bytes.Equal(p.Value[1:], large)) {
							t.Errorf("%s has another value", p.Key)
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			if got, want := scan(nil), "b/0@1 716801 b/1@1 716801 b/2@1 716801 b/3@1 716801 b/4@1 716801 b/5@1 0 "; got != want {
				t.Errorf("got %s", got)
			}
			sums := map[string]Sum{}
			if got := scan(func(key string, sum Sum) bool { sums[key] = sum; return key == "b/3" }); got != "b/3@1 716801 " {
				t.Errorf("wanted one, got %s", got)
			}
			keys := []string{"b/2", "b", "b/5", "none"}
			sum := func() []Sum {
				t.Helper()
				list, err := engine.Sums(keys)
				if err != nil || len(list) != len(keys) {
					t.Fatalf("%d sums, %v", len(list), err)
				}
				return list
			}
			before := sum()
			if before[0] != sums["b/2"] || before[2] != sums["b/5"] || before[1] != (Sum{}) || before[3] != (Sum{}) || before[0] == (Sum{}) {
				t.Errorf("sums %x, while scanning %x", before, sums)
			}
			if err := engine.Commit(Transaction{CompareKey: "head", Puts: []Pair{{Key: "b/2", Revision: 1, Value: []byte("2")}, {Key: "b/5", Revision: 2}}}); err != nil {
				t.Fatal(err)
			}
			if after := sum(); after[0] == before[0] || after[2] == before[2] {
				t.Errorf("sums stay: %x", after)
			}
			failure := errors.New("enough")
			if err := engine.Scan("b/", nil, func([]Pair) error { return failure }); !errors.Is(err, failure) {
				t.Errorf("got %v", err)
			}
			if err := engine.Commit(Transaction{CompareKey: "head", Puts: []Pair{{Key: "d", Revision: 2}}}); err != nil {
				t.Errorf("after an error of use: %v", err)
			}
		})
	}
}
