package parts

import (
	"slices"
	"sync"

	"svcctl.io/svcctl/appliance/resolve"
)

// wakes is the loop of a Part under test.
type wakes struct {
	mu    sync.Mutex
	times int
	names map[string]bool
}

func (w *wakes) changed(needs ...resolve.Need) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.times++
	for _, n := range needs {
		if w.names == nil {
			w.names = map[string]bool{}
		}
		w.names[n.Name] = true
	}
}

// take returns the names of the needs that changed since the last call, sorted.
func (w *wakes) take() (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.names {
		names = append(names, name)
	}
	w.names = nil
	slices.Sort(names)
	return names
}
