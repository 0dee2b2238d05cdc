package parallel

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Share is a value for the parameter share of Do that suits work of some microseconds per index: for fewer indexes, waking another CPU
// costs more than it saves.
const Share = 64

// Do calls do for 0 to n-1 and returns when all calls have returned. A CPU takes share indexes
// at a time; a second CPU is used only when n is larger than share. Calls for different indexes
// may run at once.
func Do(n, share int, do func(i int)) {
	if n <= share {
		for i := range n {
			do(i)
		}
		return
	}
	var next atomic.Int64
	work := func() {
		for first := int(next.Add(int64(share))) - share; first < n; first = int(next.Add(int64(share))) - share {
			for i := first; i < min(first+share, n); i++ {
				do(i)
			}
		}
	}
	var others sync.WaitGroup
	for range min((n+share-1)/share, runtime.GOMAXPROCS(0)) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
}
