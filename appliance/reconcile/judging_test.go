package reconcile

import (
	"fmt"
	"strings"
	"testing"
)

// amongProblems is a rig with a Service beside n others, each of which has a problem, and a step for one change of it.
func amongProblems(t testing.TB, n int) (r *rig, change, step func()) {
	r = newRig(t)
	r.host()
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d}\nspec: {ports: [{port: 80}]}\n", i)
	}
	r.write("many.yaml", text.String())
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	r.clock = r.clock.Add(newFor)
	r.step()
	if got := len(r.board.Status().Problems); got != n {
		t.Fatalf("%d problems", got)
	}
	i := 0
	change = func() {
		i++
		r.write("web.yaml", web("web", "10.96.0.10", []string{"10.1.0.1", "10.1.0.2"}[i%2]))
		if err := r.syncFiles(); err != nil {
			t.Fatal(err)
		}
	}
	return r, change, r.step
}

// BenchmarkOneChangeAmongProblems is a step of the loop for one change of one Service, beside 5,000 Services of which
// each has a problem.
func BenchmarkOneChangeAmongProblems(b *testing.B) {
	_, change, step := amongProblems(b, 5000)
	for b.Loop() {
		b.StopTimer()
		change()
		b.StartTimer()
		step()
	}
}

// Test810_judging_is_proportional_to_the_change: what a step allocates for one change does not grow with the number of
// problems that others have.
func Test810_judging_is_proportional_to_the_change(t *testing.T) {
	allocations := func(n int) float64 {
		_, change, step := amongProblems(t, n)
		return testing.AllocsPerRun(20, func() { change(); step() })
	}
	if few, many := allocations(20), allocations(2000); many > 2*few {
		t.Errorf("a change takes %v allocations beside 20 problems, %v beside 2,000", few, many)
	}
}
