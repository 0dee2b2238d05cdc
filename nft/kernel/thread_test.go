package kernel

import (
	"runtime"
	"sync"
	"testing"

	"svcctl.io/svcctl/nft"
)

// TestK23_everyConnKeepsItsNamespace works in many namespaces at once, from goroutines
// that the scheduler moves between threads: each Conn stays where it was opened, and the
// namespace of the process sees nothing of it.
func TestK23_everyConnKeepsItsNamespace(t *testing.T) {
	const namespaces, rounds = 8, 30
	var work sync.WaitGroup
	for i := range namespaces {
		n := newNamespace(t)
		c := n.open()
		element := slotElement(nft.IPv4, i)
		commit(t, c, 0, nft.AddTable{Family: nft.IPv4}, nft.AddSet{Family: nft.IPv4, Set: backends})
		work.Go(func() {
			for round := range rounds {
				runtime.Gosched()
				op := nft.Op(nft.AddElements{Family: nft.IPv4, Set: backends, Elements: []nft.Element{element}})
				if round%2 == 1 {
					op = nft.DeleteElements{Family: nft.IPv4, Set: backends, Elements: []nft.Element{element}}
				}
				if _, err := c.Commit(&nft.Batch{Ops: []nft.Op{op}}, 0); err != nil {
					t.Errorf("namespace %d, round %d: %v", i, round, err)
				}
				c.mu.Lock()
				c.closeSocket() // the next one opens a socket anew, from whatever thread it is on
				c.mu.Unlock()
				ruleset, _, err := c.Read()
				if err != nil {
					t.Errorf("namespace %d, round %d: %v", i, round, err)
					return
				}
				elements := ruleset[nft.IPv4].Sets["backends"].Elements
				if _, there := elements[element.Key]; there != (round%2 == 0) || len(elements) > 1 {
					t.Errorf("namespace %d, round %d: elements %v", i, round, elements)
				}
			}
		})
	}
	work.Wait()
}
