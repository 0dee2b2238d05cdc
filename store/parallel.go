package store

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// share is how many things of one kind a CPU takes at once: fewer are not worth waking another.
const share = 64

// together calls do for 0 to n-1, on all CPUs when there are many.
func together(n int, do func(i int)) {
	var next atomic.Int64
	work := func() {
		for first := int(next.Add(share)) - share; first < n; first = int(next.Add(share)) - share {
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
