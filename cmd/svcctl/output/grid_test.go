package output

import (
	"strings"
	"testing"
)

func TestGrid(t *testing.T) {
	var g Grid
	if got, want := g.Text([]string{"A", "B"}, []string{"long name", "é"}), "A           B\nlong name   é\n"; got != want {
		t.Errorf("%q", got)
	}
	if got, want := g.Text([]string{"x", "y"}), "x           y\n"; got != want {
		t.Errorf("later rows: %q", got)
	}
	if got := CellText("a\nb"); got != "a..." {
		t.Errorf("%q", got)
	}
	if got := CellText("\x1b[31mred"); strings.ContainsRune(got, 0x1b) {
		t.Errorf("%q reaches the terminal", got)
	}
}
