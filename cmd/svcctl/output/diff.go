package output

import (
	"fmt"
	"strings"
)

// hunkContext is the number of equal lines around a change (diff -u).
const hunkContext = 3

// edit is a line of a difference: ' ' is in both, '-' in the first, '+' in the second.
type edit struct {
	op   byte
	line string
}

// lineEdits is a shortest way from some lines to others (Myers, An O(ND) Difference
// Algorithm, 1986). The lines of an object are few: what it keeps of each round is small.
func lineEdits(a, b []string) []edit {
	n, m := len(a), len(b)
	offset := n + m + 1
	v := make([]int, 2*offset+1) // furthest x on each diagonal k = x-y
	var rounds [][]int
search:
	for d := 0; ; d++ {
		rounds = append(rounds, append([]int(nil), v[offset-d:offset+d+1]...))
		for k := -d; k <= d; k += 2 {
			x := v[offset+k-1] + 1 // take a line away
			if k == -d || k != d && v[offset+k-1] < v[offset+k+1] {
				x = v[offset+k+1] // or add one
			}
			y := x - k
			for x < n && y < m && a[x] == b[y] {
				x, y = x+1, y+1
			}
			v[offset+k] = x
			if x >= n && y >= m {
				break search
			}
		}
	}
	return backtrack(a, b, rounds)
}

// backtrack finds the way that the search of lineEdits took, from its end.
func backtrack(a, b []string, rounds [][]int) []edit {
	var edits []edit
	x, y := len(a), len(b)
	for d := len(rounds) - 1; d >= 0; d-- {
		v, k := rounds[d], x-y
		at := func(k int) int { return v[k+d] } // rounds[d] begins with diagonal -d
		back := k - 1
		if k == -d || k != d && at(k-1) < at(k+1) {
			back = k + 1
		}
		fromX := 0
		if d > 0 {
			fromX = at(back)
		}
		fromY := fromX - back
		for x > 0 && y > 0 && (d == 0 || x > fromX && y > fromY) {
			x, y = x-1, y-1
			edits = append(edits, edit{' ', a[x]})
		}
		switch {
		case d == 0:
		case x == fromX:
			y--
			edits = append(edits, edit{'+', b[y]})
		default:
			x--
			edits = append(edits, edit{'-', a[x]})
		}
	}
	for i, j := 0, len(edits)-1; i < j; i, j = i+1, j-1 {
		edits[i], edits[j] = edits[j], edits[i]
	}
	return edits
}

// Diff is the difference of two texts as diff -u writes it; "" when they are equal.
func Diff(nameA, nameB, a, b string) string {
	if a == b {
		return ""
	}
	edits := lineEdits(strings.SplitAfter(a, "\n"), strings.SplitAfter(b, "\n"))
	if last := len(edits) - 1; edits[last].line == "" { // behind the last newline
		edits = edits[:last]
	}
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", nameA, nameB)
	lineA, lineB := 1, 1 // of edits[i]
	for i := 0; i < len(edits); {
		if edits[i].op == ' ' {
			i, lineA, lineB = i+1, lineA+1, lineB+1
			continue
		}
		begin := max(0, i-hunkContext)
		end := hunkEnd(edits, i)
		countA, countB := 0, 0
		var body strings.Builder
		for _, e := range edits[begin:end] {
			if e.op != '+' {
				countA++
			}
			if e.op != '-' {
				countB++
			}
			body.WriteByte(e.op)
			body.WriteString(strings.TrimSuffix(e.line, "\n") + "\n")
		}
		startA, startB := lineA-(i-begin), lineB-(i-begin)
		fmt.Fprintf(&out, "@@ -%s +%s @@\n%s", hunkRange(startA, countA), hunkRange(startB, countB), body.String())
		lineA, lineB = startA+countA, startB+countB
		i = end
	}
	return out.String()
}

// hunkEnd returns the end of the hunk with the change at i: after the context of the last change
// that is near enough.
func hunkEnd(edits []edit, i int) int {
	end := i
	for j := i; j < len(edits) && j-end <= 2*hunkContext; j++ {
		if edits[j].op != ' ' {
			end = j + 1
		}
	}
	return min(len(edits), end+hunkContext)
}

// hunkRange is the place of a hunk: an empty one is named by the line before it.
func hunkRange(start, count int) string {
	switch count {
	case 0:
		return fmt.Sprintf("%d,0", start-1)
	case 1:
		return fmt.Sprint(start)
	}
	return fmt.Sprintf("%d,%d", start, count)
}

// PaintDiff colors the lines of a unified diff.
func PaintDiff(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		code := ""
		switch {
		case strings.HasPrefix(line, "---"), strings.HasPrefix(line, "+++"):
			code = Bold
		case strings.HasPrefix(line, "-"):
			code = Red
		case strings.HasPrefix(line, "+"):
			code = Green
		case strings.HasPrefix(line, "@@"):
			code = cyan
		}
		if code != "" {
			line = "\x1b[" + code + "m" + strings.TrimSuffix(line, "\n") + "\x1b[0m\n"
		}
		b.WriteString(line)
	}
	return b.String()
}

const cyan = "36"
