package netlab

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// askers is the number of concurrent questions of AskMany.
const askers = 32

// Tally counts the outcomes of many questions.
type Tally struct {
	Asked    int
	Servers  map[string]int         // answers by server
	At       map[netip.AddrPort]int // answers by address and port they were asked on
	Clients  map[netip.Addr]int     // answers by the address the server saw
	Failures map[Refusal]int        // failures by kind
	Replies  []Reply
	First    error // one of the failures
}

// String is a line for people.
func (t *Tally) String() string {
	parts := []string{fmt.Sprintf("%d asked", t.Asked)}
	for _, name := range slices.Sorted(maps.Keys(t.Servers)) {
		parts = append(parts, fmt.Sprintf("%s answered %d", name, t.Servers[name]))
	}
	for _, r := range slices.Sorted(maps.Keys(t.Failures)) {
		parts = append(parts, fmt.Sprintf("%d failed: %s", t.Failures[r], r))
	}
	if t.First != nil {
		parts = append(parts, "for example: "+t.First.Error())
	}
	return strings.Join(parts, ", ")
}

// AskMany asks n questions, many at once.
func (h *Host) AskMany(n int, network string, to netip.AddrPort, opts ...Option) *Tally {
	return AskEach(n, func(int) (Reply, error) { return h.Ask(network, to, opts...) })
}

// AskEach calls ask with 0 to n-1, many at once, and counts what becomes of it.
func AskEach(n int, ask func(i int) (Reply, error)) *Tally {
	t := &Tally{
		Servers: map[string]int{}, At: map[netip.AddrPort]int{}, Clients: map[netip.Addr]int{}, Failures: map[Refusal]int{},
	}
	numbers := make(chan int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range min(n, askers) {
		wg.Go(func() {
			for i := range numbers {
				reply, err := ask(i)
				mu.Lock()
				t.add(reply, err)
				mu.Unlock()
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	wg.Wait()
	return t
}

// Add adds the outcomes of other questions.
func (t *Tally) Add(other *Tally) {
	for _, r := range other.Replies {
		t.add(r, nil)
	}
	for how, n := range other.Failures {
		t.Asked += n
		t.Failures[how] += n
		t.First = other.First
	}
}

func (t *Tally) add(r Reply, err error) {
	t.Asked++
	if err != nil {
		t.Failures[RefusalOf(err)]++
		t.First = err
		return
	}
	t.Servers[r.Server]++
	t.At[r.At]++
	t.Clients[r.Client.Addr()]++
	t.Replies = append(t.Replies, r)
}
