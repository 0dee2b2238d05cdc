package apiserver

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// TestAllocationsHoldNobodyUp: however many ask who holds what, who writes waits for one of
// them at most.
func TestAllocationsHoldNobodyUp(t *testing.T) {
	objects, err := store.Open(engine.NewMemory(), store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}})
	if err != nil {
		t.Fatal(err)
	}
	var writes []store.Write
	for i := range 2000 {
		svc := &object.Service{
			TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore},
			Metadata: object.ObjectMeta{Name: fmt.Sprint("s", i), Namespace: "default"},
			Spec:     object.ServiceSpec{Ports: []object.ServicePort{{Port: 80, Protocol: object.ProtocolTCP}}},
		}
		writes = append(writes, store.Write{Ref: object.RefOf(svc), Object: svc, Create: true})
	}
	if _, err := objects.Write(writes...); err != nil {
		t.Fatal(err)
	}
	tell := (&answers{objects: objects}).allocations
	shortest := func(do func()) time.Duration {
		best := time.Hour
		for range 5 {
			began := time.Now()
			do()
			best = min(best, time.Since(began))
		}
		return best
	}
	alone := shortest(func() { tell(false) })

	stop := make(chan struct{})
	var askers sync.WaitGroup
	for range 100 {
		askers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					tell(false)
				}
			}
		})
	}
	time.Sleep(20 * alone) // real time: many questions are under way
	write := shortest(func() {
		if _, err := objects.Write(store.Write{Ref: writes[0].Ref, Delete: true, DryRun: true}); err != nil {
			t.Error(err)
		}
	})
	close(stop)
	askers.Wait()
	if write > 20*alone {
		t.Errorf("a write took %v at least, while 100 asked what takes %v", write, alone)
	}
}
