package parallel

import (
	"sync/atomic"
	"testing"
)

func TestDoCallsEachIndexOnce(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 65, 1000} {
		calls := make([]atomic.Int32, n)
		Do(n, 64, func(i int) { calls[i].Add(1) })
		for i := range calls {
			if c := calls[i].Load(); c != 1 {
				t.Errorf("n %d: index %d is called %d times", n, i, c)
			}
		}
	}
}
