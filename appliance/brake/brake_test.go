package brake

import "testing"

func TestAccident(t *testing.T) {
	for _, test := range []struct {
		gone, of int
		all      bool
		want     bool
	}{
		{0, 0, false, false}, {10, 10, false, false}, {11, 11, false, true}, {11, 21, false, true}, {11, 22, false, false}, {50, 100, false, false}, {51, 100, false, true}, {5000, 10000, false, false},
		{2, 2, true, false}, {3, 3, true, true},
	} {
		if got := Accident(test.gone, test.of, test.all); got != test.want {
			t.Errorf("%d of %d: %v", test.gone, test.of, got)
		}
	}
	for left, want := range map[int]bool{400: true, 11: true, 10: false, 1: false} {
		if got := Remains(left, 400); got != want {
			t.Errorf("%d of 400 are left: %v", left, got)
		}
	}
}
