package netlab

import (
	"math"
	"sync"
)

// OpenCounts counts the connections that are open at the same time, by server. Its methods may be called concurrently.
type OpenCounts struct {
	mu     sync.Mutex
	open   map[string]float64
	sums   map[string]float64 // of open, over samples
	spread float64            // sum of standard deviation / mean, over samples
	n      float64            // samples
}

// NewOpenCounts counts from 0 for some servers.
func NewOpenCounts(servers ...string) *OpenCounts {
	o := &OpenCounts{open: map[string]float64{}, sums: map[string]float64{}}
	for _, s := range servers {
		o.open[s] = 0
	}
	return o
}

// Add counts n connections that a server has more.
func (o *OpenCounts) Add(server string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open[server] += float64(n)
}

// Sample takes the counts as they are now.
func (o *OpenCounts) Sample() {
	o.mu.Lock()
	defer o.mu.Unlock()
	sum, squares := 0.0, 0.0
	for s, n := range o.open {
		o.sums[s] += n
		sum += n
		squares += n * n
	}
	mean := sum / float64(len(o.open))
	o.spread += math.Sqrt(squares/float64(len(o.open))-mean*mean) / max(mean, 1)
	o.n++
}

// Mean returns the open connections of a server, on average over the samples.
func (o *OpenCounts) Mean(server string) float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sums[server] / o.n
}

// Spread returns the standard deviation between the servers, as a part of their mean, on average over the samples.
func (o *OpenCounts) Spread() float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.spread / o.n
}
