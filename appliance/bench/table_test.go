package bench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"testing"
	"text/tabwriter"
	"time"
)

// table has the results of all benchmarks, in their order.
type table struct{ rows []row }

type row struct{ section, what, value, against string }

// results are printed when all benchmarks are done.
var results table

// add notes a figure and, where there is one, the ratio to what it is compared with.
func (t *table) add(section, what, value, against string) {
	t.rows = append(t.rows, row{section, what, value, against})
}

// print writes the rows as one Markdown table, section by section.
func (t *table) print(w io.Writer) {
	if len(t.rows) == 0 {
		return
	}
	var sections []string
	for _, r := range t.rows {
		if !slices.Contains(sections, r.section) {
			sections = append(sections, r.section)
		}
	}
	slices.SortStableFunc(t.rows, func(a, b row) int {
		return cmp.Compare(slices.Index(sections, a.section), slices.Index(sections, b.section))
	})
	out := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprint(out, "\n| \t| what\t| figure\t| compared\t|\n|---\t|---\t|---\t|---\t|\n")
	section := ""
	for _, r := range t.rows {
		name := ""
		if r.section != section {
			section, name = r.section, "**"+r.section+"**"
		}
		fmt.Fprintf(out, "| %s\t| %s\t| %s\t| %s\t|\n", name, r.what, r.value, r.against)
	}
	_ = out.Flush() // to a terminal or a pipe that is gone: nobody reads it
}

// quantile is the value that a part of the sorted samples is not above.
func quantile[T cmp.Ordered](samples []T, part float64) T {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[min(len(sorted)-1, int(part*float64(len(sorted))))]
}

func median[T cmp.Ordered](samples []T) T { return quantile(samples, 0.5) }

// ratios are the samples of one thing by those of another, round by round.
func ratios[T ~int64 | ~float64](a, b []T) []float64 {
	all := make([]float64, len(a))
	for i := range a {
		all[i] = float64(a[i]) / float64(b[i])
	}
	return all
}

// ms is a duration for the table.
func ms(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.0f ms", float64(d)/1e6)
	case d >= 100*time.Microsecond:
		return fmt.Sprintf("%.2f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.1f µs", float64(d)/1e3)
}

// number is a number with commas.
func number(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", number(n/1000), n%1000)
}

func TestQuantile(t *testing.T) {
	samples := []int{9, 1, 5, 3, 7}
	for part, want := range map[float64]int{0: 1, 0.5: 5, 0.99: 9, 1: 9} {
		if got := quantile(samples, part); got != want {
			t.Errorf("quantile %v of %v is %d, want %d", part, samples, got, want)
		}
	}
	if got := median(ratios([]float64{2, 9, 4}, []float64{1, 3, 4})); got != 2 {
		t.Errorf("the median ratio is %v, want 2", got)
	}
}
